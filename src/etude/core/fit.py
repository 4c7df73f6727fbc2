"""What cannot work together: one place that asks, one sentence for each answer.

A kind of method says what contradicts in it, a part says in which company it cannot be (`objection`) and what a task
has to have for it (`lacks`), a world says which slots mean nothing in it. Training, comparing, stacking and showing
all ask here.
"""

from __future__ import annotations

from collections.abc import Iterator

from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.registry import not_for
from etude.core.stages import composed
from etude.core.task import Task


def objections(method: Method, task: Task | None = None) -> Iterator[str]:
    """Every reason why the method cannot be trained, at all or on this task, as sentences; the plainest first."""
    if task is not None and task.world not in method.worlds:
        yield not_for(method.id, [method], task.world)
        return
    yield from method.objections()
    if task is None:
        return
    for slot in method.absent.get(task.world, ()):
        if getattr(method, slot) not in (None, (), 0):
            yield f"{method.id}: {task.id} is a task of {task.world}, whose loop has no use for the slot {slot}."
    yield from dict.fromkeys(sentence for own in _followed(method) for sentence in _unfit(own, task))


def _followed(method: Method) -> list[Method]:
    """The method, and those that its stages have in its place."""
    return [method, *(own for own in composed(method) if own is not method)]


def _unfit(method: Method, task: Task) -> Iterator[str]:
    """What parts say about a task."""
    for path, part in method.parts().items():
        if part.worlds and part.worlds.isdisjoint(method.worlds):
            continue  # as the method has said
        if task.world not in (part.worlds or method.worlds):
            yield (
                f"{method.id}: {type(part).__name__} ({path}) is for tasks of {' and '.join(sorted(part.worlds))}, "
                f"and {task.id} is one of {task.world}."
            )
        elif sentence := part.lacks(task):
            yield sentence
    yield from method.misfits(task)


def check(method: Method, task: Task | None = None) -> None:
    """Raise ConfigError with the first objection, if there is any."""
    if sentence := next(objections(method, task), None):
        raise ConfigError(sentence)
