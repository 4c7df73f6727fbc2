"""Texts with blanks: filled again they are the text, spans are drawn by their length, and what cannot be is refused."""

from __future__ import annotations

import numpy as np
import pytest

from etude.core.episodes import Problem
from etude.core.errors import ConfigError
from etude.curricula.masking import MaskedText, filled, salient
from etude.curricula.rules import AnswerUntold

TEXT = "Carl Gauss met old Bolyai in 1797, in Brunswick; Gauss was twenty, and Bolyai 22."


@pytest.mark.parametrize(("blanks", "ways"), [(1, 4), (2, 6), (4, 1)])
def test_filled_again_it_is_the_text(blanks: int, ways: int) -> None:
    random, seen = np.random.default_rng(0), set()
    for _ in range(300):
        problem = MaskedText(blanks=blanks).make(Problem("1", TEXT), random)
        if problem is None:  # it would have begun with a blank
            continue
        seen.add(problem.answer)
        assert filled(str(problem.prompt).removesuffix("\n"), problem.info["gold"]) == TEXT
        assert problem.answer == ";".join(problem.info["gold"]) and len(problem.info["gold"]) == blanks
        assert problem.level == f"blanks{blanks}" and AnswerUntold().refuses(problem) is None
    assert len(seen) == ways, "of four spans that the text does not begin with"


def test_only_what_is_there_once_and_is_no_title() -> None:
    assert [s[0] for s in salient(TEXT)] == ["Carl", "1797", "Brunswick", "twenty", "22"]
    assert [s[0] for s in salient(TEXT, but="brunswick")] == ["Carl", "1797", "twenty", "22"]


@pytest.mark.slow
def test_a_span_is_as_likely_as_it_is_long_and_a_number_as_the_longest() -> None:
    random, text = np.random.default_rng(1), "An abcd or abcdefgh and 7"
    drawn = [MaskedText().make(Problem("1", text), random) for _ in range(2000)]
    answers = [problem.answer for problem in drawn if problem is not None]
    for span, length in (("abcd", 4), ("abcdefgh", 8), ("7", 8)):
        assert answers.count(span) / 2000 == pytest.approx(length / 20, abs=0.05)


def test_a_column_of_data_can_be_the_text() -> None:
    problem = Problem("1", "?", info={"text": "He was born in 1777", "title": "born"})
    made = MaskedText(text="text").make(problem, np.random.default_rng(0))
    assert made is not None and made.prompt == "He was born in [1]\n"


@pytest.mark.parametrize("text", ["1797", "so it is", "Gauss [1] in 1797", ""])
def test_nothing_is_made_of_these(text: str) -> None:
    assert MaskedText().make(Problem("1", text), np.random.default_rng(0)) is None


@pytest.mark.parametrize(("field", "value"), [("spans", "("), ("spans", "x*"), ("prompt", "fill")])
def test_fields_that_cannot_be_are_refused(field: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"MaskedText.{field} must"):
        MaskedText(**{field: value})
