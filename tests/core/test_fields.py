"""What a field may hold: checks, sentences and command-line text come from one annotation."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.core.errors import ConfigError
from etude.core.fields import (
    Count,
    Fraction,
    NonNegative,
    Positive,
    PositiveProbability,
    Probability,
    WholeNumber,
    check,
    describe,
    parse,
)


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (Positive, "a number above 0"),
        (NonNegative, "a number of at least 0"),
        (Fraction, "a number in (0, 1)"),
        (Probability, "a number in [0, 1]"),
        (PositiveProbability, "a number in (0, 1]"),
        (Count, "a whole number of at least 1"),
        (Literal["k1", "k3"], "one of 'k1', 'k3'"),
        (Positive | None, "a number above 0 or none"),
        (tuple[int, ...], "a list, each item a whole number"),
        (bool, "true or false"),
        (str, "text"),
    ],
)
def test_hints_read_as_words(hint: Any, words: str) -> None:
    assert describe(hint) == words


@pytest.mark.parametrize(
    ("hint", "inside", "outside"),
    [
        (Positive, [1e-300, 1, 3.5], [0, -1e-9, float("nan"), float("inf"), True, "1", None]),
        (NonNegative, [0, 0.0, 2], [-1e-9, float("inf")]),
        (Fraction, [0.5, 1e-12, 1 - 1e-12], [0, 1, 1.5, -0.1]),
        (Probability, [0, 1, 0.5], [-1e-9, 1 + 1e-9]),
        (PositiveProbability, [1, 1e-9], [0, 1.1]),
        (Count, [1, 10**30], [0, -1, 1.0, True, "3"]),
        (WholeNumber, [0, 7], [-1, 0.5]),
        (bool, [True, False], [0, 1, "true"]),
        (str, ["", "a"], [1, None]),
        (Positive | None, [None, 1.0], [0, "none"]),
        (tuple[int, ...], [(), (1, 2), [3]], [(1.5,), 1, ("a",)]),
    ],
)
def test_ranges(hint: Any, inside: list[Any], outside: list[Any]) -> None:
    for value in inside:
        checked = check("Part.field", hint, value)
        assert checked == (tuple(value) if isinstance(value, list) else value)
    for value in outside:
        with pytest.raises(ConfigError) as caught:
            check("Part.field", hint, value)
        assert str(caught.value) == f"Part.field must be {describe(hint)}, got {value!r}."


def test_command_line_text() -> None:
    assert parse("x", Positive, "2.8e-1") == 0.28
    assert parse("x", Positive, "3") == 3
    assert parse("x", Positive | None, "none") is None
    assert parse("x", bool, "True") is True
    assert parse("x", bool, "false") is False
    assert parse("x", str, "42") == "42"
    assert parse("x", tuple[int, ...], "2,3") == (2, 3)
    assert parse("x", tuple[int, ...], "[2, 3]") == (2, 3)
    assert parse("x", tuple[str, ...], "a,b") == ("a", "b")
    assert parse("x", Literal["mean", "none"], "mean") == "mean"


@pytest.mark.parametrize(
    ("hint", "text"), [(Positive, "0"), (Positive, "Infinity"), (Count, "2.5"), (bool, "yes"), (Fraction, "NaN")]
)
def test_command_line_text_that_is_refused(hint: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=r"^x must be .*, got '.*'\.$"):
        parse("x", hint, text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_finite_number_survives_the_command_line(value: float) -> None:
    assert parse("x", float, repr(value)) == value


@pytest.mark.slow
@given(st.text(max_size=30))
def test_any_text_is_a_value_or_a_sentence(text: str) -> None:
    for hint in (float, Count, bool, Positive | None, tuple[int, ...], Literal["a", "b"]):
        try:
            parse("x", hint, text)
        except ConfigError:
            continue
