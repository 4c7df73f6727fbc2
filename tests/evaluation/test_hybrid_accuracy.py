"""Hybrid accuracy: which mode is better, and how often it is the one that was chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from etude.core.episodes import Problem, StopReason
from etude.core.errors import ConfigError
from etude.core.task import LanguageTask
from etude.evaluation.modes import Choices, better_modes, hybrid_accuracy
from etude.experience.modes import DIRECT, THINK
from etude.policies.sampling import Completion
from language_toys import Scripted, random_policy

MODES = ("T", "N")


class Halves(LanguageTask):
    """Ten problems: of those that are hard only thinking is right, of the others both modes are."""

    id: ClassVar[str] = "halves"
    max_tokens: ClassVar[int] = 8
    modes: ClassVar[tuple[str, str]] = MODES
    hard: int = 4

    def problems(self, split: str) -> list[Problem]:
        return [Problem(f"{i}", f"{i}:", level="hard" if i < self.hard else "easy") for i in range(10)]

    def score(self, problem: Problem, completion: str) -> float:
        return float(completion.startswith("T") or problem.level == "easy")


def choosing(choice: Callable[[str], str]) -> Any:
    """A policy that chooses a mode by what it was asked, and says twice as much when it thinks."""
    policy = random_policy()

    def say(tokens: list[int]) -> Completion:
        asked, _, mode = policy.decode(tokens).partition(":")
        text = ("" if mode else choice(asked)) + ("xx" if "T" in (mode or choice(asked)) else "x")
        said = policy.encode(text)
        return Completion(said, [-0.5] * len(said), stop=StopReason.END_OF_TEXT)

    policy.converse = lambda: Scripted(say)  # type: ignore[method-assign,assignment,return-value]
    return policy


def measured(choice: Callable[[str], str], hard: int = 4) -> Choices:
    return hybrid_accuracy(choosing(choice), Halves(hard=hard), problems=10, samples=3)


def test_an_oracle_is_always_right() -> None:
    found = measured(lambda asked: "T" if int(asked) < 4 else "N")
    assert found.better.tolist() == [THINK] * 4 + [DIRECT] * 6
    assert found.accuracy == 1.0
    assert (found.thinking("hard"), found.thinking("easy"), found.thinking()) == (1.0, 0.0, 0.4)


@pytest.mark.parametrize("hard", [0, 3, 8])
def test_a_constant_choice_is_right_for_its_share_of_the_problems(hard: int) -> None:
    think, direct = (measured(lambda asked, m=m: m, hard).accuracy for m in MODES)  # type: ignore[misc]
    assert think == pytest.approx(hard / 10) and direct == pytest.approx(1 - hard / 10)
    assert max(think, direct) == pytest.approx(max(hard, 10 - hard) / 10), "the larger class for the better of them"


def test_what_is_in_no_mode_is_never_the_better_one() -> None:
    found = measured(lambda asked: "x")
    assert set(found.chosen.ravel().tolist()) == {-1}
    assert found.accuracy == 0.0 and found.thinking() == 0.0


def test_right_answers_are_counted_per_token() -> None:
    """Four hard ones in 3 tokens each (T, x, x), six easy ones in 2: all right, 10 right in 24 tokens."""
    assert measured(lambda asked: "T" if int(asked) < 4 else "N").per_token == pytest.approx(10 / 24)
    assert measured(lambda asked: "N").per_token == pytest.approx(6 / 20)


def test_forced_completions_count_neither_as_chosen_nor_as_right() -> None:
    found = measured(lambda asked: "N")
    assert found.chosen.shape == found.correct.shape == (10, 3)
    assert not found.correct[:4].any() and found.correct[4:].all()


def test_scores_that_are_no_further_apart_than_the_margin_leave_it_to_length() -> None:
    scores = np.array([[[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]])
    for long, better in (([9, 2], DIRECT), ([2, 9], THINK), ([5, 5], DIRECT)):
        lengths = np.array(long)[None, :, None].repeat(4, 2)
        assert better_modes(scores, lengths, margin=0.2).tolist() == [THINK]
        assert better_modes(scores, lengths, margin=0.25).tolist() == [better]
        assert better_modes(scores, lengths, margin=0.3).tolist() == [better]
        assert better_modes(scores[:, ::-1], lengths, margin=0.3).tolist() == [better]
        assert better_modes(scores[:, ::-1], lengths, margin=0.2).tolist() == [DIRECT]


def test_modes_that_the_task_has_no_room_for_are_refused() -> None:
    with pytest.raises(ConfigError, match="no room for an answer"):
        hybrid_accuracy(random_policy(), Halves(), problems=2, modes=("<think>", "<no_think>"))
