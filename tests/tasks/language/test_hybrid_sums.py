"""HybridSums sums: worked answers in two modes, and what counts as an answer in each."""

from __future__ import annotations

from itertools import islice

import pytest

from etude.core.episodes import Problem
from etude.tasks.language.hybrid_sums import HybridSums


def worked(task: HybridSums, count: int = 800) -> list[tuple[Problem, str]]:
    """Problems with their worked answers."""
    return [(p, task.demonstration(p)) for p in islice(task.problems("train"), count)]


def test_worked_answers_are_right_in_both_modes() -> None:
    task = HybridSums(terms=(2, 3, 4), at_once=0.5)
    found = worked(task)
    assert all(task.score(p, said) == 1.0 for p, said in found)
    assert {said[0] for _, said in found} == {"T", "N"}


def test_more_than_two_numbers_are_mostly_thought_about() -> None:
    """Of about 400 each, within four standard errors of sqrt(p (1 - p) / n)."""
    found = worked(HybridSums(at_once=0.2))
    for level, share in (("terms2", 0.5), ("terms4", 0.2)):
        said = [text.startswith("N") for p, text in found if p.level == level]
        assert abs(sum(said) / len(said) - share) < 4 * (share * (1 - share) / len(said)) ** 0.5
    for share, mode in ((0.0, "T"), (1.0, "N")):
        assert all(text.startswith(mode) for _, text in worked(HybridSums(terms=(4,), at_once=share)))


def test_worked_answers_of_a_problem_are_the_same_every_time() -> None:
    assert worked(HybridSums(at_once=0.5)) == worked(HybridSums(at_once=0.5))


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("T8,17,19=19", 1.0), ("T=19", 1.0), ("N19", 1.0), (" N19 ", 1.0),
        ("T8,17,19", 0.0), ("T19=1", 0.0), ("N8,17,19", 0.0), ("N8,17,19=19", 0.0), ("19", 0.0), ("", 0.0), ("T", 0.0),
    ],
)  # fmt: skip
def test_an_answer_stands_where_its_mode_has_it(said: str, score: float) -> None:
    assert HybridSums().score(Problem("p", "3+5+9+2=", "19"), said) == score
