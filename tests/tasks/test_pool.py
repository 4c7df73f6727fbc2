"""Pools are sequences that store nothing; the divide depends on the text alone."""

from __future__ import annotations

import pytest

from etude.core.episodes import Problem
from etude.tasks.pool import Pool, reserved


def test_a_pool_is_a_sequence() -> None:
    pool = Pool(lambda i: Problem(str(i), "?"), 10)
    assert len(pool) == 10
    assert [p.id for p in pool[7:]] == ["7", "8", "9"] == [pool[i].id for i in (-3, -2, -1)]
    assert [p.id for p in pool] == [str(i) for i in range(10)]
    for outside in (10, -11):
        with pytest.raises(IndexError):
            pool[outside]


def test_problems_are_made_only_when_asked_for() -> None:
    asked: list[int] = []

    def make(i: int) -> Problem:
        asked.append(i)
        return Problem(str(i), "?")

    assert Pool(make, 10**12)[10**11].id == str(10**11)
    assert asked == [10**11]


def test_the_divide_by_hand() -> None:
    """The first four bytes of SHA-256('abc') are ba7816bf: 0.72839 of the way; of the empty text e3b0c442: 0.88941."""
    assert reserved("abc", 0.7284) and not reserved("abc", 0.7283)
    assert reserved("", 0.8895) and not reserved("", 0.8894)


def test_about_a_fifth_is_reserved() -> None:
    assert sum(reserved(str(i)) for i in range(10_000)) == pytest.approx(2_000, abs=120)
    assert not any(reserved(str(i), 0.0) for i in range(100))
    assert all(reserved(str(i), 1.0) for i in range(100))
