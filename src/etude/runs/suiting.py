"""The method that a run trains on a task: as it was asked for, and as what the task shows asks for."""

from __future__ import annotations

from collections.abc import Sequence

from etude.core.edit import set_value
from etude.core.errors import UnknownNameError
from etude.core.method import Method
from etude.core.part import together
from etude.core.task import Task
from etude.rewards.several import Scoring
from etude.runs.kinds import run_of
from etude.runs.training import compose_method


def suited_method(
    method: str | Method, fields: Sequence[str], parts: str | Sequence[str], reward: Scoring | None, goal: Task
) -> tuple[Method, str]:
    """The method with parts stacked and fields set, and a sentence about what the task changed in it; '' for nothing.

    Fields that only the parts have which the task asks for (`policy.network.image.channels` of an image among other
    things) are set in these.

    Raises: EtudeError, as `compose_method` does.
    """
    try:
        composed = compose_method(method, fields, parts, reward, goal.world)
    except UnknownNameError:
        plain = compose_method(method, (), parts, reward, goal.world)
        begun, later = _first(plain, fields)
        changed, sentence = run_of(begun).suited(begun, goal)
        if not sentence:
            raise
        return compose_method(changed, later, world=goal.world), sentence
    return run_of(composed).suited(composed, goal)


def _first(method: Method, fields: Sequence[str]) -> tuple[Method, list[str]]:
    """The method with the fields set that it has, and the others."""
    later: list[str] = []
    with together():
        for item in fields:
            try:
                method = set_value(method, item)
            except UnknownNameError:
                later.append(item)
    return method, later
