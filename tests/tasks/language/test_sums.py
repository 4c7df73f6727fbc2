"""Sums: running totals, levels by number of terms, the divide."""

from __future__ import annotations

import pytest

from etude.core.errors import ConfigError, UnknownNameError
from etude.tasks.language.sums import Sums, sums


def test_problems_are_right() -> None:
    for problem in sums.problems("train")[:200]:
        numbers = [int(n) for n in problem.prompt.rstrip("=").split("+")]
        totals = [sum(numbers[: k + 2]) for k in range(len(numbers) - 1)]
        assert problem.answer == str(sum(numbers))
        assert problem.info["demonstration"] == ",".join(map(str, totals))
        assert problem.level == f"terms{len(numbers)}"
        assert sums.score(problem, problem.info["demonstration"]) == 1.0


def test_the_last_number_decides() -> None:
    problem = next(p for p in sums.problems("train")[:100] if p.level == "terms3")
    assert sums.score(problem, f"99,{problem.answer}") == 1.0
    assert sums.score(problem, f"{problem.answer} ") == 1.0
    for wrong in ("", ",", f"{problem.answer},", f"{problem.answer},1", f"0{problem.answer}", f"{problem.answer}.0"):
        assert sums.score(problem, wrong) == 0.0


def test_difficulties_are_mixed() -> None:
    assert {p.level for p in sums.problems("test")[:200]} == {"terms3", "terms4", "terms5", "terms6"}


@pytest.mark.slow
@pytest.mark.parametrize("terms", [2, 3, 6])
def test_train_and_test_share_no_sum(terms: int) -> None:
    task = Sums(terms=(terms,))
    train, test = ({p.prompt for p in task.problems(s)[:1000]} for s in ("train", "test"))
    assert train and test and not train & test


def test_the_smallest_range_has_both_sides() -> None:
    """Otherwise drawing a problem would never end."""
    from etude.tasks.pool import reserved

    sides = {reserved(f"{a}+{b}=") for a in range(1, 10) for b in range(1, 10)}
    assert sides == {True, False}


def test_same_fields_same_problem() -> None:
    assert Sums().problems("test")[3] == sums.problems("test")[3]
    assert sums.problems("test")[3].id == "sums/test/3"
    assert Sums(seed=1).problems("test")[:5] != sums.problems("test")[:5]


def test_the_longest_trace_fits() -> None:
    longest = Sums(terms=(10,), largest=99)
    assert all(len(p.info["demonstration"]) < Sums.max_tokens for p in longest.problems("train")[:200])


def test_what_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'test'"):
        sums.problems("tests")
    for fields in ({"terms": ()}, {"terms": (1,)}, {"largest": 8}):
        with pytest.raises(ConfigError):
            Sums(**fields)
