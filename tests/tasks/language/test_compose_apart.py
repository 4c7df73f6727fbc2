"""Compose apart: what is chained where, what functions do, and what is wrong with a chain."""

from __future__ import annotations

import re

import pytest

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.tasks.language.compose import FUNCTIONS, worked
from etude.tasks.language.compose_apart import CHAINED, UNCHAINED, ComposeApart, compose_apart, fault


def composed(prompt: str) -> str:
    """An independent reading: the innermost call is replaced until none is left."""
    expression, _, text = prompt.rstrip(">").partition(" ")
    expression = expression.replace("x", text)
    while call := re.search(r"(f\d)\(([a-f]+)\)", expression):
        expression = expression.replace(call[0], FUNCTIONS[call[1]](call[2]))
    return expression


def drawn(split: str, count: int, **fields: object) -> list[Problem]:
    return list(ComposeApart(**fields).problems(split)[:count])  # type: ignore[arg-type]


@pytest.mark.slow
def test_an_expression_equals_composing_the_functions() -> None:
    """Identity 1, of every length up to the longest."""
    for split in compose_apart.splits():
        for problem in drawn(split, 10):
            assert problem.answer == composed(str(problem.prompt))
            assert compose_apart.score(problem, str(compose_apart.demonstration(problem))) == 1.0
            assert fault(problem, str(compose_apart.demonstration(problem))) == ""


@pytest.mark.slow
def test_what_training_chains_the_test_does_not() -> None:
    """Identity 1: no function is on both sides, whichever single ones are asked for; strings are not either."""
    used = {
        split: {name for p in drawn(split, 60, levels=(1, 2, 3)) for name in p.info["functions"]}
        for split in ("train", "test", "seen", "level1", "level8")
    }
    assert used["train"] == used["seen"] == set(CHAINED)
    assert used["test"] == used["level1"] == used["level8"] == set(UNCHAINED)
    assert not set(CHAINED) & set(UNCHAINED) and set(CHAINED) | set(UNCHAINED) == set(FUNCTIONS)
    taught = drawn("train", 100, levels=(1, 2), alone="all")
    chained, alone = ({n for p in taught if (p.level != "level1") == several for n in p.info["functions"]}
                      for several in (True, False))  # fmt: skip
    assert chained == set(CHAINED) and alone == set(FUNCTIONS)
    texts = {split: {p.info["input"] for p in drawn(split, 100)} for split in ("train", "test", "seen")}
    assert not texts["train"] & (texts["test"] | texts["seen"])


def test_the_test_does_not_depend_on_what_is_trained() -> None:
    for split in ("test", "seen", "level4"):
        assert [p.prompt for p in drawn(split, 20, levels=(1,), alone="all")] == [p.prompt for p in drawn(split, 20)]
    assert {p.level for p in drawn("test", 60)} == {"level2", "level3", "level4"}
    assert {p.level for p in drawn("level6", 5)} == {"level6"}
    assert {p.level for p in drawn("train", 60, levels=(1, 2))} == {"level1", "level2"}


CHAIN = Problem("1", "f3(f2(f0(x))) cab>", "bcd", info={"functions": ("f0", "f2", "f3"), "input": "cab"})


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("f0:bac>f2:cbd>f3:bcd", ""), ("f0:bac>f2:cbd", "too few"), ("f0:bac", "one function"),
        ("f3:abc", "one function"), ("f0:bac>f2:cbe>f3:bce", "wrong step"), ("f0:bacc", "wrong step"),
        ("f2:dbc>f0:cbd>f3:bcd", "other functions"), ("f0:bac>f3:abc", "other functions"),
        ("f0:bac>f2:cbd>f3:bcd>f3:bcd", "other functions"), ("bcd", "format"), ("h0:bac", "format"), ("", "format"),
        ("f0:bac>", "format"), ("f0:", "format"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_chain(said: str, name: str) -> None:
    assert fault(CHAIN, said) == name


def test_one_function_is_no_fault_where_one_is_asked_for() -> None:
    single = Problem("1", "f0(x) cab>", "bac", info={"functions": ("f0",), "input": "cab"})
    assert fault(single, worked(["f0"], "cab")) == "" and fault(single, "f3:abc") == "other functions"


def test_only_the_string_counts() -> None:
    """As in the paper: a right answer of a wrong chain is right."""
    assert ComposeApart().score(CHAIN, "f2:dbc>f0:cbd>f3:bcd ") == 1.0
    assert [ComposeApart().score(CHAIN, said) for said in ("", "bcd x:", "f3:bcde")] == [0.0, 0.0, 0.0]


def test_what_is_refused_of_chains_apart() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'seen'"):
        compose_apart.problems("sean")
    for fields in ({"levels": ()}, {"tested": ()}, {"levels": (9,)}, {"alone": "none"}):
        with pytest.raises(ConfigError):
            ComposeApart(**fields)  # type: ignore[arg-type]
