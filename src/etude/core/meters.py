"""What an answer took: simulated seconds, money and tokens, as environments and tools say themselves.

An environment, or a function that is called as a tool, says in the middle of its work what that takes:

    from etude.core.meters import spend

    def ask(question: str) -> str:
        \"\"\"Ask a larger model.\"\"\"
        spend(seconds=2.5, cost=0.003, tokens=40)
        return "..."

The rollout adds up what is spent in a turn, also in worker processes, and writes it to the turn's segment. Nothing
waits: seconds are those that would pass, and `runtime/timing.py` has them pass on the virtual clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, NamedTuple

from etude.core.episodes import Episode, Segment
from etude.core.errors import ConfigError

Quantity = Literal["seconds", "cost", "tokens"]


class Used(NamedTuple):
    """What something took.

    Args:
        seconds: simulated ones.
        cost: money, in any unit.
        tokens: of other models; those of the policy are counted elsewhere.

    >>> Used(0.5, 2.0, 3) + Used(1.0)
    Used(seconds=1.5, cost=2.0, tokens=3)
    """

    seconds: float = 0.0
    cost: float = 0.0
    tokens: int = 0

    def __add__(self, other: object) -> Used:  # as numbers add up, not as tuples do
        if not isinstance(other, Used):
            return NotImplemented
        return Used(*(a + b for a, b in zip(self, other)))  # type: ignore[arg-type]


@dataclass
class Meter:
    """Adds up what is spent while it runs; `used` is None as long as nothing was said."""

    used: Used | None = None


_meter: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def metering() -> Iterator[Meter]:
    """Add up what is spent inside; a meter around this one does not see it.

    >>> with metering() as meter:
    ...     spend(seconds=2.0)
    ...     spend(cost=0.5, tokens=10)
    >>> meter.used
    Used(seconds=2.0, cost=0.5, tokens=10)
    """
    meter = Meter()
    token = _meter.set(meter)
    try:
        yield meter
    finally:
        _meter.reset(token)


def spend(*, seconds: float = 0.0, cost: float = 0.0, tokens: int = 0) -> None:
    """Say what a call takes; where nobody asks, nothing happens.

    Raises: ConfigError for what is not a finite number of at least 0.
    """
    for name, value in (("seconds", seconds), ("cost", cost), ("tokens", tokens)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ConfigError(f"spend: {name} must be a finite number of at least 0, got {value!r}.")
    add(Used(float(seconds), float(cost), int(tokens)))


def add(used: Used | None) -> None:
    """Add what was spent elsewhere, in another process, say."""
    if (meter := _meter.get()) is not None and used is not None:
        meter.used = used if meter.used is None else meter.used + used


# What is written down of it


def note(segment: Segment, used: Used | None, seconds: float) -> None:
    """Write down what the answer to a turn took; `seconds` really passed, and count where nothing was said."""
    if used is not None:
        segment.info["used"] = [*used]
    segment.duration = seconds if used is None else used.seconds


def used_in(segment: Segment) -> Used:
    """What the answer to a turn took.

    >>> said = Segment("assistant", "ask")
    >>> note(said, Used(2.0, 0.5), seconds=0.1)
    >>> used_in(said), said.duration, used_in(Segment("assistant", "say"))
    (Used(seconds=2.0, cost=0.5, tokens=0), 2.0, Used(seconds=0.0, cost=0.0, tokens=0))
    """
    return Used(*segment.info.get("used", ()))


def total(episode: Episode) -> Used:
    """What all turns of an episode took."""
    return sum((used_in(s) for s in episode.segments), Used())


def seconds(episode: Episode, per_token: float = 0.0) -> float:
    """Simulated seconds of an episode: what its answers took, and what saying each token takes.

    >>> said = Segment("assistant", "ask", [5, 6], [1, 1], info={"used": [2.0, 0.0, 0]})
    >>> seconds(Episode(None, [said, said]), per_token=0.25)
    5.0
    """
    return total(episode).seconds + per_token * episode.action_count


def taken(episodes: Sequence[Episode]) -> dict[str, float]:
    """What is reported of a step's episodes: means of all that was said, and seconds of the slowest one.

    >>> said = Segment("assistant", "ask", info={"used": [2.0, 0.5, 0]})
    >>> taken([Episode(None, [said, said]), Episode(None, [said])]), taken([Episode(None)])
    ({'used/seconds': 3.0, 'used/cost': 0.75, 'used/longest': 4.0}, {})
    """
    totals = [total(e) for e in episodes]
    means = {f"used/{name}": sum(column) / len(totals) for name, column in zip(Used._fields, zip(*totals))}
    found = {name: mean for name, mean in means.items() if mean}
    return found | ({"used/longest": max(used.seconds for used in totals)} if "used/seconds" in found else {})


def durations(episodes: Iterable[Episode]) -> list[list[float]]:
    """Seconds of each turn of each row that the policy sampled: simulated ones if any turn has some, else real ones."""
    turns = [[s for s in episode.segments if any(s.action_mask)] for episode in episodes]
    simulated = any("used" in s.info for said in turns for s in said)
    return [[used_in(s).seconds if simulated else s.duration for s in said] for said in turns]
