"""The replay of a run folder as logs: what its members did while they learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from etude.core.errors import DataError
from etude.experience.logs.steps import choices_of
from etude.experience.logs.table import Numbers, Raw, Spaces


def read_replay(folder: Path, spaces_of: Callable[[Mapping[str, Any]], Spaces]) -> Raw:
    """What the newest whole checkpoint of a run has stored: every member's environments one after another.

    Args:
        spaces_of: those in which the steps of a run with this config were taken.

    Raises: DataError for a run that stores nothing, or images.
    """
    from etude.runtime.checkpoints import STORED, load_json, load_tensors, newest

    place, _ = newest(folder / "checkpoints")
    files = sorted((place / STORED).glob("*.safetensors"))
    if not files:
        raise DataError(f"{folder} stored no steps: only runs of methods that learn from a replay do.")
    pieces = [load_tensors(file) for file in files]
    if any("rows" not in piece for piece in pieces):
        raise DataError(f"{folder} stored images, and logs hold vectors.")
    rows = np.concatenate([piece["rows"].numpy() for piece in pieces], 1)  # [P, size, W]
    spaces = spaces_of(load_json(folder / "config.json"))
    experience = load_json(folder / "method.json")["experience"]
    count = int(experience["environments"])
    capacity = int(experience["capacity"]) // count * count
    taken = int(load_json(place / "state.json")["collector"]["taken"])
    begin = taken * count % capacity if taken * count >= capacity else 0
    own = np.roll(rows, -begin, 1)
    each = [own[member, environment::count] for member in range(len(own)) for environment in range(count)]
    return raw_of_rows(folder, np.concatenate(each), np.cumsum([0, *map(len, each)])[:-1], spaces)


def raw_of_rows(where: Path, rows: Numbers, starts: Numbers, spaces: Spaces) -> Raw:
    """Rows [N, W] of a store as columns, actions as the environment takes them.

    Args:
        where: they are from. starts: rows with which episodes begin that do not follow the end of another.

    Raises: DataError for rows of other spaces.
    """
    space = spaces.action_space
    choices = choices_of(space)
    acts = 1 if choices else int(np.prod(space.shape))
    wide = (rows.shape[1] - acts - 3) // 2
    if 2 * wide + acts + 3 != rows.shape[1]:
        raise DataError(f"{where} stored rows of {rows.shape[1]} numbers, which {spaces.said_by} does not show.")
    seen, actions, following, rest = np.split(rows, np.cumsum([wide, acts, wide]), 1)
    if not choices:
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        actions = low + 0.5 * (high - low) * (actions + 1)
    terminated = rest[:, 1] == 0
    ended = rest[:, 2] > 0
    begins = np.union1d(starts, np.flatnonzero(ended[:-1]) + 1)
    kept: Any = gym_spaces.Discrete(int(space.n)) if choices else space
    columns = {
        "observations": seen, "actions": actions[:, 0].round().astype(np.int64) if choices else actions,
        "rewards": rest[:, 0], "terminals": terminated, "timeouts": ended & ~terminated, "next_observations": following,
    }  # fmt: skip
    return Raw(where, columns, spaces=(spaces.observation_space, kept), starts=begins)
