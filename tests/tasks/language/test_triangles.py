"""Triangles: what counts as right, what counts as the same, and the divide."""

from __future__ import annotations

import pytest

from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError, UnknownNameError
from etude.tasks.language.triangles import Triangles, triangles, triangles_of

TWELVE = Problem("1", "tri 12=", 12)


@pytest.mark.parametrize("said", ["3,4,5", "5,3,4", "4,4,4", " 2,5,5\n"])
def test_triangles_count(said: str) -> None:
    assert triangles.score(TWELVE, said) == 1.0


@pytest.mark.parametrize(
    "said", ["3,4,6", "2,4,6", "1,5,6", "0,6,6", "3,4", "3,4,5,0", "3, 4,5", "-3,9,6", "", "a,b,c", "3,4,5 ok"]
)
def test_anything_else_does_not(said: str) -> None:
    assert triangles.score(TWELVE, said) == 0.0


def test_sides_in_another_order_are_the_same_answer() -> None:
    def signed(text: str) -> str:
        return triangles.signature(Episode(TWELVE, [Segment("assistant", text)]))

    assert signed("3,4,5") == signed("5,3,4") == "3,4,5" != signed("4,4,4")
    assert signed("what") == "what"


@pytest.mark.parametrize("perimeter", [5, 12, 31, 60])
def test_every_triangle_is_known_once(perimeter: int) -> None:
    sides = range(1, perimeter)
    brute = {tuple(sorted((a, b, perimeter - a - b))) for a in sides for b in range(1, perimeter - a)
             if 2 * max(a, b, perimeter - a - b) < perimeter}  # fmt: skip
    assert sorted(triangles_of(perimeter)) == sorted(brute)


def test_worked_answers_are_right_and_differ() -> None:
    shown = [(p, triangles.demonstration(p)) for p in triangles.problems("train")[:200]]
    assert all(triangles.score(p, str(text)) == 1.0 for p, text in shown)
    assert len({text for _, text in shown}) > 150


def test_splits_share_no_perimeter() -> None:
    train = {p.answer for p in triangles.problems("train")[:2000]}
    test = [p.answer for p in triangles.problems("test")]
    assert len(set(test)) == len(test) > 5 and not train & set(test)
    assert triangles.problems("train")[5] == Triangles().problems("train")[5]
    with pytest.raises(UnknownNameError, match="triangles"):
        triangles.problems("dev")
    with pytest.raises(ConfigError, match="at least 15"):
        Triangles(smallest=50)
