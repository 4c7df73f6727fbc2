"""Chains: two chains, permuted names, the first sink decides."""

from __future__ import annotations

import pytest

from etude.core.errors import ConfigError, UnknownNameError
from etude.tasks.language.chains import Chains, chains


def parsed(prompt: str) -> tuple[dict[str, str], str]:
    edges, _, source = prompt.partition(">")
    return {e[0]: e[1] for e in edges.split()}, source


def test_following_the_edges_gives_the_answer() -> None:
    for task in (chains, Chains(length=6, isolated=3), Chains(length=2)):
        for problem in task.problems("train")[:200]:
            follows, vertex = parsed(problem.prompt)
            assert len(follows) == 2 * (task.length - 1)
            way = ""
            while vertex in follows:
                vertex = follows[vertex]
                way += vertex
            assert way == problem.info["demonstration"]
            assert vertex == problem.answer == problem.info["sinks"][0]
            assert problem.info["sinks"][1] in set(follows.values()) - set(follows)
            assert problem.level == f"edges{len(way)}"
            assert task.score(problem, way) == 1.0 and task.traverses(problem, way)


def test_the_first_sink_within_the_limit_decides() -> None:
    problem = chains.problems("train")[0]
    right, wrong = problem.info["sinks"]
    other = next(v for v in "abcdefgh" if v not in problem.info["sinks"])
    assert chains.score(problem, right) == chains.score(problem, right + wrong) == 1.0
    assert chains.score(problem, 4 * other + right) == 1.0
    assert not chains.traverses(problem, 4 * other + right)
    for said in ("", other, wrong, wrong + right, 5 * other + right):
        assert chains.score(problem, said) == 0.0


def test_starts_set_the_difficulty() -> None:
    levels = {p.level for p in Chains(length=5).problems("train")[:200]}
    assert levels == {"edges1", "edges2", "edges3", "edges4"}
    assert {p.level for p in Chains(length=5, starts=(0,)).problems("test")[:50]} == {"edges4"}


@pytest.mark.slow
def test_train_and_test_share_no_problem() -> None:
    task = Chains(length=2)
    train, test = ({p.prompt for p in task.problems(s)[:1000]} for s in ("train", "test"))
    assert train and test and not train & test


def test_what_is_refused() -> None:
    with pytest.raises(UnknownNameError):
        chains.problems("tests")
    with pytest.raises(ConfigError, match="places from 0 to 2"):
        Chains(starts=(3,))
    with pytest.raises(ConfigError, match="names for 25"):
        Chains(length=12, isolated=2)
