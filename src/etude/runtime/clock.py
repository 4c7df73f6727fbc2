"""Where a scheduler's time comes from, and how it hears of what happened.

A scheduler asks the time, waits for the next report until something is due, and never sleeps. Under `WallClock` reports
come from threads and processes. Under `VirtualClock` whoever works says how long it takes (`after`), and time jumps to
the next report: a run of hours with 64 workers takes seconds, and has the same order of events each time.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from etude.core.errors import InvariantError
from etude.runtime.orders import Order, Report, from_json, to_json

if TYPE_CHECKING:
    from etude.runtime.scheduler import Scheduler


class Clock(Protocol):
    """Time in seconds, from any beginning, never backwards; and the reports of those who work."""

    def now(self) -> float:
        """Seconds."""

    def report(self, report: Report, after: float = 0.0) -> None:
        """Say that something happened, or will have happened in so many seconds."""

    def wait(self, until: float) -> Report | None:
        """The next report; None if it is `until` (`math.inf`: however long it takes) before there is one."""


class VirtualClock:
    """Time that passes only while a scheduler waits. Reports of the same time come in the order they were made.

    >>> from etude.runtime.orders import Died
    >>> clock = VirtualClock()
    >>> clock.report(Died("second"), after=2.0)
    >>> clock.report(Died("first"), after=1.0)
    >>> clock.wait(until=10.0).worker, clock.now()
    ('first', 1.0)
    >>> clock.wait(until=1.5), clock.now()
    (None, 1.5)
    """

    def __init__(self) -> None:
        self.time, self.reported = 0.0, 0
        self.coming: list[tuple[float, int, Report]] = []

    def now(self) -> float:
        """Seconds since the clock was made."""
        return self.time

    def report(self, report: Report, after: float = 0.0) -> None:
        """A report in so many seconds, at least 0."""
        heapq.heappush(self.coming, (self.time + max(0.0, after), self.reported, report))
        self.reported += 1

    def wait(self, until: float) -> Report | None:
        """The next report, if it is not after `until`. Raises InvariantError for a wait that would have no end."""
        if self.coming and self.coming[0][0] <= until:
            self.time, _, report = heapq.heappop(self.coming)
            return report
        if until == float("inf"):
            raise InvariantError("A scheduler waits for ever: nothing will be reported and nothing is due.")
        self.time = max(self.time, until)
        return None

    def state_dict(self) -> dict[str, Any]:
        """The time, and all that will be reported, as JSON values."""
        coming = [[when, number, to_json(report)] for when, number, report in sorted(self.coming, key=lambda c: c[:2])]
        return {"time": self.time, "reported": self.reported, "coming": coming}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to where `state_dict` was taken."""
        self.time, self.reported = state["time"], state["reported"]
        self.coming = [(when, number, from_json(report)) for when, number, report in state["coming"]]  # type: ignore[misc]


class WallClock:
    """The time that really passes (`time.monotonic`: nobody can set it back). Any thread may report."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.coming: list[tuple[float, int, Report]] = []
        self.reported = 0

    def now(self) -> float:
        """Seconds, of `time.monotonic`."""
        return time.monotonic()

    def report(self, report: Report, after: float = 0.0) -> None:
        """A report now, or in so many seconds."""
        with self.changed:
            heapq.heappush(self.coming, (time.monotonic() + max(0.0, after), self.reported, report))
            self.reported += 1
            self.changed.notify()

    def wait(self, until: float) -> Report | None:
        """The next report, or None when it is `until`."""
        with self.changed:
            while True:
                now = time.monotonic()
                if self.coming and self.coming[0][0] <= now:
                    return heapq.heappop(self.coming)[2]
                if until <= now:
                    return None
                due = min(until, self.coming[0][0]) if self.coming else until
                self.changed.wait(None if due == float("inf") else due - now)


def drive(scheduler: Scheduler, clock: Clock, do: Callable[[Order], None]) -> None:
    """Go on until all steps are finished: `do` hands an order to its worker, and comes back at once."""
    while not scheduler.done:
        for order in scheduler.advance(clock.now()):
            do(order)
        report = None if scheduler.done else clock.wait(scheduler.due)
        while report is not None:  # what happened at once is taken in at once
            scheduler.report(report, clock.now())
            report = clock.wait(clock.now())
