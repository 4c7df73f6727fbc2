"""A run's stages: the method as it is in each of them, and what goes on from one to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etude.core.method import Method

Stages = list[tuple[float, "Method"]]
"""Fraction of the training steps at which each stage ends, and the method until then."""


def applied(method: Method) -> Stages:
    """The method as it is in each stage; itself, to the end, where there are none."""
    return [(stage.until(), stage.apply(method)) for stage in _parts(method)] or [(1.0, method)]


def bound(method: Method, settle: Callable[[Method], Method] = lambda method: method) -> Stages:
    """The stages' methods as a run works with them; a part that stands in two neighbours is one part with one state.

    So what it has learned or counted goes on, unless its slot starts anew (`Stage.resets`).

    Args:
        settle: what else is done to each bound method.
    """
    stages: Stages = []
    before: Method | None = None
    for number, (until, own) in enumerate(applied(method)):
        mine = settle(own.bind())
        if before is not None:
            anew, last = resets(method, number), stages[-1][1].slots()
            slots = {
                k: _carried(v, mine.slots()[k], before.slots()[k], last[k])
                for k, v in own.slots().items() if k not in anew
            }  # fmt: skip
            mine = mine.replace(**slots)
        stages.append((until, mine))
        before = own
    return stages


def _carried(now: object, mine: object, before: object, last: object) -> object:
    """The bound value `mine` of a slot, with what equals something of the stage before taken over from `last`."""
    if isinstance(now, tuple) and isinstance(mine, tuple) and isinstance(before, tuple) and isinstance(last, tuple):
        left = list(zip(before, last))
        carried = []
        for value, own in zip(now, mine):
            same = next((i for i, (b, _) in enumerate(left) if b == value), None)
            carried.append(own if same is None else left.pop(same)[1])
        return tuple(carried)
    return last if now == before else mine


def current(stages: Sequence[tuple[float, Method]], finished: int, steps: int) -> int:
    """Which stage training step `finished` of `steps` belongs to."""
    share = finished / max(1, steps)
    return next((i for i, (until, _) in enumerate(stages) if share < until), len(stages) - 1)


def resets(method: Method, stage: int) -> frozenset[str]:
    """The slots that start anew when this stage begins."""
    slots: frozenset[str] = _parts(method)[stage].resets()
    return slots


def objections(method: Method) -> Iterator[str]:
    """What is wrong with a method in one of its stages, or between two of them, as sentences."""
    parts, before = _parts(method), dict[str, Any]()
    for number, (_, own) in enumerate(applied(method) if parts else ()):
        for sentence in own.replace(stages=()).objections():
            yield f"in stage {number}, {sentence}"
        now, anew = own.slots(), resets(method, number)
        for slot in anew - set(now):
            yield f"stage {number} resets the {slot}, and a {type(method).__name__} has none."
        for slot, what in method.stays.items() if number else ():
            if now[slot] != before[slot] and what not in anew:
                how = f"give the stage {what}=reset" if what else "only what is trained as a whole can change"
                yield f"stage {number} changes the {slot}, which goes on from stage to stage: {how}."
        before = now


def _parts(method: Method) -> Sequence[Any]:
    stages: Sequence[Any] = method.slots().get("stages", ())
    return stages
