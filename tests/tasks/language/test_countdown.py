"""Countdown: the parser is exact and cannot be broken, problems can be solved, the divide holds."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.tasks.language.countdown import LONGEST, Countdown, countdown, evaluate


@pytest.mark.parametrize(
    ("text", "value", "used"),
    [
        ("7", 7, [7]),
        ("3+5*2", 13, [3, 5, 2]),
        ("(3+5)*2", 16, [3, 5, 2]),
        ("9-4-3", 2, [9, 4, 3]),
        ("8/4/2", 1, [8, 4, 2]),
        ("8/(4/2)", 4, [8, 4, 2]),
        ("1/3*9", 3, [1, 3, 9]),
        ("2-5", -3, [2, 5]),
        (" ( 12 ) ", 12, [12]),
        ("5/2", Fraction(5, 2), [5, 2]),
    ],
)
def test_values_by_hand(text: str, value: Fraction, used: list[int]) -> None:
    assert evaluate(text) == (value, used)


@pytest.mark.parametrize(
    "text",
    ["", "(", ")", "()", "1+", "+1", "-1", "1 2", "(1", "1)", "2**3", "2//1", "a", "1e3", "0x1", "1.0", "1=1", "٣", "²",
     "(" * LONGEST, "(" * 500, "9" * (LONGEST + 1), "__import__('os')"],
)  # fmt: skip
def test_what_is_not_arithmetic(text: str) -> None:
    with pytest.raises(ValueError, match=r"got|closed"):
        evaluate(text)


def test_dividing_by_zero_is_wrong_but_no_fault() -> None:
    problem = Problem("1", "3,5,5->8:", 8, info={"numbers": (3, 5, 5)})
    with pytest.raises(ZeroDivisionError):
        evaluate("3/(5-5)")
    assert countdown.score(problem, "3/(5-5)") == 0.0


@given(st.text(alphabet="0123456789+-*/() ", max_size=40))
def test_agrees_with_python(text: str) -> None:
    """Where both read the text, both find the same value (Python also knows signs, ** and //)."""
    try:
        value, used = evaluate(text)
    except (ValueError, ZeroDivisionError):
        return
    wrapped = "".join(f"F({t})" if t.isdigit() else t for t in _split(text))
    assert value == eval(wrapped, {"F": Fraction, "__builtins__": {}})
    assert sorted(used) == sorted(int(t) for t in _split(text) if t.isdigit())


def _split(text: str) -> list[str]:
    tokens: list[str] = []
    for c, before in zip(text, " " + text):
        if c.isdigit() and before.isdigit():
            tokens[-1] += c
        else:
            tokens.append(c)
    return [str(int(t)) if t.isdigit() else t for t in tokens]


@given(st.text(max_size=200))
def test_any_text_has_a_reward(text: str) -> None:
    assert countdown.score(countdown.problems("train")[0], text) in (0.0, 1.0)


@pytest.mark.slow
def test_every_problem_can_be_solved() -> None:
    for task in (countdown, Countdown(numbers=(2, 4, 6), largest=99)):
        for problem in task.problems("train")[:200]:
            shown = problem.info["demonstration"]
            assert task.score(problem, shown) == 1.0
            assert 1 <= problem.answer <= 99
            assert len(shown) < Countdown.max_tokens
            assert problem.prompt == f"{','.join(map(str, problem.info['numbers']))}->{problem.answer}:"


def test_each_number_is_used_once() -> None:
    problem = Problem("1", "2,2,8->32:", 32, info={"numbers": (2, 2, 8)})
    assert countdown.score(problem, "2*2*8") == 1.0
    for wrong in ("4*8", "2*2*2*2*2", "8*2*2*2/2", "32", "8+8+8+8"):
        assert countdown.score(problem, wrong) == 0.0


def test_some_numbers_may_be_left_over() -> None:
    problem = Problem("1", "2,5,8->16:", 16, info={"numbers": (2, 5, 8)})
    assert countdown.score(problem, "2*8") == 0.0
    assert Countdown(use="some").score(problem, "2*8") == 1.0
    assert Countdown(use="some").score(problem, "8+8") == 0.0


@pytest.mark.slow
def test_train_and_test_share_nothing() -> None:
    def keys(split: str) -> set[tuple[object, ...]]:
        return {(*sorted(p.info["numbers"]), p.answer) for p in countdown.problems(split)[:1000]}

    assert not keys("train") & keys("test")


def test_same_fields_same_problem() -> None:
    assert Countdown().problems("train")[9] == countdown.problems("train")[9]
    assert countdown.problems("train")[9].id == "countdown/train/9"
    assert {p.level for p in Countdown(numbers=(2, 3)).problems("train")[:50]} == {"numbers2", "numbers3"}


def test_what_is_refused() -> None:
    with pytest.raises(UnknownNameError):
        countdown.problems("valid")
    for fields in ({"numbers": ()}, {"numbers": (1,)}, {"largest": 8}, {"use": "any"}):
        with pytest.raises(ConfigError):
            Countdown(**fields)
