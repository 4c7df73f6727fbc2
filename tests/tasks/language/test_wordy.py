"""Wordy sums: what is said again is no less right, and worked answers say it as often as they are asked to."""

from __future__ import annotations

from itertools import islice

import numpy as np

from etude.tasks.language.sums import Sums
from etude.tasks.language.wordy import Wordy


def worked(task: Sums) -> list[tuple[str, float]]:
    """What worked answers say, and what they score."""
    found = []
    for problem in islice(task.problems("train"), 400):
        said = task.demonstration(problem)
        assert said is not None
        found.append((said, task.score(problem, said)))
    return found


def test_worked_answers_are_right_however_wordy() -> None:
    assert all(score == 1.0 for _, score in worked(Wordy(terms=(3, 4, 6), again=0.9)))


def test_without_repetition_they_are_those_of_sums() -> None:
    assert worked(Wordy(terms=(4,), again=0.0)) == worked(Sums(terms=(4,)))


def test_a_total_is_said_as_often_as_a_geometric_number_up_to_four() -> None:
    """Of 3 numbers one total comes before the last; with again = 0.6 it is said 1 + 0.6 + 0.36 + 0.216 times."""
    times = [len(said.split(",")[0].split(";")) for said, _ in worked(Wordy(terms=(3,), again=0.6))]
    assert {1, 2, 3, 4} == set(times)
    assert abs(np.mean(times) - 2.176) < 4 * np.std(times) / np.sqrt(len(times))
    assert all(";" not in said.split(",")[-1] for said, _ in worked(Wordy(terms=(3,))))


def test_its_limit_is_a_field() -> None:
    assert Wordy().max_tokens == 64
    assert Wordy(max_tokens=10).max_tokens == 10
