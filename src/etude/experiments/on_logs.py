"""What a method earns after it learned from logs that an experiment made."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.core.control import ControlTask
from etude.core.method import Method
from etude.experience.logs.writing import LoggedEpisode

Columns = dict[str, NDArray[Any]]
"""Of logs, [N, ...], one episode after another."""


def columns_of(episodes: Sequence[LoggedEpisode]) -> Columns:
    """Episodes that were recorded as logs."""
    each = {
        "observations": [e.observations[:-1] for e in episodes], "actions": [e.actions for e in episodes],
        "rewards": [e.rewards for e in episodes], "next_observations": [e.observations[1:] for e in episodes],
        "terminals": [e.terminations for e in episodes], "timeouts": [e.truncations for e in episodes],
    }  # fmt: skip
    return {name: np.concatenate(column) for name, column in each.items()}


def fingerprint(columns: Mapping[str, NDArray[Any]]) -> str:
    """Of every number of logs, by which a verdict says what was learned from."""
    sha = hashlib.sha256()
    for name in sorted(columns):
        sha.update(name.encode() + np.ascontiguousarray(columns[name]).tobytes())
    return sha.hexdigest()[:12]


def before_and_after(
    method: Method, columns: Mapping[str, NDArray[Any]], environment: ControlTask, seed: int, updates: int,
    episodes: int, allow: Sequence[str] = (),
) -> list[float]:  # fmt: skip
    """Mean returns of likeliest actions over so many episodes, before and after as many updates on logs.

    Args:
        columns: of logs, [N, ...]. environment: what is played in. allow: faults of logs that do not matter here.
    """
    import torch

    from etude.core.population import Member
    from etude.evaluation.control import play
    from etude.loops.off_policy import BLOCK, OffPolicyLoop
    from etude.tasks.control.logged import LoggedTask

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "logs.npz"
        np.savez(path, **columns)  # type: ignore[arg-type]  # of numpy's own stubs
        task = LoggedTask(data=str(path), environment=environment, allow=tuple(allow))
        loop = OffPolicyLoop(method, task, [Member(seed)], updates // BLOCK)
        found = [float(play(loop, task, episodes, deterministic=True).mean())]
        for _ in range(loop.steps):
            loop.step()
        return [*found, float(play(loop, task, episodes, deterministic=True).mean())]
