"""How a step comes to its groups: round by round until enough hold, or the first that hold of more than are needed.

Groups that a filter drops are replaced. In the plain loop those of a round all end before the next begins. Where a
filter has `extra` groups begun, each that is dropped is replaced at once, and the step is over as soon as enough hold:

    groups that are alive <= wanted + extra,   alive: begun, and not dropped

When a group ends is what its filter says, so the order is the same on any machine. Groups are sampled in rounds there
too, all replacements of a round together: who begins when follows from the rounds before, and none is left out that
could still be among the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import NamedTuple

import torch

from etude.core.batches import TokenBatch
from etude.core.kinds import TokenMethod
from etude.core.rows import concatenate
from etude.core.slots import Filter
from etude.loops.credit import Rows, judged, kept, shown

Assess = Callable[[int, int], Rows]
"""Scored rows of so many problems, in a round."""


class Gathered(NamedTuple):
    """What a step has gathered.

    Args:
        assessed: all scored rows, round by round.
        rows: of each player, those that its filters keep.
        metrics: `aborted` rows of groups that came too late, which nobody is shown; `full_after`: when the last came
            that did not. Nothing where no more groups are begun than are needed.
    """

    assessed: list[TokenBatch]
    rows: Rows
    metrics: dict[str, float]


def gathered(follow: Mapping[str, TokenMethod], wanted: int, assess: Assess) -> Gathered:
    """Rows for `wanted` problems.

    Args:
        follow: the method that each player follows.
    """
    part = next((own.oversampling for own in follow.values() if own.oversampling is not None), None)
    return refilled(follow, wanted, assess) if part is None else raced(part, part.extra, follow, wanted, assess)


def refilled(follow: Mapping[str, TokenMethod], wanted: int, assess: Assess) -> Gathered:
    """All rows of every round, until the filters of all players that resample have kept enough groups."""
    again = {name: [part.rounds for part in own.filters if part.resample] for name, own in follow.items()}
    assessed, filtered = list[TokenBatch](), {name: list[TokenBatch]() for name in follow}
    for number in range(_rounds(follow)):
        missing = max((wanted - _groups(filtered[name]) for name, rounds in again.items() if rounds), default=wanted)
        if number and missing <= 0:
            break
        rows = assess(missing, number)
        assessed += rows.values()
        for name, batch in rows.items():
            filtered[name].append(kept(follow[name], batch))
    return Gathered(assessed, {name: _joined(batches) for name, batches in filtered.items() if batches}, {})


def raced(part: Filter, extra: int, follow: Mapping[str, TokenMethod], wanted: int, assess: Assess) -> Gathered:
    """The rows of the first `wanted` groups that hold, and of all that came before the last of them.

    Filters judge the groups of a round together, before anything is shown to the parts.
    """
    race, rounds = Race(wanted, extra), list[tuple[Rows, Rows]]()
    for number in range(_rounds(follow)):
        if not (begun := race.begin()):
            break
        rows = assess(len(begun), number)
        held = {name: judged(follow[name], batch) for name, batch in rows.items()}
        rounds.append((rows, held))
        for group, (ended, holds) in _outcomes(part, rows, held, len(begun)).items():
            since = begun[min(group, len(begun) - 1)]  # of one problem an experience may make more groups than one
            race.ends(Entry(since + ended, since, number, group, holds))
    first = race.first()
    assessed, filtered = list[TokenBatch](), {name: list[TokenBatch]() for name in follow}
    for number, (rows, held) in enumerate(rounds):
        came = [entry.group for entry in first if entry.number == number]
        good = [entry.group for entry in first if entry.number == number and entry.holds]
        for name, batch in rows.items():
            assessed.append(_of(batch, came))
            shown(follow[name], assessed[-1])
            filtered[name].append(_of(held[name], good))
    aborted = sum(len(batch) for rows, _ in rounds for batch in rows.values()) - sum(map(len, assessed))
    metrics = {"aborted": float(aborted), "full_after": first[-1].ended if first else 0.0}
    return Gathered(
        [b for b in assessed if len(b)], {name: _joined(batches) for name, batches in filtered.items() if batches},
        metrics,
    )  # fmt: skip


class Entry(NamedTuple):
    """A group: when it ended and had begun, in which round and as which of its groups, and whether it holds.

    Sorted by when they ended; of those that ended at once, who began first, and was sampled first, is the first.
    """

    ended: float
    begun: float
    number: int
    group: int
    holds: bool


class Race:
    """Which groups are begun when, and which are the first that hold.

    Two are needed and one more is begun. The second to end is dropped, and replaced then:

    >>> race = Race(wanted=2, extra=1)
    >>> race.begin()
    [0.0, 0.0, 0.0]
    >>> for group, (ended, holds) in enumerate([(9.0, True), (4.0, True), (5.0, False)]):
    ...     race.ends(Entry(ended, 0.0, 0, group, holds))
    >>> race.full, race.begin()
    (9.0, [5.0])
    >>> race.ends(Entry(5.0 + 3.0, 5.0, 1, 0, True))
    >>> race.full, [(entry.number, entry.group) for entry in race.first()]
    (8.0, [(0, 1), (0, 2), (1, 0)])
    """

    def __init__(self, wanted: int, extra: int) -> None:
        self.wanted, self.entries = wanted, list[Entry]()
        self.due = [0.0] * (wanted + extra)

    def begin(self) -> list[float]:
        """When the groups of the next round begin: at first all, then one for each that was dropped in time."""
        begun, self.due = sorted(when for when in self.due if when < self.full), []
        return begun

    def ends(self, entry: Entry) -> None:
        """Take in what came of a group."""
        self.entries.append(entry)
        if not entry.holds:
            self.due.append(entry.ended)

    @property
    def full(self) -> float:
        """When enough groups hold, of those that are known; inf before that."""
        first = self.first()
        return first[-1].ended if sum(entry.holds for entry in first) == self.wanted else inf

    def first(self) -> list[Entry]:
        """The groups in their order, up to the last that is needed; all of them where too few hold."""
        found, missing = list[Entry](), self.wanted
        for entry in sorted(self.entries):
            if missing:
                found.append(entry)
                missing -= entry.holds
        return found


def _rounds(follow: Mapping[str, TokenMethod]) -> int:
    return max((part.rounds for own in follow.values() for part in own.filters if part.resample), default=1)


def _groups(batches: list[TokenBatch]) -> int:
    return sum(len(torch.unique(b.group)) for b in batches)


def _joined(batches: list[TokenBatch]) -> TokenBatch:
    useful = [b for b in batches if len(b)]
    return concatenate(useful) if useful else batches[0]


def _of(batch: TokenBatch, groups: list[int]) -> TokenBatch:
    """The rows of these groups."""
    return batch.rows(torch.isin(batch.group, batch.group.new_tensor(groups)).nonzero()[:, 0])


def _outcomes(part: Filter, rows: Rows, held: Rows, count: int) -> dict[int, tuple[float, bool]]:
    """How long each group of a round took, and whether every player's filters keep rows of it.

    One of which no row is left, since nobody could make it, is dropped as it begins.
    """
    took = dict.fromkeys(range(count), 0.0)
    gone = set(took)
    for batch in rows.values():
        ends = part.ended(batch).tolist() if len(batch) else []
        for group, ended in zip(batch.group.tolist(), ends):
            took[group] = max(took[group], ended)
        gone -= {*batch.group.tolist()}
    for name, batch in rows.items():
        gone |= {*batch.group.tolist()} - {*held[name].group.tolist()}
    return {group: (ended, group not in gone) for group, ended in took.items()}
