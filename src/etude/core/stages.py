"""A run's stages: the method as it is in each of them, and what goes on from one to the next."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etude.core.method import Method

Stages = list[tuple[float, "Method"]]
"""Fraction of the training steps at which each stage ends, and the method until then."""
HOW = {"": "only what is trained as a whole can change", "experience": "stages=handover begins another"}
"""What to do about a slot that a stage must not change, by what would have to start anew."""
OWN, OTHER = "own", "other"
"""Whose optimizer takes a step: the stage's own, or that of steps which it gives to another method."""


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
            known = before.slots()
            slots = {
                k: _carried(v, mine.slots()[k], [(known[k], last[k])]) for k, v in own.slots().items() if k not in anew
            }
            mine = mine.replace(**slots)
        stages.append((until, mine))
        before = own
    return stages


def _carried(now: object, mine: object, known: Sequence[tuple[Any, Any]]) -> object:
    """The bound value `mine` of a slot, with what equals something `known` taken over from there.

    Args:
        known: values of slots, each with what it is bound to; the first that is equal counts.
    """
    if isinstance(now, tuple) and isinstance(mine, tuple):
        left = [pair for b, last in known if isinstance(b, tuple) and isinstance(last, tuple) for pair in zip(b, last)]
        carried = []
        for value, own in zip(now, mine):
            same = next((bound for b, bound in left if b == value), own)
            left = [pair for pair in left if pair[1] is not same]
            carried.append(same)
        return tuple(carried)
    return next((last for before, last in known if before == now), mine)


def others(method: Method, own: Stages) -> list[Method | None]:
    """What steps of another method are like in each stage, bound; None where a stage has none.

    A part that stands in the stage itself, in the method of that stage or in another method before is one part with
    one state, but for an optimizer of these steps' own.

    Args:
        own: the stages' methods, bound.
    """
    found: list[Method | None] = []
    before: list[tuple[Method, Method]] = []
    for stage, bound_stage, (_, unbound), (_, mine) in zip(
        _parts(method), own[0][1].slots().get("stages", ()), applied(method), own
    ):
        before.insert(0, (unbound, mine))
        other = stage.other(unbound)
        if other is not None:
            before.insert(1, (other, _shared(other, stage, bound_stage, before)))
            found.append(before[1][1])
        else:
            found.append(None)
    return found or [None] * len(own)


def _shared(other: Method, stage: Any, bound_stage: Any, before: Sequence[tuple[Method, Method]]) -> Method:
    """Another method, bound, with the parts that are known already."""
    bound_other, inside = other.bind(), list(zip(_held(stage), _held(bound_stage)))
    slots = {}
    for slot, value in other.slots().items():
        known = [(m.slots()[slot], b.slots()[slot]) for m, b in before]
        if not (slot == "optimizer" and stage.own_optimizer):
            slots[slot] = _carried(value, bound_other.slots()[slot], [*inside, *known])
    return bound_other.replace(**slots)


def _held(part: Any) -> list[Any]:
    """The parts that stand in a part, those inside of them included."""
    held = [v for v in part.fields().values() if hasattr(v, "fields")]
    return [p for v in held for p in (v, *_held(v))]


def composed(method: Method) -> list[Method]:
    """Every method that some step of a run follows."""
    own = [m for _, m in applied(method)]
    between = [stage.other(m) for stage, m in zip(_parts(method), own)]
    return [*own, *(m for m in between if m is not None)]


def alike(one: Method, other: Method) -> bool:
    """Whether steps of both are the same, whoever takes them."""
    apart = {"optimizer", "stages"}
    return all(v == other.slots()[k] for k, v in one.slots().items() if k not in apart)


def span(stages: Sequence[tuple[float, Any]], stage: int, steps: int) -> range:
    """The training steps of `steps` that belong to a stage."""

    def first(number: int) -> int:
        return bisect_left(range(steps), number, key=lambda step: current(stages, step, steps))

    return range(first(stage), first(stage + 1))


def current(stages: Sequence[tuple[float, Any]], finished: int, steps: int) -> int:
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
            if _lasting(now[slot]) != _lasting(before[slot]) and what not in anew:
                how = HOW.get(what, f"give the stage {what}=reset")
                yield f"stage {number} changes the {slot}, which goes on from stage to stage: {how}."
        before = now
        if (other := parts[number].other(own)) is not None:
            yield from _between(number, own, other)


def _lasting(value: Any) -> Any:
    """What of a slot goes on from stage to stage, where its parts say that not all of them does."""
    if isinstance(value, tuple):
        return tuple(map(_lasting, value))
    return value.lasting() if hasattr(value, "lasting") else value


def _between(number: int, own: Method, other: Method) -> Iterator[str]:
    """What is wrong with the other method of a stage."""
    for sentence in other.objections():
        yield f"in steps of another method in stage {number}, {sentence}"
    for slot in ("reference", "learners"):
        if other.slots()[slot] != own.slots()[slot]:
            yield f"stage {number} has steps of another method with another {slot}, which both must share."
    mine, theirs = (getattr(m, "own_critic", None) for m in (own, other))
    if theirs is not None and mine != theirs:  # where the other steps have none, the network waits
        yield f"stage {number} has steps of another method with another critic, a network that both must share."


def _parts(method: Method) -> Sequence[Any]:
    stages: Sequence[Any] = method.slots().get("stages", ())
    return stages
