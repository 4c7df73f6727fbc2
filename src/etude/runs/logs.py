"""Which logs a run learned from, and whether others are the same."""

from __future__ import annotations

import json
from pathlib import Path

from etude.core.errors import CheckpointError, ConfigError
from etude.core.task import Task
from etude.tasks.control.logged import LoggedTask


def same_data(folder: Path, task: Task, data: str) -> None:
    """Raise CheckpointError, naming both, for logs with other numbers than a run has learned from."""
    recorded = json.loads((folder / "environment.json").read_text()).get("data")
    if recorded is None or not isinstance(task, LoggedTask):
        raise ConfigError(f"{folder} learns from no logs, so --data means nothing for it: leave it out.")
    found = task.replace(data=data).logs().fingerprint
    if found != recorded["fingerprint"]:
        raise CheckpointError(
            f"{folder} learned from {recorded['path']} (fingerprint {recorded['fingerprint'][:12]}), and --data is "
            f"{Path(data).resolve()} ({found[:12]}): go on without --data, or start a new run."
        )
