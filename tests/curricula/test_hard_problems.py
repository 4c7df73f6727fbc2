"""Problems that were failed at, as a curriculum of their own: they come back before new ones do."""

from __future__ import annotations

from typing import Any

import pytest

from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.curricula.kept import HardProblems
from etude.experience.groups import Groups
from etude.loops.language import LanguageLoop
from etude.policies.language import LanguagePolicy
from etude.tasks import resolve_task

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
def test_what_failed_comes_back_first() -> None:
    method: Any = get_method("grpo").replace(problems=5, experience=Groups(size=2), curriculum=HardProblems())
    loop = LanguageLoop(method, resolve_task("compose"), LanguagePolicy.load("tiny"), seed=0, steps=4)
    curriculum: Any = loop.method.curriculum
    for step in range(3):
        failed = [e["problem"]["id"] for e in curriculum.state["items"]]
        asked = list(dict.fromkeys(e["id"] for e in loop.step().episodes))
        assert len(asked) == 5 and asked[: len(failed)] == failed
        assert failed or step == 0
        left = [e["problem"]["id"] for e in curriculum.state["items"]]
        assert set(left) < set(asked), "what was chosen has left, unless it failed again"


def test_without_failures_it_is_the_rest() -> None:
    pool = resolve_task("compose").problems("train")
    mine, rest = HardProblems().bind(), HardProblems().rest.bind()
    assert mine.choose(pool, 7, Stream(0)) == rest.choose(pool, 7, Stream(0))
