"""Patches: the format, what can be applied, unified diffs and how alike they are."""

from __future__ import annotations

import difflib
import random

import pytest

from etude.rewards.patches import Edit, alike, applied, diffs, edits_in, similarity, written

FILE = {"a.py": "def f(x):\n    y = x\n    return y\n", "b.py": "z = 1\n"}
EDIT = Edit("a.py", "    y = x\n", "    y = x + 1\n")
SAID = written([EDIT], "so")


def test_what_is_written_can_be_read() -> None:
    several = [EDIT, Edit("b.py", "z = 1\n", ""), Edit("a.py", "    return y\n", "    z = y\n    return z\n")]
    assert edits_in(written(several, "so")) == several
    assert edits_in(f"  {SAID}\n") == [EDIT] and edits_in(SAID.replace("</think>\n", "</think>")) == [EDIT]


@pytest.mark.parametrize(
    "text",
    [
        "", "y = x + 1", SAID.replace("<think>so</think>\n", ""), SAID.replace("so", "  "),
        SAID.replace("</solution>", ""), SAID + "</solution>", SAID.replace("so", "<think>"), SAID + SAID,
        SAID.replace("=======\n", ""), SAID.replace("### ", "## "), SAID + "and more", "I say " + SAID,
        "<solution>\n</solution><think>so</think>", "<think>so</think><solution></solution>",
    ],
)  # fmt: skip
def test_what_has_not_the_format(text: str) -> None:
    assert edits_in(text) is None


def test_indentation_and_place_count() -> None:
    assert applied(FILE, [EDIT]) == {**FILE, "a.py": "def f(x):\n    y = x + 1\n    return y\n"}
    assert applied(FILE, [Edit("a.py", "y = x\n", "y = 2\n")]) is None, "not from the beginning of its line"
    assert applied(FILE, [Edit("a.py", "    y = x\n", "    y = x\n")]) is None, "it changes nothing"
    assert applied(FILE, [Edit("c.py", "z = 1\n", "z = 2\n")]) is None, "no such file"
    assert applied(FILE, [Edit("b.py", "", "z = 2\n")]) is None, "nothing to look for"
    assert applied(FILE, [Edit("a.py", "    y = x", "    y = 2")]) == {
        **FILE,
        "a.py": FILE["a.py"].replace("= x", "= 2"),
    }
    twice = {"a.py": "x\nx\n"}
    assert applied(twice, [Edit("a.py", "x\n", "y\n")]) == {"a.py": "y\nx\n"}, "the first place"
    assert applied(twice, [Edit("a.py", "x\n", "y\n")] * 3) is None and twice == {"a.py": "x\nx\n"}


def test_a_diff_by_hand() -> None:
    before = {"a.py": "".join(f"{n}\n" for n in range(9))}
    after = {"a.py": before["a.py"].replace("5\n", "five\n")}
    assert diffs(before, after) == {"a.py": "@@ -3,7 +3,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8"}
    assert diffs(before, before) == {}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("abcd", "bcde", 2 * 3 / 8),  # bcd
        ("abxcd", "abycd", 2 * 4 / 10),  # ab, then cd
        ("aaa", "bbb", 0.0), ("same", "same", 1.0),
        ("ab", "ba", 2 * 1 / 4),  # the longest block first, and nothing beside it
    ],
)  # fmt: skip
def test_how_alike_two_texts_are_by_hand(one: str, other: str, expected: float) -> None:
    assert alike(one, other) == pytest.approx(expected, abs=1e-12)
    assert alike(one, other) == difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def test_frequent_characters_count() -> None:
    """With the heuristic of the library's default a text of 200 characters and more matches nothing here."""
    one, other = "ab" * 150, "c" + "ab" * 149
    assert alike(one, other) > 0.98 and difflib.SequenceMatcher(None, one, other).ratio() == 0.0


def test_the_mean_is_over_the_files_that_either_changes() -> None:
    right = {"a": "-x\n+y", "b": "-z\n+w"}
    assert similarity(right, right) == 1.0 and similarity({"a": right["a"]}, right) == 0.5
    assert similarity({"c": "-x\n+y"}, {"a": "-x\n+y"}) == 0.0 and similarity({}, right) == 0.0
    source = random.Random(0)
    for _ in range(50):
        one, other = ({p: "".join(source.choices("xy\n", k=9)) for p in source.sample("abc", 2)} for _ in range(2))
        assert 0 <= similarity(one, other) <= 1
