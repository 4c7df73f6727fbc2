"""The rows that may still be learned from: their states, their groups, their fields, and who is to begin them."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etude.core.errors import InvariantError
from etude.runtime.crew import LEARN
from etude.runtime.flow import Ledger, Reason, RowState
from etude.runtime.store import Reads, Store

FILTER = "filter"
TRAINED, WEIGHT = "trained", "weight"
"""Fields that a scheduler adds: training steps that a row's weights had had, and what the filter gave it."""


def tasks_of(scores: Mapping[str, Sequence[str]], judged: Sequence[str], learned: Sequence[str]) -> dict[str, Reads]:
    """What each task reads of a row: those that score it alone, filter and learner whole groups of scored rows."""
    tasks = {task: Reads(tuple(fields)) for task, fields in scores.items()}
    tasks[FILTER] = Reads((*judged, TRAINED), whole=True)
    tasks[LEARN] = Reads((*learned, TRAINED, WEIGHT), whole=True)
    return tasks


@dataclass
class Row:
    """A row.

    Args:
        trained: training steps that the weights which made it had had; -1 until it ended.
        tickets: of all who work on it, each with the training steps of its weights.
        scores: the tasks that have not scored it.
        queued: whether somebody is to begin it: nobody has, or who has is late.
    """

    id: int
    group: int
    state: RowState = RowState.QUEUED
    trained: int = -1
    tickets: dict[int, int] = field(default_factory=dict)
    scores: set[str] = field(default_factory=set)
    queued: bool = True


@dataclass
class Group:
    """Rows that are compared with each other, gathered for a step."""

    step: int
    rows: list[int]


class Rows:
    """Every row from its prompt until it is learned from, dropped or aborted.

    Args:
        tasks: what each task reads of a row.
        cancel: takes an order back, by its ticket.
    """

    def __init__(self, tasks: Mapping[str, Reads], cancel: Callable[[int], None]) -> None:
        self.store, self.ledger, self.cancel = Store(tasks), Ledger(), cancel
        self.known: dict[int, Row] = {}
        self.groups: dict[int, Group] = {}
        self.queue: list[int] = []
        """Rows that somebody is to begin, the oldest first."""

    def __getitem__(self, row: int) -> Row:
        return self.known[row]

    def of(self, group: int) -> list[Row]:
        """The rows that are left of a group."""
        return [self.known[row] for row in self.groups[group].rows]

    def open(self, group: int, step: int, size: int) -> None:
        """The rows of a new group; they are queued."""
        numbers = list(range(group * size, (group + 1) * size))
        self.groups[group] = Group(step, numbers)
        self.store.open(group, numbers)
        for number in numbers:
            self.known[number] = Row(number, group)
            self.ledger.opened()
        self.queue += numbers  # numbers grow

    def enqueue(self, row: Row) -> None:
        """Somebody is to begin a row."""
        if not row.queued:
            row.queued = True
            bisect.insort(self.queue, row.id)

    def move(self, row: Row, state: RowState, reason: Reason | None = None) -> None:
        """A row changes its state. Raises InvariantError where it may not."""
        self.ledger.moved(row.state, state, reason)
        row.state = state

    def leave(self, row: Row) -> None:
        """Nobody is to work on a row any more."""
        for ticket in sorted(row.tickets):
            self.cancel(ticket)
        row.tickets.clear()
        if row.queued:
            row.queued = False
            self.queue.remove(row.id)

    def drop(self, row: Row, reason: Reason | None) -> bool:
        """A row is not learned from: dropped for a reason, or aborted because nobody needs it (None).

        Returns whether its group is gone with it.
        """
        self.leave(row)
        self.move(row, RowState.DROPPED if reason else RowState.ABORTED, reason)
        self.store.drop([row.id])
        del self.known[row.id]
        group = self.groups[row.group]
        group.rows.remove(row.id)
        if not group.rows:
            del self.groups[row.group]
        return not group.rows

    def again(self, row: Row, ticket: int, task: str = "") -> None:
        """Nobody will answer for a ticket: the row is to be made anew, or scored by a task."""
        del row.tickets[ticket]
        if task:
            self.store.give_back(task, [row.id])
        elif not row.tickets:
            self.move(row, RowState.QUEUED)
            self.enqueue(row)

    def stale(self, row: Row, oldest: int) -> bool:
        """Whether a row is of weights before `oldest`; of those who are making it, who began too early leave it."""
        if row.state is not RowState.RUNNING:
            return row.state is not RowState.QUEUED and row.trained < oldest
        for ticket in [ticket for ticket, trained in row.tickets.items() if trained < oldest]:
            del row.tickets[ticket]
            self.cancel(ticket)
        return not row.tickets

    def learned(self, rows: list[int], step: int, bound: int) -> list[int]:
        """Rows, whole groups of them, are handed to the learner and forgotten here. Returns how many steps old each is.

        Raises InvariantError for a row that was not accepted, or is over the bound.
        """
        lags = []
        for row in [self.known.pop(number) for number in rows]:
            lags.append(step - row.trained)
            if row.state is not RowState.ACCEPTED or not 0 <= lags[-1] <= bound:
                raise InvariantError(f"Row {row.id} is {row.state} and {lags[-1]} steps old: not for step {step}.")
            self.groups.pop(row.group, None)
        return lags

    def state_dict(self) -> dict[str, Any]:
        """All of it: JSON values, and what is in the store."""
        rows = [
            [r.id, r.group, r.state, r.trained, [*r.tickets.items()], sorted(r.scores)] for r in self.known.values()
        ]
        return {
            "rows": rows, "groups": [[number, g.step, list(g.rows)] for number, g in self.groups.items()],
            "queue": list(self.queue), "store": self.store.state_dict(), "ledger": self.ledger.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to where `state_dict` was taken."""
        queued = {*state["queue"]}
        self.known = {i: Row(i, g, RowState(s), t, dict(k), set(n), i in queued) for i, g, s, t, k, n in state["rows"]}
        self.groups = {number: Group(step, list(rows)) for number, step, rows in state["groups"]}
        self.queue = list(state["queue"])
        self.store.load_state_dict(state["store"])
        self.ledger.load_state_dict(state["ledger"])
