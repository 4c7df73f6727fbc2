"""Logs as a table: what every format is read into, and what is learned from once nothing is wrong with it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]

NAMES = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations", "times",
         "behaviour_logp")  # fmt: skip
"""What the columns of logs are called here, whatever a format calls them."""


@dataclass(frozen=True)
class Raw:
    """Columns as they were read, nothing checked.

    Shapes: observations and next_observations [N, ...], actions [N, A] or [N], everything else [N].

    Args:
        columns: by the names of `NAMES`; those that the format had.
        called: what the file calls a column, where that is another name.
        spaces: of observations and actions, where the format keeps them.
        own_ends: whether the format itself says where episodes end, so that no column has to.
        starts: [E] the rows that episodes begin with, where the format says so.
    """

    where: Path
    columns: Mapping[str, Numbers]
    called: Mapping[str, str] = field(default_factory=dict)
    spaces: tuple[Any, Any] | None = None
    starts: Numbers | None = None

    def name(self, column: str) -> str:
        """What the file calls a column."""
        return self.called.get(column, column)


@dataclass(frozen=True)
class Spaces:
    """What an environment shows and takes: Gymnasium's spaces.

    Args:
        said_by: whose they are, for people.
    """

    observation_space: Any
    action_space: Any
    said_by: str


IMITABLE = "All episodes earn the same: imitation is as good as any method can get from them."
BLOCK = 1 << 24
"""Numbers that are looked at together, of what may not fit into memory."""


def blocks(column: Numbers) -> Iterator[Numbers]:
    """The rows of a column, so many at a time that they have at most `BLOCK` numbers."""
    rows = max(1, BLOCK // max(1, int(np.prod(column.shape[1:]))))
    for start in range(0, len(column), rows):
        yield column[start : start + rows]


class Compared(NamedTuple):
    """K pairs of segments of logs, and which of the two is better.

    Shapes: first, second [K] int64, the rows that the segments begin with, `length` rows of one episode each; preferred
    [K] float32: 1 where it is the second, 0 where it is the first.
    """

    first: Numbers
    second: Numbers
    preferred: Numbers
    length: int


@dataclass(frozen=True)
class Logs:
    """Steps of whole episodes, one after another, with nothing wrong in them.

    Shapes: observations, next_observations [N, D] float32, actions [N, A] float32 as the environment takes them,
    rewards [N] float32, terminated, truncated [N] bool. The last row of each episode is one of the two.

    Args:
        behaviour_logp: [N] float32 log-probabilities of what was done (of numbers densities, as the environment takes
            them), where the logs say so.
        dropped: rows that were read and are not here, with the reason.
        changed: when the files were last changed, by path.
        returns_to_go: [N] float32 discounted sums of rewards from each row on, where a transform adds them.
        next_actions: [N, A] float32 what was done after each row, where a transform adds it.
        expert: [N] float32 1 on rows of an expert's episodes, 0 on others, where a transform says so.
        compared: pairs of segments of which somebody said which is better, where a transform adds them.
        notes: what was allowed of what may be wrong, a sentence each.
    """

    where: Path
    spaces: Spaces
    observations: Numbers
    actions: Numbers
    rewards: Numbers
    terminated: Numbers
    truncated: Numbers
    next_observations: Numbers
    dropped: Mapping[str, int] = field(default_factory=dict)
    changed: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    returns_to_go: Numbers | None = None
    next_actions: Numbers | None = None
    behaviour_logp: Numbers | None = None
    expert: Numbers | None = None
    compared: Compared | None = None
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """N."""
        return len(self.rewards)

    def only(self, kept: Numbers) -> Logs:
        """The rows [N] that are kept, which end with a last row; of pairs of segments nothing is left."""
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        rows: Any = {k: column[kept] for k, column in columns.items() if isinstance(column, np.ndarray)}
        return replace(self, compared=None, **rows)

    @cached_property
    def ends(self) -> Numbers:
        """[E] the last row of every episode."""
        return np.flatnonzero(self.terminated | self.truncated)

    @property
    def episodes(self) -> int:
        """How many there are."""
        return len(self.ends)

    @cached_property
    def returns(self) -> Numbers:
        """[E] sums of rewards."""
        starts = np.concatenate([[0], self.ends[:-1] + 1])
        return np.add.reduceat(self.rewards.astype(np.float64), starts)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of every number, whatever format it came in."""
        sha = hashlib.sha256()
        columns = (self.observations, self.actions, self.rewards, self.terminated, self.truncated)
        for column in (*columns, self.next_observations):
            for block in blocks(column):
                sha.update(np.ascontiguousarray(block).tobytes())
        return sha.hexdigest()

    def sentence(self) -> str:
        """What there is, for people."""
        lost = "".join(f"; {n:,} rows left out, {why}" for why, n in self.dropped.items() if n)
        low, middle, high = (float(x) for x in np.quantile(self.returns, (0.0, 0.5, 1.0)))
        return (
            f"{self.where}: {self.rows:,} steps of {self.episodes:,} episodes, returns {low:.4g} to {high:.4g}, half "
            f"of them above {middle:.4g}{lost}. {self._spaces()}{f' {IMITABLE}' * self.imitable}"
        )

    @property
    def imitable(self) -> bool:
        """Whether no method can show more than imitation: several episodes, all of which earn the same."""
        returns = self.returns
        return len(returns) > 1 and bool(np.ptp(returns) <= 1e-6 * np.abs(returns).max())

    def _spaces(self) -> str:
        seen, done = self.spaces.observation_space, self.spaces.action_space
        return f"Observations {list(seen.shape)}, actions {done}, as {self.spaces.said_by} says."
