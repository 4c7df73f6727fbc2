"""The columns of logs made even: vectors, choices, where episodes begin and end; and what is wrong with their shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces

from etude.core.errors import DataError, nearest
from etude.experience.logs.table import Numbers, Raw

NEEDED = ("observations", "actions", "rewards")
OPTIONAL = ("terminals", "timeouts", "next_observations", "behaviour_logp")


@dataclass(frozen=True)
class Steps:
    """Even columns, of whatever is in the file, faults and all.

    Shapes: observations [N, D] and actions [N, A] float64; rewards, terminals, timeouts [N]; `last` [N] marks the last
    row of each episode, `episode` [N] counts them.

    Args:
        discrete: whether actions are choices.
        following: [N, D] what each row led to, where the file says so.
        cut: whether the last episode has no end in the file.
        logp: [N] log-probabilities of what was done, where the file says so.
    """

    raw: Raw
    observations: Numbers
    actions: Numbers
    rewards: Numbers
    terminals: Numbers
    timeouts: Numbers
    last: Numbers
    discrete: bool
    following: Numbers | None
    cut: bool
    logp: Numbers | None = None

    @cached_property
    def episode(self) -> Numbers:
        """[N] the episode of each row."""
        found: Numbers = np.concatenate([[0], np.cumsum(self.last)[:-1]])
        return found

    @cached_property
    def ends(self) -> Numbers:
        """[E] the last row of each episode."""
        return np.flatnonzero(self.last)

    @cached_property
    def starts(self) -> Numbers:
        """[E] the first row of each episode."""
        return np.concatenate([[0], self.ends[:-1] + 1])

    @property
    def lengths(self) -> Numbers:
        """[E] rows of each episode."""
        found: Numbers = self.ends - self.starts + 1
        return found

    def without(self, episodes: Numbers) -> Steps:
        """Only the rows of all other episodes."""
        keep = ~np.isin(self.episode, episodes)
        return Steps(
            self.raw, self.observations[keep], self.actions[keep], self.rewards[keep], self.terminals[keep],
            self.timeouts[keep], self.last[keep], self.discrete,
            None if self.following is None else self.following[keep], self.cut and bool(keep[-1]),
            None if self.logp is None else self.logp[keep],
        )  # fmt: skip


def steps_of(raw: Raw, choices: bool | None, length: int | None) -> Steps:
    """Even columns.

    Args:
        choices: whether actions are choices, where spaces say so; None: as their numbers look.
        length: rows of an episode that ends by its time limit, where no column says where one ends.

    Raises: DataError that lists everything that is wrong with names, lengths and types.
    """
    faults = list(_misnamed(raw)) or list(_uneven(raw)) or list(_mistyped(raw))
    if faults:
        raise DataError(listed(raw, faults))
    columns, count = raw.columns, len(raw.columns["rewards"])
    actions = columns["actions"]
    looks = actions.dtype.kind in "iub" and actions.size == count
    discrete = looks if choices is None else choices
    ends = {k: _flags(columns.get(k), count) for k in ("terminals", "timeouts")}
    last = (ends["terminals"] > 0) | (ends["timeouts"] > 0)
    if raw.starts is not None:
        last[raw.starts[raw.starts > 0] - 1] = True
    elif length is not None:
        _limit(last, length)
    cut = not last[-1]
    last[-1] = True
    following, logp = columns.get("next_observations"), columns.get("behaviour_logp")
    return Steps(
        raw, _vectors(columns["observations"]), actions.reshape(count, -1).astype(np.float64),
        columns["rewards"].reshape(count).astype(np.float64), ends["terminals"], ends["timeouts"], last, discrete,
        None if following is None else _vectors(following), cut,
        None if logp is None else logp.reshape(count).astype(np.float64),
    )  # fmt: skip


def listed(raw: Raw, faults: list[str]) -> str:
    """All faults of a file, a line each."""
    return f"{raw.where} cannot be learned from:\n" + "\n".join(f"  {fault}" for fault in faults)


def _vectors(values: Numbers) -> Numbers:
    return (values[:, None] if values.ndim == 1 else values).astype(np.float64)


def _flags(values: Numbers | None, count: int) -> Numbers:
    """[N] 1 where a flag is set, NaN where that is not known."""
    if values is None:
        return np.zeros(count)
    return values.reshape(count).astype(np.float64)


def _limit(last: Numbers, length: int) -> None:
    """End episodes after so many rows at most."""
    begun = 0
    for row in range(len(last)):
        last[row] |= row - begun + 1 >= length
        begun = row + 1 if last[row] else begun


def _misnamed(raw: Raw) -> Iterator[str]:
    """Columns that are not there, with the nearest names."""
    for name in NEEDED:
        if name not in raw.columns:
            close = nearest(name, (raw.name(k) for k in raw.columns if k not in NEEDED))
            offer = f" Did you mean {' or '.join(map(repr, close))}? Call it {name}." if close else ""
            there = ", ".join(raw.name(k) for k in raw.columns) or "nothing"
            yield f"There is no column {name}; the file has {there}.{offer}"


def _uneven(raw: Raw) -> Iterator[str]:
    """Columns of different length."""
    known = {k: v for k, v in raw.columns.items() if k in (*NEEDED, *OPTIONAL, "times")}
    lengths = {k: len(v) if v.ndim else 0 for k, v in known.items()}
    if len(set(lengths.values())) > 1:
        yield (
            "The columns have different lengths: " + ", ".join(f"{raw.name(k)} {n:,}" for k, n in lengths.items()) + "."
        )
    elif not lengths["rewards"]:
        yield "There is no row."
    elif lengths["rewards"] < 2:
        yield "There is one row, and what it led to is in the next."


def _mistyped(raw: Raw) -> Iterator[str]:
    """Numbers that are none, images, and shapes that no action has."""
    for name, values in raw.columns.items():
        if name in (*NEEDED, *OPTIONAL) and values.dtype.kind not in "fiub":
            yield f"Column {raw.name(name)} holds {values.dtype}, and must hold numbers."
    seen, count = raw.columns["observations"], len(raw.columns["rewards"])
    if seen.ndim > 2 and seen.dtype != np.uint8:
        yield (
            f"Observations are images {list(seen.shape[1:])} of {seen.dtype}: pixels are whole numbers from 0 to 255, "
            "in uint8."
        )
    elif seen.ndim > 2:
        yield f"Observations are images {list(seen.shape[1:])}, and logs hold vectors: encode them first."
    for name in ("rewards", "terminals", "timeouts", "behaviour_logp"):
        if name in raw.columns and raw.columns[name].size != count:
            yield f"Column {raw.name(name)} has the shape {list(raw.columns[name].shape)}, and must be a number a row."
    following = raw.columns.get("next_observations")
    if following is not None and following.shape != seen.shape:
        shapes = f"{list(following.shape)}, and observations {list(seen.shape)}"
        yield f"{raw.name('next_observations')} have the shape {shapes}."


def choices_of(space: Any) -> bool:
    """Whether a space of actions is of choices. Raises DataError for one that logs cannot be read for."""
    if isinstance(space, spaces.Discrete):
        return True
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return False
    raise DataError(f"The actions are {space}: logs are read of a Box of floats and of Discrete actions.")
