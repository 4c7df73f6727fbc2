"""The store that joins the two halves of a step where they do not run in one process (after AsyncFlow, 2507.01663).

A table of rows and fields. Whoever computes a field puts it there; a task (scoring, filtering, learning) is given rows
that have all the fields that it reads, each row once. So a task begins with a row as soon as it can, whatever the
others do, and rows leave the table when every task has had them.

>>> store = Store({"reward": Reads(("answer",)), "train": Reads(("answer", "reward"), whole=True)})
>>> store.open(group=0, rows=[0, 1])
>>> store.put(1, {"answer": "four"})
>>> store.get("reward", 1).rows, store.get("reward", 1).rows
([1], [])
>>> store.put(1, {"reward": 1.0})
>>> store.get("train", 1).rows  # the group has another row
[]
>>> store.drop([0])
>>> store.get("train", 1)
Taken(rows=[1], groups=[0], values={'answer': ['four'], 'reward': [1.0]})
>>> len(store)
0
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from etude.core.errors import ConfigError, InvariantError, UnknownNameError


class Reads(NamedTuple):
    """What a task needs of a row before it may have it.

    Args:
        fields: that must have been produced; no others are handed over.
        whole: it compares the rows of a group, and is given all that are left of one at once.
    """

    fields: tuple[str, ...]
    whole: bool = False


class Taken(NamedTuple):
    """Rows that a task was given, with the fields that it reads.

    Shapes: rows, groups [n], by number; values {field: [n]}, in the same order.
    """

    rows: list[int]
    groups: list[int]
    values: dict[str, list[Any]]


@dataclass
class _Row:
    group: int
    values: dict[str, Any] = field(default_factory=dict)
    consumed: set[str] = field(default_factory=set)


class Store:
    """Rows by number, their fields, and which task has had which row.

    What is put must be what a checkpoint holds: JSON values, tensors and numpy arrays. One thread owns it.

    Args:
        tasks: what each task reads. Every row is for every task.

    Raises: ConfigError if there is no task; UnknownNameError for a task that there is not; InvariantError for a row
    that is not open, or a field that was produced before.
    """

    def __init__(self, tasks: Mapping[str, Reads]) -> None:
        if not tasks:
            raise ConfigError("A store needs at least one task: rows leave it when every task has had them.")
        self.tasks = dict(tasks)
        self.rows: dict[int, _Row] = {}
        self.groups: dict[int, list[int]] = {}
        self.ready: dict[str, dict[int, None]] = {task: {} for task in tasks}
        """What each task may have, in the order in which it came: rows, or groups for a task that takes them whole."""

    def __len__(self) -> int:
        return len(self.rows)

    # Who produces

    def open(self, group: int, rows: Sequence[int]) -> None:
        """Make room for the rows of a group; from now on it is known which rows belong together."""
        for row in rows:
            if row in self.rows:
                raise InvariantError(f"Row {row} of group {group} is in the store already; numbers of rows are unique.")
            self.rows[row] = _Row(group)
        self.groups.setdefault(group, []).extend(rows)

    def put(self, row: int, values: Mapping[str, Any]) -> None:
        """Add fields to a row. A field is produced once: to do it again would change what a task has had."""
        held = self._row(row)
        if again := sorted(values.keys() & held.values.keys()):
            raise InvariantError(f"Row {row} has its {', '.join(again)} already; a field of a row is produced once.")
        held.values.update(values)
        self._look(row)

    def drop(self, rows: Iterable[int]) -> None:
        """Forget rows that no task is to have any more. Their groups are whole without them."""
        for row in rows:
            group = self._row(row).group
            self._forget(row)
            if group in self.groups:
                self._look(self.groups[group][0])

    # Who consumes

    def get(self, task: str, n: int) -> Taken:
        """`n` rows (groups, for a task that takes them whole) that the task has not had; none if there are fewer.

        First come, first served; what is handed over is ordered by number, so that a batch does not depend on who was
        faster. The task has had them from now on: nobody else is given them for it.
        """
        ready = self._ready(task)
        if n < 1 or len(ready) < n:
            return Taken([], [], {name: [] for name in self.tasks[task].fields})
        chosen = [key for key, _ in zip(ready, range(n))]
        whole = self.tasks[task].whole
        rows = sorted(row for key in chosen for row in (self.groups[key] if whole else (key,)))
        for key in chosen:
            del ready[key]
        held = [self.rows[row] for row in rows]
        taken = Taken(
            rows, [h.group for h in held], {name: [h.values[name] for h in held] for name in self.tasks[task].fields}
        )
        for row, had in zip(rows, held):
            had.consumed.add(task)
            if len(had.consumed) == len(self.tasks):
                self._forget(row)
        return taken

    def give_back(self, task: str, rows: Iterable[int]) -> None:
        """Take rows back from a task that was given them and ended before it did anything with them."""
        for row in rows:
            if task not in self._row(row).consumed:
                raise InvariantError(f"Row {row} cannot be given back: {task!r} has not had it.")
            self.rows[row].consumed.discard(task)
            self._look(row)

    def waiting(self, task: str) -> int:
        """How many rows (groups, for a task that takes them whole) `get` could hand over now."""
        return len(self._ready(task))

    # Within

    def _ready(self, task: str) -> dict[int, None]:
        if task not in self.tasks:
            raise UnknownNameError("task of this store", task, self.tasks)
        return self.ready[task]

    def _row(self, row: int) -> _Row:
        if row not in self.rows:
            raise InvariantError(f"Row {row} is not in the store: it was never opened, dropped, or every task had it.")
        return self.rows[row]

    def _look(self, row: int) -> None:
        """Queue a row, or its group, for the tasks that may have it now."""
        group = self.rows[row].group
        for task, reads in self.tasks.items():
            key, rows = (group, self.groups[group]) if reads.whole else (row, [row])
            if key not in self.ready[task] and all(self._may_have(task, reads, self.rows[r]) for r in rows):
                self.ready[task][key] = None

    @staticmethod
    def _may_have(task: str, reads: Reads, row: _Row) -> bool:
        return task not in row.consumed and all(name in row.values for name in reads.fields)

    def _forget(self, row: int) -> None:
        group = self.rows.pop(row).group
        self.groups[group].remove(row)
        empty = not self.groups[group]
        if empty:
            del self.groups[group]
        for task, reads in self.tasks.items():
            if empty or not reads.whole:
                self.ready[task].pop(group if reads.whole else row, None)

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """All of it: JSON values, and what was put. Lists, since keys of JSON are text."""
        rows = [[k, r.group, r.values, sorted(r.consumed)] for k, r in self.rows.items()]
        groups = [[group, list(rows)] for group, rows in self.groups.items()]
        return {"rows": rows, "groups": groups, "ready": {task: list(keys) for task, keys in self.ready.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to where `state_dict` was taken."""
        self.rows = {k: _Row(group, dict(values), set(consumed)) for k, group, values, consumed in state["rows"]}
        self.groups = {group: list(rows) for group, rows in state["groups"]}
        self.ready = {task: dict.fromkeys(state["ready"][task]) for task in self.tasks}


def balanced(tokens: Sequence[float], ranks: int) -> list[list[int]]:
    """Rows for each of `ranks` workers so that the longest has little more to do than the others.

    The longest row first, each to whoever has least: at most 4/3 of the shortest possible time (Graham 1969).

    Args:
        tokens: [n] of each row.

    Returns: [ranks] lists of places in `tokens`, in order; together each place once.

    >>> balanced([5, 1, 1, 1, 2], ranks=2)
    [[0], [1, 2, 3, 4]]
    """
    if ranks < 1:
        raise ConfigError(f"Rows are balanced over at least one rank, got {ranks}.")
    shares: list[list[int]] = [[] for _ in range(ranks)]
    load = [(0.0, rank) for rank in range(ranks)]
    for place in sorted(range(len(tokens)), key=lambda i: (-tokens[i], i)):
        least, rank = load[0]
        shares[rank].append(place)
        heapq.heapreplace(load, (least + tokens[place], rank))
    return [sorted(share) for share in shares]
