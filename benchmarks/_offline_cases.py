"""Offline methods in the benchmarks of speed and of returns, in terms of both libraries, and logs that both read; needs
neither."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

OBSERVED, ACTED = 11, 3
"""Numbers of an observation and of an action, those of Hopper."""


@dataclass(frozen=True)
class Fitted:
    """What both libraries are given.

    Args:
        width: of the hidden layers.
        updates: of each member in one turn.
        targets: ratios to reach, by seeds at once.
        products: what etude's hidden layers multiply; d3rlpy's are float32.
    """

    name: str
    method: str
    width: tuple[int, int]
    batch: int
    updates: int
    targets: dict[int, float]
    products: str = "float32"

    def to_json(self) -> dict[str, Any]:
        """All of it, for the report."""
        return asdict(self)


@dataclass(frozen=True)
class Returned:
    """What both libraries train, to compare returns; everything else is 256-256 and batches of 256.

    Args:
        seeds: runs of each library.
    """

    method: str
    updates: int
    seeds: int


RETURNS = {r.method: r for r in (Returned("td3-bc", 50_000, 5), Returned("iql", 50_000, 5), Returned("cql", 5_000, 3))}
SPEED = {
    c.name: c
    for c in (
        Fitted("td3-bc-256", "td3-bc", (256, 256), 256, 250, {1: 2.0}),
        Fitted("iql-256", "iql", (256, 256), 256, 250, {1: 2.0}),
        Fitted("cql-256", "cql", (256, 256), 256, 250, {1: 1.5}),
        Fitted("td3-bc-256-bf16", "td3-bc", (256, 256), 256, 250, {5: 3.0}, products="bfloat16"),
        Fitted("iql-256-bf16", "iql", (256, 256), 256, 250, {5: 3.0}, products="bfloat16"),
        Fitted("td3-bc-64", "td3-bc", (64, 64), 64, 500, {10: 8.0}),
        Fitted("iql-64", "iql", (64, 64), 64, 500, {10: 8.0}),
    )
}


def written(folder: Path, episodes: int = 100, length: int = 1000, seed: int = 0) -> Path:
    """Logs of a point that chance pushes, in the names of D4RL; every second episode terminates."""
    rng, path = np.random.default_rng(seed), folder / "logs.npz"
    pushed = rng.normal(size=(ACTED, OBSERVED)) / OBSERVED
    seen = np.empty((length + 1, episodes, OBSERVED), np.float32)
    seen[0] = rng.normal(size=(episodes, OBSERVED))
    actions = rng.uniform(-1, 1, (length, episodes, ACTED)).astype(np.float32)
    for t in range(length):
        seen[t + 1] = 0.9 * seen[t] + actions[t] @ pushed + 0.1 * rng.normal(size=(episodes, OBSERVED))
    last = np.zeros((length, episodes), bool)
    last[-1] = True
    ends = np.arange(episodes) % 2 == 0
    columns = {
        "observations": seen[:-1], "actions": actions, "rewards": seen[1:, :, 0], "terminals": last & ends,
        "timeouts": last & ~ends, "next_observations": seen[1:],
    }  # fmt: skip
    np.savez(path, **{k: x.swapaxes(0, 1).reshape(episodes * length, *x.shape[2:]) for k, x in columns.items()})
    return path
