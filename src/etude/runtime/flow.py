"""How rows flow from prompts to updates: what may run ahead of what, the states of a row, and their counts."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, get_type_hints

from etude.core.errors import ConfigError, InvariantError
from etude.core.fields import Count, Positive, WholeNumber, check


@dataclass(frozen=True)
class Flow:
    """What may run ahead of what, and how long anybody is waited for.

    Args:
        steps: training steps.
        groups, size: of a step: problems, and rows of each.
        bound: rows for step k may be begun while k minus the finished steps is at most this; 0 is the synchronous loop.
            A row whose weights are older than that when its step comes is dropped.
        extra: groups that are begun beyond those that are needed, so that nobody waits for the last ones. What is not
            needed in the end is aborted where it would be too old for the next step (`bound` 0), else carried over.
        rounds: of a step: at most so many times `groups` are begun, where filters drop some.
        streaming: rows are scored when they end, and groups that are dropped replaced at once. Otherwise as in the
            plain loop: all rows end, then all are scored, then what was dropped is begun anew.
        row_seconds: after so long a row is begun by another worker too, and the first answer counts.
        score_seconds: after so long a row that is being scored is dropped, and whoever scores it started again.
        patience: seconds after which a worker that does not answer is taken for dead.
        restarts: how often a worker is started again before the run stops.

    Raises: ConfigError for a field out of its range, and for `extra` without `streaming`.

    >>> Flow(steps=10, groups=16, size=8, bound=-1)
    Traceback (most recent call last):
    ...
    etude.core.errors.ConfigError: Flow.bound must be a whole number of at least 0, got -1.
    """

    steps: Count
    groups: Count
    size: Count
    bound: WholeNumber = 0
    extra: WholeNumber = 0
    rounds: Count = 1
    streaming: bool = True
    row_seconds: Positive = 120.0
    score_seconds: Positive = 60.0
    patience: Positive = 600.0
    restarts: WholeNumber = 3

    def __post_init__(self) -> None:
        hints = get_type_hints(Flow, include_extras=True)
        for one in dataclasses.fields(self):
            check(f"Flow.{one.name}", hints[one.name], getattr(self, one.name))
        if self.extra and not self.streaming:
            raise ConfigError(
                f"Flow.extra must be 0 without streaming, got {self.extra}: where all rows are waited for, groups "
                "beyond those that are needed only take longer."
            )
        if self.row_seconds > self.patience:
            raise ConfigError(
                f"Flow.row_seconds must be at most the patience of {self.patience:g} s, got {self.row_seconds:g}: "
                "its worker would be taken for dead before another is asked."
            )

    def ahead(self, finished: int, taken: int) -> int:
        """Of how many steps rows may be begun: the next whose rows are not taken, and those after it.

        >>> flow = Flow(steps=10, groups=16, size=8, bound=1)
        >>> flow.ahead(finished=3, taken=3), flow.ahead(finished=3, taken=4), flow.ahead(finished=9, taken=9)
        (2, 1, 1)
        """
        return max(0, min(finished + self.bound, self.steps - 1) - taken + 1)

    def room(self, ahead: int, alive: int, lost: int) -> int:
        """How many groups may be begun for so many steps, while rows are streaming.

        Args:
            alive: groups that may still be learned from.
            lost: groups that filters and faults took since the last step took its rows.
        """
        needed = min(self.groups * ahead, self.rounds * self.groups * ahead - lost)
        return needed + self.extra - alive if ahead else 0


class RowState(StrEnum):
    """Where a row stands. A row that was learned from stays ACCEPTED in the counts."""

    QUEUED = "queued"
    RUNNING = "running"
    GENERATED = "generated"
    REWARDED = "rewarded"
    ACCEPTED = "accepted"
    DROPPED = "dropped"
    ABORTED = "aborted"


class Reason(StrEnum):
    """Why a row was dropped."""

    FILTERED = "filtered"
    STALE = "stale"
    FAULT = "fault"  # whoever was to make it could not
    SCORE_FAILED = "score_failed"
    SCORE_TIMED_OUT = "score_timed_out"

    @property
    def counts(self) -> bool:
        """Whether a group that is gone for it is one of those that a step may try; see `Flow.rounds`."""
        return self is not Reason.STALE


_END = {RowState.DROPPED, RowState.ABORTED}
ALLOWED: Mapping[RowState, frozenset[RowState]] = {
    RowState.QUEUED: frozenset({RowState.RUNNING, *_END}),
    # to itself: another worker begins it too; to QUEUED: its worker died
    RowState.RUNNING: frozenset({RowState.RUNNING, RowState.QUEUED, RowState.GENERATED, *_END}),
    RowState.GENERATED: frozenset({RowState.REWARDED, *_END}),
    RowState.REWARDED: frozenset({RowState.ACCEPTED, *_END}),
    RowState.ACCEPTED: frozenset(_END),
    RowState.DROPPED: frozenset(),
    RowState.ABORTED: frozenset(),
}
"""What a row may become from each state."""


class Ledger:
    """How many rows are in which state, how often each transition was made, and why rows were dropped.

    >>> ledger = Ledger()
    >>> ledger.opened()
    >>> ledger.moved(RowState.QUEUED, RowState.ABORTED)
    >>> ledger.counts[RowState.QUEUED], ledger.counts[RowState.ABORTED]
    (0, 1)
    """

    def __init__(self) -> None:
        self.counts: Counter[RowState] = Counter()
        self.transitions: Counter[tuple[RowState, RowState]] = Counter()
        self.reasons: Counter[Reason] = Counter()

    def opened(self) -> None:
        """A row begins as QUEUED."""
        self.counts[RowState.QUEUED] += 1

    def moved(self, before: RowState, after: RowState, reason: Reason | None = None) -> None:
        """A row changes its state. Raises InvariantError where it may not."""
        if after not in ALLOWED[before]:
            raise InvariantError(f"A row that is {before} cannot become {after}.")
        self.counts[before] -= 1
        self.counts[after] += 1
        self.transitions[before, after] += 1
        if reason is not None:
            self.reasons[reason] += 1

    def state_dict(self) -> dict[str, Any]:
        """The counts, as JSON values."""
        transitions = [[before, after, count] for (before, after), count in self.transitions.items()]
        return {"counts": dict(self.counts), "transitions": transitions, "reasons": dict(self.reasons)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to where `state_dict` was taken."""
        self.counts = Counter({RowState(k): n for k, n in state["counts"].items()})
        self.transitions = Counter({(RowState(a), RowState(b)): n for a, b, n in state["transitions"]})
        self.reasons = Counter({Reason(k): n for k, n in state["reasons"].items()})
