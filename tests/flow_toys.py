"""Runs of a scheduler with workers that only take time, watched from outside."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from etude.core.draws import Draw
from etude.runtime.clock import VirtualClock
from etude.runtime.crew import LEARN, SAMPLE, Worker
from etude.runtime.flow import Flow, Reason
from etude.runtime.orders import Cancel, Done, Learn, Load, Order, Sample, Score
from etude.runtime.rows import Row
from etude.runtime.scheduler import Scheduler
from etude.runtime.simulation import Laws, Simulated
from etude.runtime.store import Taken


def uniform(*address: str | int) -> float:
    """A number in [0, 1) that is always the same for an address."""
    return (Draw.at(0, *address).key % (1 << 53)) / (1 << 53)


def crew(samplers: int = 1, slots: int = 1 << 20, scorers: int = 0, score_slots: int = 1) -> list[Worker]:
    """So many workers, and a learner."""
    return [
        *(Worker(f"sampler {i}", SAMPLE, slots) for i in range(samplers)),
        *(Worker(f"scorer {i}", "reward", score_slots) for i in range(scorers)),
        Worker("learner", LEARN),
    ]


def answer_of(row: int) -> str:
    return f"answer {row}"


def reward_of(row: int) -> float:
    return 0.5 + uniform("reward", row)  # never 0: what timed out must not look like a reward


def keep_all(taken: Taken) -> Sequence[float]:
    return [1.0] * len(taken.rows)


def drop_some(share: float) -> Callable[[Taken], Sequence[float]]:
    """A filter that drops such a share of the groups, always the same ones."""
    return lambda taken: [float(uniform("group", taken.groups[0]) >= share)] * len(taken.rows)


def values(order: Sample | Score | Learn) -> dict[str, Any]:
    """What comes of an order."""
    if isinstance(order, Sample):
        return {"answer": answer_of(order.row)}
    return {"reward": reward_of(order.row)} if isinstance(order, Score) else {"fingerprint": f"weights {order.step}"}


def scheduler_of(
    flow: Flow, workers: Sequence[Worker], judge: Callable[[Taken], Sequence[float]] = keep_all
) -> Scheduler:
    """A scheduler whose rows have an answer, and a reward if anybody scores."""
    scored = any(w.role == "reward" for w in workers)
    fields = ("answer", "reward") if scored else ("answer",)
    return Scheduler(
        flow, copy.deepcopy(list(workers)), scores={"reward": ("answer",)} if scored else {}, judged=fields[1:],
        learned=fields, judge=judge, tokens=lambda group: 1.0,
    )  # fmt: skip


@dataclass
class Seen:
    """What somebody who watches knows, and goes back to with a checkpoint."""

    learned: list[Learn] = field(default_factory=list)
    finished_at: list[float] = field(default_factory=list)
    had: Counter[tuple[str, int]] = field(default_factory=Counter)
    dropped: dict[int, Reason | None] = field(default_factory=dict)


class Watched:
    """A run that is watched: every order, every row that the store hands over, every row that is dropped."""

    def __init__(self, scheduler: Scheduler, laws: Laws) -> None:
        self.scheduler, self.clock = scheduler, VirtualClock()
        self.simulated, self.seen, self.events = Simulated(self.clock, laws), Seen(), 0
        self.begun: list[Sample] = []
        self.away: dict[str, int] = {}
        """Who was told to start and has not said that it is there, with the ticket."""
        self._watch()

    def _watch(self) -> None:
        store, rows = self.scheduler.store, self.scheduler.rows
        get, give_back, drop = store.get, store.give_back, rows.drop

        def watched_get(task: str, n: int) -> Taken:
            taken = get(task, n)
            self.seen.had.update((task, row) for row in taken.rows)
            return taken

        def watched_give_back(task: str, given: list[int]) -> None:
            self.seen.had.subtract((task, row) for row in given)
            give_back(task, given)

        def watched_drop(row: Row, reason: Reason | None) -> bool:
            assert row.id not in self.seen.dropped
            self.seen.dropped[row.id] = reason
            return drop(row, reason)

        store.get, store.give_back, rows.drop = watched_get, watched_give_back, watched_drop  # type: ignore[method-assign, assignment]

    def step(self) -> None:
        """What `drive` does once."""
        self.events += 1
        before = self.scheduler.finished
        for order in self.scheduler.advance(self.clock.now()):
            self._check(order)
            self.simulated.do(order)
        report = None if self.scheduler.done else self.clock.wait(self.scheduler.due)
        while report is not None:
            if isinstance(report, Done):
                self.away = {worker: ticket for worker, ticket in self.away.items() if ticket != report.ticket}
            self.scheduler.report(report, self.clock.now())
            report = self.clock.wait(self.clock.now())
        if self.scheduler.finished > before:
            self.seen.finished_at.append(self.clock.now())

    def run(self, most: int = 200_000) -> Watched:
        """To the end, which must come."""
        while not self.scheduler.done:
            assert self.events < most, f"no end after {most} events: {self.scheduler.ledger.counts}"
            self.step()
        return self

    def _check(self, order: Order) -> None:
        bound = self.scheduler.flow.bound
        if isinstance(order, Load):
            held = [h.order for h in self.scheduler.crew.held.values() if isinstance(h.order, Load)]
            assert [h.worker for h in held].count(order.worker) == 1, "weights are brought once at a time"
            self.away |= {order.worker: order.ticket} if order.launch else {}
        elif not isinstance(order, Cancel):
            assert order.worker not in self.away, "asked although it is not there"
        if isinstance(order, Sample):
            self.begun.append(order)
            assert order.step - self.scheduler.finished <= bound, "begun too early"
            assert order.step - order.trained <= bound, "begun with weights that are too old"
        elif isinstance(order, Score):
            assert order.values == {"answer": answer_of(order.row)}
            under_way = sum(self.scheduler.ledger.counts[state] for state in ("queued", "running"))
            assert self.scheduler.flow.streaming or not under_way, "a plain loop scores when all rows have ended"
        elif isinstance(order, Learn):
            self._check_batch(order, bound)
            self.seen.learned.append(order)

    def _check_batch(self, order: Learn, bound: int) -> None:
        assert order.values["answer"] == [answer_of(row) for row in order.rows]
        if "reward" in order.values:
            assert order.values["reward"] == [reward_of(row) for row in order.rows]
        assert all(0 <= order.step - trained <= bound for trained in order.values["trained"])
        assert not any(row in self.seen.dropped for row in order.rows)

    def check(self) -> None:
        """What holds of a run that has ended, whatever happened in it."""
        scheduler, seen = self.scheduler, self.seen
        assert max(seen.had.values(), default=0) <= 1, "a row was had twice for one task"
        last = {order.step: order for order in seen.learned}  # a step that began anew after a kill counts once
        rows = [row for order in last.values() for row in order.rows]
        assert len(rows) == len(set(rows)) == scheduler.ledger.counts["accepted"]
        size = scheduler.flow.size
        for order in last.values():
            assert order.rows == sorted(order.rows)
            for group in set(order.groups):
                missing = set(range(group * size, (group + 1) * size)) - set(order.rows)
                gone = {seen.dropped[row] for row in missing}
                assert gone <= {*Reason} - {Reason.STALE}, "part of a group was too old"
        counts = scheduler.ledger.counts
        assert sum(counts.values()) == scheduler.opened * size
        assert not any(counts[state] for state in ("queued", "running", "generated", "rewarded"))
        assert counts["dropped"] == sum(scheduler.ledger.reasons.values()) == sum(
            reason is not None for reason in seen.dropped.values()
        )  # fmt: skip
        assert not scheduler.rows.known and not len(scheduler.store)
        assert not any(w.busy or w.tokens for w in scheduler.crew.workers.values())

    # Kills

    def saved(self) -> tuple[str, Seen]:
        """A checkpoint, as text."""
        return json.dumps(self.scheduler.state_dict()), copy.deepcopy(self.seen)

    def resumed(self, workers: Sequence[Worker], checkpoint: tuple[str, Seen]) -> Watched:
        """The run in a new process, from a checkpoint: nobody is there, and the clock begins anew."""
        again = Watched(scheduler_of(self.scheduler.flow, workers, self.scheduler.judge), self.simulated.laws)
        again.seen = copy.deepcopy(checkpoint[1])
        again.scheduler.load_state_dict(json.loads(checkpoint[0]))
        again.scheduler.restarted()
        return again
