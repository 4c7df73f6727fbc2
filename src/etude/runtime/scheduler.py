"""The scheduler of a run whose rows are made, scored and learned from by different workers.

It is told what happened (`report`) and says what is to be done now (`advance`), as the row of ROLL (2506.06122) does it
sample by sample, within the bound on staleness of AsyncFlow (2507.01663). It never sleeps, has no threads and asks
nobody the time, so a simulated clock drives the same object as the real one.

    k: the next step that learns, f: finished steps, G: groups of a step, ahead = min(f + bound, last step) - k + 1
    groups that are alive <= G ahead + extra          a row of step j is begun with weights of step j - bound or later
    rows learned from in step k were made with weights of step k - bound or later; older ones are dropped
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from etude.core.errors import InvariantError, WorkerError
from etude.runtime.crew import LEARN, SAMPLE, Crew, Held, Worker
from etude.runtime.flow import Flow, Reason, RowState
from etude.runtime.orders import Died, Done, Failed, Learn, Load, Order, Report, Sample, Score
from etude.runtime.rows import FILTER, TRAINED, WEIGHT, Row, Rows, tasks_of
from etude.runtime.store import Taken


class Scheduler:
    """What is to be done next, for rows from prompts to updates.

    Args:
        flow: what may run ahead of what.
        workers: who there is.
        scores: the fields that each scoring task reads of a row; it adds fields of its own.
        judged: the fields that `judge` reads.
        learned: the fields that are learned from, besides `trained` and `weight`.
        judge: weights [n] of the rows of a whole group; a row of weight 0 is dropped.
        tokens: expected of each row of a group, for who has the fewest outstanding.
        fingerprint: of the weights at the start.
    """

    def __init__(
        self, flow: Flow, workers: Iterable[Worker], *, scores: Mapping[str, Sequence[str]], judged: Sequence[str],
        learned: Sequence[str], judge: Callable[[Taken], Sequence[float]], tokens: Callable[[int], float],
        fingerprint: str = "",
    ) -> None:  # fmt: skip
        self.flow, self.scores, self.judge, self.tokens = flow, tuple(scores), judge, tokens
        self.crew = Crew(workers, scores, patience=flow.patience, restarts=flow.restarts, fingerprint=fingerprint)
        self.rows = Rows(tasks_of(scores, judged, learned), self.crew.cancel)
        self.store, self.ledger = self.rows.store, self.rows.ledger
        self.batch: Taken | None = None
        """What is being learned from."""
        self.opened = self.finished = self.taken = 0
        """Groups that were begun; steps that are finished, and those whose rows were handed to the learner."""
        self.lost = self.wave = 0
        """Since then: groups that were lost to filters or faults, and rounds of a plain loop."""
        self.lags: Counter[int] = Counter()
        self.events: Counter[str] = Counter()
        self.now = 0.0

    # What a driver calls

    @property
    def done(self) -> bool:
        """Whether all steps are finished."""
        return self.finished == self.flow.steps

    @property
    def due(self) -> float:
        """When to call `advance` again at the latest. Raises InvariantError if nothing would ever happen."""
        due = self.crew.due
        if due == math.inf and not self.done:
            raise InvariantError(
                f"Nothing is under way in step {self.taken}, and it lacks rows. Does every task report the fields that "
                f"the others read? There are: {', '.join(f'{n} {state}' for state, n in self.ledger.counts.items())}."
            )
        return due

    def advance(self, now: float) -> list[Order]:
        """All that is to be done now. Raises WorkerError where somebody failed too often."""
        self.now = now
        for held in self.crew.overdue(now):
            if held.order.ticket in self.crew.held:
                self._overdue(held)
        self._judge()
        while self._take():
            pass
        self.crew.refresh(now, self.finished)
        self._open()
        self._sample()
        self._score()
        self._learn()
        orders, self.crew.orders = self.crew.orders, []
        return orders

    def report(self, report: Report, now: float) -> None:
        """Take in what happened. An answer that nobody waits for is counted and left aside."""
        self.now = now
        if isinstance(report, Died):
            self._died(report.worker, report.why or "its process ended")
            return
        held = self.crew.finish(report.ticket)
        if held is None:
            self.events["late_answers"] += 1
        elif isinstance(report, Done):
            self._answered(held.order, report.values)
        else:
            self._failed(held.order, report)

    def restarted(self) -> None:
        """After `load_state_dict` in a new process: nobody is there, so all that was under way is asked for again."""
        for held in self.crew.dismiss():
            if isinstance(held.order, (Sample, Score)):
                task = held.order.task if isinstance(held.order, Score) else ""
                self.rows.again(self.rows[held.order.row], held.order.ticket, task)

    def _answered(self, order: Order, values: Mapping[str, Any]) -> None:
        if isinstance(order, Load):
            self.crew.loaded(order, values)
        elif isinstance(order, Learn):
            self.batch, self.crew.fingerprint = None, values["fingerprint"]
            self.finished += 1
        elif isinstance(order, (Sample, Score)):
            row = self.rows[order.row]
            del row.tickets[order.ticket]
            if isinstance(order, Sample):  # the first answer counts
                self.rows.leave(row)
                row.trained, row.scores = order.trained, set(self.scores)
                self.rows.move(row, RowState.GENERATED)
            else:
                row.scores.discard(order.task)
            self.store.put(row.id, values)
            if not row.scores:
                self.rows.move(row, RowState.REWARDED)
                self.store.put(row.id, {TRAINED: row.trained})

    # Rows

    def _open(self) -> None:
        """Begin as many groups as may be."""
        room = self._room()
        self.wave += not self.flow.streaming and room > 0
        for _ in range(room):
            step = self.taken + max(0, len(self.rows.groups) - self.flow.extra) // self.flow.groups
            self.rows.open(self.opened, step, self.flow.size)
            self.opened += 1

    def _room(self) -> int:
        """How many groups may be begun."""
        flow, alive, ahead = self.flow, len(self.rows.groups), self.flow.ahead(self.finished, self.taken)
        if flow.streaming:
            return flow.room(ahead, alive, self.lost)
        if not ahead or self.wave == flow.rounds or self.store.waiting(LEARN) < alive:
            return 0
        return flow.groups - alive

    def _sample(self) -> None:
        """Give rows to whoever has the fewest tokens outstanding."""
        free, rest = self.crew.free(SAMPLE), []
        for place, number in enumerate(self.rows.queue):
            if not free:
                rest += self.rows.queue[place:]
                break
            row = self.rows[number]
            step = self.rows.groups[row.group].step
            others = [self.crew.held[t].order.worker for t in row.tickets]
            worker = self.crew.least(SAMPLE, max(step, self.taken) - self.flow.bound, others)
            if worker is None:
                rest.append(number)
                continue
            order = Sample(0, worker.name, number, row.group, step, worker.trained)
            ticket = self.crew.issue(order, self.now, self.flow.row_seconds, self.tokens(row.group))
            row.tickets[ticket], row.queued = worker.trained, False
            self.rows.move(row, RowState.RUNNING)
            free -= 1
        self.rows.queue = rest

    def _score(self) -> None:
        """Give rows to whoever scores, as soon as they ended; in a plain loop when all have."""
        if not self.flow.streaming and self.ledger.counts[RowState.QUEUED] + self.ledger.counts[RowState.RUNNING]:
            return
        for task in self.scores:
            while (worker := self.crew.least(task)) and (taken := self.store.get(task, 1)).rows:
                values = {name: column[0] for name, column in taken.values.items()}
                row = self.rows[taken.rows[0]]
                order = Score(0, worker.name, task, row.id, values)
                row.tickets[self.crew.issue(order, self.now, self.flow.score_seconds)] = row.trained

    def _judge(self) -> None:
        """Let the filter act on groups that are whole."""
        while (taken := self.store.get(FILTER, 1)).rows:
            weights = dict(zip(taken.rows, self.judge(taken), strict=True))
            for number in [n for n, weight in weights.items() if weight == 0]:
                self._drop(self.rows[number], Reason.FILTERED)
            for number in [n for n, weight in weights.items() if weight != 0]:
                self.rows.move(self.rows[number], RowState.ACCEPTED)
                self.store.put(number, {WEIGHT: weights[number]})

    def _drop(self, row: Row, reason: Reason | None) -> None:
        gone = self.rows.drop(row, reason)
        self.lost += gone and reason is not None and reason.counts

    # Steps

    def _take(self) -> bool:
        """Hand the rows of the next step to the learner, if they are there; True if there were none to be had."""
        accepted = self.store.waiting(LEARN)
        if self.batch is not None or self.taken == self.flow.steps:
            return False
        if accepted < self.flow.groups and (accepted < len(self.rows.groups) or self._room() > 0):
            return False
        if accepted:
            self.batch = self.store.get(LEARN, min(accepted, self.flow.groups))
            self.lags.update(self.rows.learned(self.batch.rows, self.taken, self.flow.bound))
        else:
            self.events["empty_steps"] += 1
            self.crew.unchanged(self.finished)
            self.finished += 1
        self.taken, self.lost, self.wave = self.taken + 1, 0, 0
        self._age()
        return not accepted

    def _age(self) -> None:
        """Drop what is too old for the next step, and abort what there is no step for."""
        over, waits = self.taken == self.flow.steps, self.flow.ahead(self.finished, self.taken) > 0
        oldest = self.taken - self.flow.bound
        for number in list(self.rows.groups):
            rows = self.rows.of(number)
            unneeded = over or (not waits and any(row.state is not RowState.ACCEPTED for row in rows))
            if unneeded or any(self.rows.stale(row, oldest) for row in rows):
                for row in rows:
                    self._drop(row, None if unneeded else Reason.STALE)

    def _learn(self) -> None:
        learner = self.crew.least(LEARN)
        if self.batch is not None and learner is not None:
            self.crew.issue(Learn(0, learner.name, self.taken - 1, *self.batch), self.now, self.flow.patience)

    # Faults

    def _failed(self, order: Order, report: Failed) -> None:
        if isinstance(order, (Sample, Score)):
            row = self.rows[order.row]
            del row.tickets[order.ticket]
            self._drop(row, Reason.FAULT if isinstance(order, Sample) else Reason.SCORE_FAILED)
        else:
            self._died(order.worker, report.why)

    def _overdue(self, held: Held) -> None:
        order = held.order
        if isinstance(order, Sample) and not held.late and self.flow.row_seconds < self.flow.patience:
            self.crew.extend(held, held.since + self.flow.patience)
            self.events["stragglers"] += 1
            self.rows.enqueue(self.rows[order.row])
        elif isinstance(order, Score):
            for lost in self.crew.lose(order.worker):  # what else it was scoring is not to blame
                self.rows.again(self.rows[lost.order.row], lost.order.ticket, order.task)
            self._drop(self.rows[order.row], Reason.SCORE_TIMED_OUT)
        else:
            did = f"it did not answer within {self.now - held.since:.4g} s ({type(order).__name__.lower()})"
            self._died(order.worker, did)

    def _died(self, name: str, why: str) -> None:
        """Rows that a worker was making are begun anew; what it was scoring is dropped, as it may be what ended it."""
        worker = self.crew.workers[name]
        if worker.role == LEARN:
            raise WorkerError(f"The run stops in step {self.taken}: {name} is gone, because {why}. Resume it.")
        self.events["deaths"] += 1
        lost = [held.order for held in self.crew.lose(name)]
        for order in lost:
            if isinstance(order, Score):
                self._failed(order, Failed(order.ticket, why))
            elif isinstance(order, Sample):
                self.rows.again(self.rows[order.row], order.ticket)
        if not any(isinstance(order, Score) for order in lost):
            self.crew.fault(worker, why)

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """All that the next decision depends on, at any moment: JSON values, and what is in the store."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return {
            "crew": self.crew.state_dict(), "rows": self.rows.state_dict(), "numbers": numbers,
            "batch": None if self.batch is None else list(self.batch),
            "lags": [[lag, count] for lag, count in self.lags.items()], "events": dict(self.events),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to where `state_dict` was taken. In a new process, `restarted` is next."""
        self.crew.load_state_dict(state["crew"])
        self.rows.load_state_dict(state["rows"])
        self.batch = None if state["batch"] is None else Taken(*state["batch"])
        self.lags, self.events = Counter(dict(state["lags"])), Counter(state["events"])
        for name in _NUMBERS:
            setattr(self, name, state["numbers"][name])


_NUMBERS = ("opened", "finished", "taken", "lost", "wave")
