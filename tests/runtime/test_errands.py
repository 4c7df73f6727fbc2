"""Errands: a function waits where it asks, and works only while its owner waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from etude.runtime.errands import Errand, in_owners_thread


def test_what_happens_is_in_one_order() -> None:
    order: list[Any] = []

    def work(ask: Callable[[Any], Any]) -> str:
        for question in ("a", "b"):
            order.append(("asks", question))
            order.append(("hears", ask(question)))
        return "done"

    errand = Errand(work)
    assert order == [], "nothing happens before it is begun"
    assert errand.go_on() == ("a",)
    order.append("owner")
    assert errand.go_on(1) == ("b",)
    order.append("owner")
    assert errand.go_on(2) is None
    assert errand.result() == "done"
    assert order == [("asks", "a"), "owner", ("hears", 1), ("asks", "b"), "owner", ("hears", 2)]


def test_one_that_asks_nothing_is_over_at_once() -> None:
    errand = Errand(lambda ask: 3)
    assert errand.go_on() is None
    assert errand.result() == 3


@pytest.mark.parametrize("asks", [0, 1])
def test_what_it_raises_is_raised_to_its_owner(asks: int) -> None:
    def work(ask: Callable[[Any], Any]) -> None:
        for _ in range(asks):
            ask("?")
        raise KeyError("x")

    errand = Errand(work)
    for _ in range(asks):
        errand.go_on()
    with pytest.raises(KeyError):
        errand.go_on()


def test_one_that_is_left_ends_with_what_it_has_open() -> None:
    closed, before = [], threading.active_count()

    def work(ask: Callable[[Any], Any]) -> None:
        try:
            ask("?")
        finally:
            closed.append(True)

    errand = Errand(work)
    errand.go_on()
    assert threading.active_count() == before + 1
    errand.close()
    assert closed == [True]
    assert threading.active_count() == before
    errand.close()
    Errand(work).close()


def test_what_needs_the_owners_thread_is_done_there_and_what_it_raises_comes_back() -> None:
    where: list[Any] = []

    def on_the_way(fails: bool) -> int:
        where.append(threading.current_thread())
        if fails:
            raise KeyError("x")
        return 6

    def work(ask: Callable[[Any], Any]) -> int:
        found = in_owners_thread(lambda: on_the_way(False)) * ask("seven")
        with pytest.raises(KeyError):
            in_owners_thread(lambda: on_the_way(True))
        where.append(threading.current_thread())
        return int(found)

    errand = Errand(work)
    assert errand.go_on() == ("seven",)
    assert errand.go_on(7) is None
    assert errand.result() == 42
    here = threading.current_thread()
    assert [thread is here for thread in where] == [True, True, False]
    assert in_owners_thread(threading.current_thread) is here, "without an errand it is done at once"
