"""Workers that only take time: what a flow would do with so many of them, before anything is built or rented.

Each order is answered after as many seconds as a law says. Under a `VirtualClock` that costs no time, so schedules of
64 workers are tried in seconds, faults included; under a `WallClock` the same workers really take as long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from etude.runtime.clock import Clock
from etude.runtime.orders import Cancel, Died, Done, Failed, Learn, Load, Order, Sample, Score


class Fault(StrEnum):
    """What may befall an order."""

    DIES = "dies"  # its worker, half way
    HANGS = "hangs"  # it is never answered
    SLOW = "slow"  # it takes a hundred times as long
    FAILS = "fails"
    OTHER_WEIGHTS = "other_weights"  # an update left other weights than those that come


@dataclass(frozen=True)
class Laws:
    """How long everything takes, in seconds, and what comes of it.

    Args:
        sample, score, learn: seconds of an order.
        values: the fields that come of such an order; of a step its `fingerprint`.
        load: seconds of bringing weights to a worker; `launch`: of starting one.
        fault: what befalls an order.
    """

    sample: Callable[[Sample], float]
    score: Callable[[Score], float]
    learn: Callable[[Learn], float]
    values: Callable[[Sample | Score | Learn], Mapping[str, Any]]
    load: float = 0.0
    launch: float = 0.0
    fault: Callable[[Order], Fault | None] = lambda order: None

    def seconds(self, order: Sample | Score | Learn | Load) -> float:
        """How long an order takes."""
        if isinstance(order, Load):
            return self.launch if order.launch else self.load
        if isinstance(order, Sample):
            return self.sample(order)
        return self.score(order) if isinstance(order, Score) else self.learn(order)


class Span(NamedTuple):
    """What a worker did, and when; `end` is when it was left, if it was."""

    worker: str
    order: Order
    begin: float
    end: float
    left: bool


@dataclass
class Simulated:
    """Workers that follow laws. `spans`: all that they did."""

    clock: Clock
    laws: Laws
    spans: list[Span] = field(default_factory=list)
    under_way: dict[int, int] = field(default_factory=dict)

    def do(self, order: Order) -> None:
        """Carry out an order: its report comes when its time is over."""
        now = self.clock.now()
        if isinstance(order, Cancel):
            place = self.under_way.pop(order.ticket)
            self.spans[place] = self.spans[place]._replace(end=now, left=True)
            return
        seconds, fault = self.laws.seconds(order), self.laws.fault(order)
        if fault is Fault.SLOW:
            seconds *= 100
        self.under_way[order.ticket] = len(self.spans)
        self.spans.append(Span(order.worker, order, now, now + seconds, fault in (Fault.DIES, Fault.HANGS)))
        if fault is Fault.DIES:
            self.clock.report(Died(order.worker, "a fault was put in"), seconds / 2)
        elif fault is Fault.FAILS:
            self.clock.report(Failed(order.ticket, "a fault was put in"), seconds)
        elif fault is not Fault.HANGS:
            self.clock.report(Done(order.ticket, self._values(order, fault)), seconds)

    def _values(self, order: Sample | Score | Learn | Load, fault: Fault | None) -> dict[str, Any]:
        if not isinstance(order, Load):
            return dict(self.laws.values(order))
        torn = "torn" if fault is Fault.OTHER_WEIGHTS else order.fingerprint
        return {"trained": order.trained, "fingerprint": torn}
