"""The generated task of eight digits: what answers are worth, what the writer writes, and which of two is chosen."""

from __future__ import annotations

from itertools import combinations

import pytest

from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import UnknownNameError
from etude.core.streams import Stream
from etude.tasks import resolve_task
from etude.tasks.language.sorting import Sorting, digits_of, merged, sorting, worth
from etude.tasks.pool import reserved

SHOWN = "52871632"


def test_what_an_answer_is_worth() -> None:
    """Inversions of 28 pairs, 7 for a digit that is missing or too many, and never less than 0."""
    right = "".join(sorted(SHOWN))
    assert right == "12235678"
    assert worth(SHOWN, right) == 1
    assert worth(SHOWN, right[::-1]) == pytest.approx(1 / 28)  # the pair of twos is in order either way round
    assert worth(SHOWN, "21235678") == pytest.approx(27 / 28)
    assert worth(SHOWN, right[:-1]) == pytest.approx(21 / 28) == worth(SHOWN, right + "9")
    assert worth(SHOWN, "02235678") == pytest.approx(14 / 28)  # one is missing, another too many
    assert worth(SHOWN, "") == 0 == worth(SHOWN, "0123456789" * 2)


def test_only_what_stands_behind_the_thought_is_the_answer() -> None:
    problem = Problem("p/1", f"{SHOWN}>")
    for text in ("12235678", "(whatever)12235678", "((9)1)12235678"):
        assert sorting.score(problem, text) == 1
        assert sorting.success(Episode(problem, [Segment("assistant", text)]))
    assert sorting.score(problem, "12235678)") == 0
    assert not sorting.success(Episode(problem, [Segment("assistant", "21235678")]))


def test_problems_and_what_is_written_of_them() -> None:
    assert resolve_task("sorting") == sorting
    better = 0
    for split in sorting.splits():
        for i in range(40):
            problem = sorting.problems(split)[i]
            shown = digits_of(problem)
            assert len(shown) == 8 and shown.isdigit()
            assert reserved("".join(sorted(shown))) == (split == "test")
            thought, _, answer = problem.info["demonstration"][1:].partition(")")
            assert thought == ",".join("".join(sorted(half)) for half in (shown[:4], shown[4:]))
            assert sorted(answer) == sorted(shown)
            one, two = (worth(shown, problem.info[k]) for k in ("chosen", "rejected"))
            assert one != two
            better += one > two
    assert 60 < better < 80  # of 80, of which a tenth are turned
    with pytest.raises(UnknownNameError):
        sorting.problems("dev")


def test_labels_are_right_and_worked_answers_too_without_slips() -> None:
    sure = Sorting(wrong=0.0, slips=0.0)
    for i in range(20):
        problem = sure.problems("train")[i]
        shown = digits_of(problem)
        assert worth(shown, problem.info["chosen"]) > worth(shown, problem.info["rejected"])
        assert sure.score(problem, problem.info["demonstration"]) == 1


def test_the_writer_merges_and_now_and_then_takes_the_wrong_head() -> None:
    assert merged("15", "26", 0.0, Stream(0).numpy) == "1256"
    assert merged("15", "26", 1.0, Stream(0).numpy) == "2615"
    for i in range(20):
        said = merged("1358", "2467", 0.3, Stream(i).numpy)
        assert sorted(said) == sorted("13582467")
        inside = [[said.index(d) for d in half] for half in ("1358", "2467")]
        assert all(a < b for places in inside for a, b in combinations(places, 2))  # each half stays in order
