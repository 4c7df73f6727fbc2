"""Compose: expressions equal composed functions, the divides hold, the verifier reads the last string."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.tasks.language.compose import FUNCTIONS, Compose, compose, functions_of, trains, worked
from etude.tasks.language.preferences import Preferences


def evaluate(prompt: str) -> str:
    """An independent reading of the expression: innermost call replaced until no call is left."""
    expression, _, text = prompt.rstrip(">").partition(" ")
    expression = expression.replace("x", text)
    while call := re.search(r"(f\d)\(([a-f]+)\)", expression):
        expression = expression.replace(call[0], FUNCTIONS[call[1]](call[2]))
    return expression


@pytest.mark.parametrize(
    ("name", "image"),
    [("f0", "dbac"), ("f1", "abdc"), ("f2", "dbce"), ("f3", "abcd"), ("f4", "dabc"), ("f5", "dfec"), ("f6", "dcab"),
     ("f7", "acbd"), ("f8", "bfac"), ("f9", "cabc")],
)  # fmt: skip
def test_each_function_by_hand(name: str, image: str) -> None:
    assert FUNCTIONS[name]("cabd") == image


def test_letters_shift_round_the_alphabet() -> None:
    assert FUNCTIONS["f2"]("faf") == "aba"
    assert FUNCTIONS["f8"]("aba") == "faf"


@pytest.mark.slow
def test_an_expression_equals_composing_the_functions() -> None:
    for split in compose.splits():
        for problem in compose.problems(split)[:200]:
            assert problem.answer == evaluate(problem.prompt)
            assert compose.score(problem, compose.demonstration(problem)) == 1.0


def test_a_known_trace() -> None:
    assert worked(["f1", "f6"], "cab") == "f1:abc>f6:cab"
    assert worked(["f0", "f2", "f3"], "fed") == "f0:def>f2:efa>f3:aef"


def test_pairs_are_divided_in_halves_in_which_every_function_occurs() -> None:
    pairs = [(a, b) for a in FUNCTIONS for b in FUNCTIONS if trains(a, b)]
    assert len(pairs) == 50
    for name in FUNCTIONS:
        assert sum(a == name for a, _ in pairs) == sum(b == name for _, b in pairs) == 5


@pytest.mark.slow
def test_no_split_uses_what_another_trains() -> None:
    pools = {s: compose.problems(s)[:1000] for s in compose.splits()}
    pairs = {s: {functions_of(p) for p in pool} for s, pool in pools.items()}
    texts = {s: {p.info["input"] for p in pool} for s, pool in pools.items()}
    assert pairs["train"] == pairs["test"] and len(pairs["train"]) == 50
    assert len(pairs["heldout"]) == 50 and not pairs["heldout"] & pairs["train"]
    assert all(not texts["train"] & texts[s] for s in pools if s != "train")


def test_neighbours_of_longer_chains_keep_to_their_half() -> None:
    for split, expected in (("train", True), ("heldout", False)):
        for problem in Compose(levels=(4,)).problems(split)[:100]:
            chain = functions_of(problem)
            assert len(chain) == 4
            assert all(trains(a, b) == expected for a, b in pairwise(chain))


def test_levels_are_drawn_and_named() -> None:
    problems = Compose(levels=(1, 3)).problems("train")[:200]
    assert {p.level for p in problems} == {"level1", "level3"}
    assert {len(functions_of(p)) for p in compose.problems("level4")[:20]} == {4}
    assert {len(p.info["input"]) for p in problems} == {3, 4, 5}


def test_a_problem_depends_on_fields_split_and_index_alone() -> None:
    pool = Compose().problems("train")
    assert pool[17] == compose.problems("train")[17] == pool[15:20][2]
    assert pool[17].id == "compose/train/17"
    assert pool[-1].id == f"compose/train/{len(pool) - 1}"
    assert [p.prompt for p in Compose(seed=1).problems("train")[:5]] != [p.prompt for p in pool[:5]]
    with pytest.raises(IndexError):
        pool[len(pool)]


@pytest.mark.first
@pytest.mark.parametrize("completion", ["", ":", "f1:", "f1:abc", "f1:abc>f6:cab>f6:bca", "f1:abc>f6:cab x", "f1:abc>"])
def test_anything_else_earns_nothing(completion: str) -> None:
    problem = next(p for p in compose.problems("train")[:2000] if p.answer not in "abc bca")
    assert compose.score(problem, completion) == 0.0


def test_only_the_last_string_counts() -> None:
    problem = compose.problems("train")[0]
    assert compose.score(problem, f"f1:zzz>f6:{problem.answer} ") == 1.0


def test_what_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'heldout'"):
        compose.problems("held-out")
    with pytest.raises(ConfigError, match="at least one level"):
        Compose(levels=())
    with pytest.raises(ConfigError, match=r"\[1, 8\], got"):
        Compose(levels=(9,))


def test_a_careless_worker_does_single_functions_right_and_few_chains() -> None:
    """Drawn by the problem: the share of intended chains is `care`, and no pair is shown that training holds out."""
    task = Compose(levels=(1, 3), care=0.25)
    problems = task.problems("train")[:300]
    shown = [str(task.demonstration(p)) for p in problems]
    assert shown == [task.demonstration(p) for p in problems]
    alone = [(p, said) for p, said in zip(problems, shown) if p.level == "level1"]
    chains = [(p, said) for p, said in zip(problems, shown) if p.level == "level3"]
    assert all(said == p.info["demonstration"] for p, said in alone)
    meant = sum(said == p.info["demonstration"] for p, said in chains) / len(chains)
    assert 0.15 < meant < 0.4  # some mistakes are none: any function may be the right one
    names = [[step[:2] for step in said.split(">")] for _, said in chains]
    assert all(trains(a, b) for chain in names for a, b in pairwise(chain))
    assert all(said.rpartition(":")[2] == FUNCTIONS[said.split(">")[-1][:2]](_before(p, said))
               for p, said in chains)  # fmt: skip


def _before(problem: Problem, said: str) -> str:
    """What the last step of a chain was done to."""
    steps = said.split(">")
    return str(problem.info["input"]) if len(steps) == 1 else steps[-2].partition(":")[2]


def test_care_is_about_what_is_shown_and_not_about_what_is_right() -> None:
    """Answers, pairs and scores stay as they are; with full care nothing is drawn."""
    careful, other = Preferences(levels=(3,)), Preferences(levels=(3,), care=0.0)
    for own, theirs in zip(careful.problems("train")[:20], other.problems("train")[:20]):
        assert own == theirs
        assert careful.demonstration(own) == own.info["chosen"]
    assert any(other.demonstration(p) != p.info["chosen"] for p in other.problems("train")[:20])
    with pytest.raises(ConfigError, match="care"):
        Compose(care=1.5)
