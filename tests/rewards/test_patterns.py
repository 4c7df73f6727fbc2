"""Rewards for how a completion is written: what is right or wrong, in the right form or not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.rewards.patterns import GradedReward

TEXTS = ("(2)", "2", "(3)", "3")
RUN: Any = SimpleNamespace(task=SimpleNamespace(success=lambda episode: "2" in episode.completion))


@pytest.mark.parametrize(
    ("unformed", "expected"), [(None, [2.0, 1.0, 0.0, 0.0]), (-1.0, [2.0, 1.0, 0.0, -1.0]), (0.5, [2.0, 1.0, 0.0, 0.5])]
)
def test_right_and_wrong_in_the_right_form_and_not(unformed: float | None, expected: list[float]) -> None:
    part = GradedReward(right=2.0, malformed=1.0, wrong=0.0, unformed=unformed, pattern="[(].*[)]")
    said = [Episode(Problem("sum/1", "1+1="), [Segment("assistant", text)]) for text in TEXTS]
    assert part.score(said, RUN) == expected


def test_what_was_cut_has_no_form() -> None:
    cut = Episode(Problem("sum/1", "1+1="), [Segment("assistant", "(3)")], stop=StopReason.MAX_TOKENS)
    assert GradedReward(wrong=0.0, unformed=-1.0, pattern="[(].*[)]").score([cut], RUN) == [-1.0]
    assert GradedReward(wrong=0.0, pattern="[(].*[)]").score([cut], RUN) == [0.0]
