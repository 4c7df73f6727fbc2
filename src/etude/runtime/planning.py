"""How many workers each stage of a step gets, from how long it takes with so many (AsyncFlow's planner, 2507.01663)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from etude.core.errors import ConfigError


class Allocation(NamedTuple):
    """Workers of each stage, and what the slowest stage takes with them."""

    workers: dict[str, int]
    seconds: float


def allocate(seconds: Mapping[str, Sequence[float]], workers: int) -> Allocation:
    """The fewest workers for each stage with which the slowest stage is as fast as it can be.

        minimise  max_j t_j(w_j)   over  w_j >= 1,  sum_j w_j <= workers

    Stages that run at the same time, on rows of different steps, take as long as the slowest of them. Exact, also where
    a worker more makes a stage slower: the smallest of all times that enough workers can keep is looked for.

    Args:
        seconds: of a step, for each stage; entry w - 1 with w workers. A stage can have as many as it has entries.
        workers: there are, for all stages together.

    Raises: ConfigError if there are fewer workers than stages, or a stage without a time.

    >>> allocate({"sample": [8.0, 4.0, 2.7, 2.0], "learn": [3.0, 1.6, 1.1]}, workers=4)
    Allocation(workers={'sample': 3, 'learn': 1}, seconds=3.0)
    """
    if workers < len(seconds) or not seconds or not all(seconds.values()):
        raise ConfigError(
            f"{len(seconds)} stages ({', '.join(seconds) or 'none'}) need a worker each and a time each, got {workers} "
            f"workers and times of {', '.join(name for name, times in seconds.items() if times) or 'no stage'}."
        )
    for deadline in sorted({t for times in seconds.values() for t in times}):
        fewest = {
            name: next((w for w, t in enumerate(times, start=1) if t <= deadline), workers + 1)
            for name, times in seconds.items()
        }
        if sum(fewest.values()) <= workers:
            return Allocation(fewest, deadline)
    raise ConfigError("A stage has a time that is not a number.")
