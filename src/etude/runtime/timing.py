"""How long episodes take together: workers on the virtual clock, each of which takes the next thing when it is free.

What is taken up, and how long that takes, is said when a worker is free, so it may depend on the time by then, and on
all that was finished. Nothing waits: only the clock's time passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from etude.core.errors import ConfigError
from etude.runtime.clock import VirtualClock
from etude.runtime.orders import Done


class Finished(NamedTuple):
    """Something that a worker did: the number of it, from 0 in the order in which they were begun, and when."""

    number: int
    worker: int
    begun: float
    ended: float


def finishing(
    take: Callable[[int], float | None], workers: int, clock: VirtualClock, until: float = float("inf")
) -> Iterator[Finished]:
    """What workers finish, in the order in which they do, those of the same time in the order they were begun.

    Args:
        take: seconds that the thing of this number takes, asked when a worker takes it up; None: there is none left.
        until: the time after which nothing finishes any more.

    Two workers, things of 3, 1 and 1 seconds: the third is done before the first.

    >>> seconds = [3.0, 1.0, 1.0]
    >>> done = finishing(lambda n: seconds[n] if n < 3 else None, 2, VirtualClock())
    >>> [(f.number, f.worker, f.ended) for f in done]
    [(1, 1, 1.0), (2, 1, 2.0), (0, 0, 3.0)]

    Raises: ConfigError without workers.
    """
    if workers < 1:
        raise ConfigError(f"finishing: workers must be at least 1, got {workers}.")
    free, begun, number = [*range(workers)], dict[int, tuple[int, float]](), 0
    while True:
        while free and (seconds := take(number)) is not None:
            begun[number] = free.pop(0), clock.now()
            clock.report(Done(number, {}), seconds)
            number += 1
        report = clock.wait(until) if begun else None
        if report is None:
            return
        assert isinstance(report, Done)
        worker, since = begun.pop(report.ticket)
        free = sorted([*free, worker])
        yield Finished(report.ticket, worker, since, clock.now())


def makespan(seconds: Sequence[float], workers: int, clock: VirtualClock | None = None) -> float:
    """When the last of these is done, from now on: what a batch waits for that needs them all.

    >>> makespan([3.0, 1.0, 1.0, 2.0], 2), makespan([3.0, 1.0, 1.0, 2.0], 4), makespan([], 4)
    (4.0, 3.0, 0.0)
    """
    clock = clock or VirtualClock()
    begun = clock.now()
    for _ in finishing(lambda n: seconds[n] if n < len(seconds) else None, workers, clock):
        pass
    return clock.now() - begun
