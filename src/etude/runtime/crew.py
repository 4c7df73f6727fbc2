"""The workers of a run: who is there, with which weights, what each was asked for, and until when it may take."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from etude.core.errors import ConfigError, WorkerError
from etude.runtime.orders import Cancel, Learn, Load, Order, Score, from_json, to_json

SAMPLE, LEARN = "sample", "learn"
"""Roles of those who make rows and of who learns; who scores has the name of its task as its role."""


@dataclass
class Worker:
    """Somebody who carries out orders.

    Args:
        role: SAMPLE, LEARN, or a task that scores.
        slots: orders at a time.
        trained: training steps that its weights have had.
        up: whether it has said that it is there.
        faults: how often it died, did not answer, or came with other weights than it was told to load.
        tokens: outstanding, as expected, of all rows that it is making.
        busy: tickets of its orders; `loading`: that of the weights which are on their way to it.
    """

    name: str
    role: str
    slots: int = 1
    trained: int = 0
    up: bool = False
    faults: int = 0
    tokens: float = 0.0
    busy: set[int] = field(default_factory=set)
    loading: int | None = None


@dataclass
class Held:
    """An order that is waited for, without its values. `late`: another worker was asked too."""

    order: Any
    since: float
    deadline: float
    tokens: float = 0.0
    late: bool = False


class Crew:
    """Gives orders, keeps those that are waited for, and starts workers again.

    Args:
        workers: who there is.
        tasks: that score rows.
        fingerprint: of the weights at the start of the run.

    Raises: ConfigError if two workers have one name, or somebody is missing.
    """

    def __init__(
        self, workers: Iterable[Worker], tasks: Iterable[str], *, patience: float, restarts: int, fingerprint: str
    ) -> None:  # fmt: skip
        listed = [Worker(w.name, w.role, w.slots) for w in workers]
        self.workers = {w.name: w for w in listed}
        self.roles = {role: [w for w in listed if w.role == role] for role in (SAMPLE, *tasks, LEARN)}
        self.patience, self.restarts, self.fingerprint = patience, restarts, fingerprint
        placed = sum(map(len, self.roles.values()))
        if not len(self.workers) == len(listed) == placed or not all(self.roles.values()) or len(self.roles[LEARN]) > 1:
            raise ConfigError(
                f"A run needs workers with different names for each of {', '.join(self.roles)}, and one alone to "
                f"{LEARN}; got {', '.join(f'{w.name} ({w.role})' for w in listed) or 'none'}."
            )
        self.held: dict[int, Held] = {}
        self.deadlines: list[tuple[float, int]] = []
        """A heap of when each order is overdue, some of them no longer waited for."""
        self.next_ticket = 0
        self.orders: list[Order] = []
        self.absent = list(self.workers)
        """Who is not there, and has not been told to come."""

    # Orders

    def issue(self, order: Order, now: float, seconds: float, tokens: float = 0.0) -> int:
        """Give an order to its worker; its ticket, which is put in."""
        ticket, self.next_ticket = self.next_ticket, self.next_ticket + 1
        order = order._replace(ticket=ticket)
        self.orders.append(order)
        kept = order._replace(values={}) if isinstance(order, (Score, Learn)) else order
        self.held[ticket] = Held(kept, now, now + seconds, tokens)
        heapq.heappush(self.deadlines, (now + seconds, ticket))
        self._busy(ticket, self.held[ticket])
        return ticket

    def _busy(self, ticket: int, held: Held) -> None:
        """Whoever carries out an order has a slot less; weights come while a worker goes on."""
        worker = self.workers.get(held.order.worker)
        if worker is not None and isinstance(held.order, Load):
            worker.loading = ticket
        elif worker is not None:
            worker.busy.add(ticket)
            worker.tokens += held.tokens

    def finish(self, ticket: int) -> Held | None:
        """Stop waiting for an order; None if it is not waited for."""
        held = self.held.pop(ticket, None)
        worker = self.workers.get(held.order.worker) if held is not None else None
        if held is not None and worker is not None:
            worker.busy.discard(ticket)
            worker.tokens -= held.tokens
            worker.loading = None if worker.loading == ticket else worker.loading
        return held

    def cancel(self, ticket: int) -> None:
        """Take an order back."""
        held = self.finish(ticket)
        assert held is not None, "only orders that are waited for are taken back"
        self.orders.append(Cancel(ticket, held.order.worker))

    def free(self, role: str) -> int:
        """How many more orders those of a role could take."""
        return sum(w.slots - len(w.busy) for w in self.roles[role] if w.up)

    def least(self, role: str, trained: int = 0, without: Collection[str] = ()) -> Worker | None:
        """Who has the fewest tokens outstanding, of those with a free slot and weights that are new enough."""
        free = [w for w in self.roles[role] if w.up and len(w.busy) < w.slots and w.trained >= trained]
        able = [w for w in free if w.name not in without] if without else free
        return min(able, key=lambda w: (w.tokens, len(w.busy)), default=None)

    # Time

    @property
    def due(self) -> float:
        """When the next order is overdue; `math.inf` if none is waited for."""
        while self.deadlines and self._outdated(*self.deadlines[0]):
            heapq.heappop(self.deadlines)
        return self.deadlines[0][0] if self.deadlines else math.inf

    def _outdated(self, deadline: float, ticket: int) -> bool:
        return ticket not in self.held or self.held[ticket].deadline != deadline

    def extend(self, held: Held, deadline: float) -> None:
        """Wait longer for an order: another worker was asked too."""
        held.late, held.deadline = True, deadline
        heapq.heappush(self.deadlines, (deadline, held.order.ticket))

    def overdue(self, now: float) -> list[Held]:
        """The orders whose time is over, in the order in which they were given."""
        return [h for h in self.held.values() if h.deadline <= now] if self.due <= now else []

    # Who is there, with which weights

    def refresh(self, now: float, trained: int) -> None:
        """Start who is absent, and send the newest weights to samplers that have older ones."""
        for name in self.absent:
            self.issue(Load(0, name, trained, self.fingerprint, launch=True), now, self.patience)
        self.absent = []
        for w in self.roles[SAMPLE]:
            if w.up and w.trained < trained and w.loading is None:
                self.issue(Load(0, w.name, trained, self.fingerprint, launch=False), now, self.patience)

    def loaded(self, order: Load, values: Mapping[str, Any]) -> None:
        """A worker has weights; they are refused if they are not those that it was told to load."""
        worker, told, has = self.workers[order.worker], (order.trained, order.fingerprint), _weights(values)
        if has == told:
            worker.up, worker.trained = True, order.trained
            return
        if order.launch:
            self.absent.append(worker.name)
        self.fault(worker, f"it came with the weights {has[1]!r} of step {has[0]} instead of {told[1]!r} of {told[0]}")

    def lose(self, name: str) -> list[Held]:
        """A worker is gone, and will be started again: what it was doing."""
        lost = [h for h in self.held.values() if h.order.worker == name]
        for held in lost:
            self.finish(held.order.ticket)
        self.workers[name].up = False
        self.absent += [name] if name not in self.absent else []
        return lost

    def fault(self, worker: Worker, why: str) -> None:
        """Count a fault. Raises WorkerError after too many."""
        worker.faults += 1
        if worker.faults > self.restarts:
            raise WorkerError(
                f"{worker.name} failed {worker.faults} times, the last time because {why}. It is started again at most "
                f"{self.restarts} times (Flow.restarts); what was reported until then can be saved and gone on from."
            )

    def unchanged(self, trained: int) -> None:
        """A step that learned nothing is finished: weights of step `trained` are those of the next one too."""
        for worker in self.workers.values():
            worker.trained += worker.up and worker.trained == trained

    def dismiss(self) -> list[Held]:
        """All workers are gone, because the run begins anew from a checkpoint: all that they were doing."""
        lost = list(self.held.values())
        for held in lost:
            self.finish(held.order.ticket)
        for worker in self.workers.values():
            worker.up = False
        self.absent, self.orders = list(self.workers), []
        return lost

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Who is there, and all orders that are waited for, as JSON values."""
        return {
            "workers": [[w.name, w.trained, w.up, w.faults] for w in self.workers.values()],
            "held": [[to_json(h.order), h.since, h.deadline, h.tokens, h.late] for h in self.held.values()],
            "next_ticket": self.next_ticket, "fingerprint": self.fingerprint, "absent": list(self.absent),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to where `state_dict` was taken. Workers that were not there then are absent.

        Orders of workers that are no longer there are kept, for `dismiss`.
        """
        known = {name: rest for name, *rest in state["workers"]}
        for worker in self.workers.values():
            worker.trained, worker.up, worker.faults = known.get(worker.name, (0, False, 0))
            worker.busy, worker.tokens, worker.loading = set(), 0.0, None
        self.held, self.orders = {}, []
        for order, since, deadline, tokens, late in state["held"]:
            held = self.held[order[1]] = Held(from_json(order), since, deadline, tokens, late)
            self._busy(order[1], held)
        self.deadlines = sorted((h.deadline, ticket) for ticket, h in self.held.items())
        self.next_ticket, self.fingerprint = state["next_ticket"], state["fingerprint"]
        self.absent = [*state["absent"], *(n for n in self.workers if n not in known)]


def _weights(values: Mapping[str, Any]) -> tuple[Any, Any]:
    return values.get("trained"), values.get("fingerprint")
