"""What is left of a run: where its newest checkpoint is, what it was started with, and in which world."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.core.worlds import World
from etude.runs.training import compose_task, say


def locate(checkpoint: str | Path) -> tuple[str, dict[str, Any]]:
    """The folder of a checkpoint and its run's config, given a run folder, a checkpoint, or a model by name."""
    from etude.runtime import checkpoints

    path = Path(checkpoint)
    if (path / "checkpoints").is_dir():
        newest, _ = checkpoints.newest(path / "checkpoints", stored=False)
        return str(newest), _config(path)
    if (path / "policy.safetensors").is_file() or any(
        (path / "model" / name).is_file() for name in ("config.json", "adapter_config.json")
    ):
        return str(path), _config(path.parent.parent)
    return str(checkpoint), {}


def _config(folder: Path) -> dict[str, Any]:
    """The config of a run, with what it names where that is now."""
    from etude.runtime.sources import opened

    if not (folder / "config.json").is_file():
        return {}
    config = opened(folder)
    for note in config.notes:
        say(note)
    return config.config


def run_world(folder: Path) -> World:
    """The world of a run, which its config says, or its task, in runs from before that was recorded."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) if path.is_file() else {}
    if "world" in config:
        return World(config["world"])
    try:
        return compose_task(str(config["task"])).world
    except (EtudeError, KeyError):
        return World.LANGUAGE
