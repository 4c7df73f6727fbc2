"""The interplay of training phases: graphs that are read back, what is wrong with them, and one budget."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import etude
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError
from etude.methods.rlvr.interplay_pretrain_midtrain_rl import (
    GraphReward,
    StrictGraphReward,
    interplay_pretrain_midtrain_rl,
    interplay_rl_alone,
    rl_cost,
    steps_for,
)
from etude.stages.chain import Train
from etude.tasks.language.dags import (
    VOCABULARIES,
    Dags,
    Node,
    computed,
    graph_errors,
    parsed,
    process_score,
    rendered,
)

TASK = Dags(ops=(1, 2, 3, 4, 5, 6, 7, 8), rare=0.5)
RUN: Any = SimpleNamespace(task=TASK, policy=None)


def some(split: str = "train", count: int = 60, task: Dags = TASK) -> list[Problem]:
    pool = task.problems(split)
    return [pool[i] for i in range(count)]


def score(part: Any, problem: Problem, *texts: str) -> list[float]:
    return list(part.score([Episode(problem, [Segment("assistant", t)]) for t in texts], RUN))


@pytest.mark.parametrize("modulus", [2, 23])
def test_a_worked_answer_parses_back_to_the_graph_of_its_prompt(modulus: int) -> None:
    """Identity 3, and every node follows from its parents; as many operations as the level says, all of them needed."""
    for problem in some(task=replace(TASK, modulus=modulus)):
        graph = parsed(problem.info["demonstration"])
        assert graph is not None and rendered(graph) == problem.info["demonstration"]
        shown, _, asked = str(problem.prompt).rstrip(">").partition("?")
        defined = dict(step.split("=") for step in shown.split(";"))
        assert defined.keys() == graph.keys() and list(graph)[-1] == asked
        met: set[str] = set()
        for name, node in graph.items():
            assert node.operation.join(node.parents or (str(node.value),)) == defined[name]
            assert met.issuperset(node.parents)
            if node.parents:
                assert node.value == computed(node.operation, *(graph[p].value for p in node.parents), modulus)
            assert 0 <= node.value < modulus
            met.add(name)
        assert sum(bool(n.parents) for n in graph.values()) == int(problem.level[2:])
        assert TASK.score(problem, problem.info["demonstration"]) == 1.0
        needed, left = set[str](), [asked]
        while left:
            needed.add(name := left.pop())
            left += [p for p in graph[name].parents if p not in needed]
        assert needed == graph.keys()


def test_vocabularies_differ_in_surface_alone() -> None:
    for problem in some("rare", 20):
        assert parsed(problem.info["demonstration"]).keys() <= set(VOCABULARIES["second"])  # type: ignore[union-attr]
    names = [set(parsed(p.info["demonstration"]) or ()) <= set(VOCABULARIES["first"]) for p in some()]
    assert 15 < sum(names) < 45
    assert all(p.info["vocabulary"] == "first" for p in (Dags().problems("train")[i] for i in range(20)))


def test_hard_problems_are_the_same_whatever_is_trained_on() -> None:
    easy, edge = (some("hard", 40, Dags(ops=ops, modulus=7)) for ops in ((1, 2), (5, 6)))
    assert [p.prompt for p in easy] == [p.prompt for p in edge]
    assert {p.level for p in easy} == {"op7", "op8"}
    assert {p.level for p in some("hard", 9, Dags(hard=(3,)))} == {"op3"}


def test_one_wrong_value_costs_one_node_and_the_same_graph_nothing() -> None:
    """Identity 1."""
    for problem in some():
        worked = problem.info["demonstration"]
        gold = parsed(worked)
        assert gold is not None and process_score(worked, worked) == 1.0
        first = next(iter(gold))
        other = rendered({**gold, first: replace(gold[first], value=(gold[first].value + 1) % 23)})
        assert process_score(other, worked) == pytest.approx(1 - 1 / len(gold))


def test_each_error_is_counted() -> None:
    gold = parsed("a=7;b=10;c=a+b=17;d=c-a=10;")
    assert gold is not None
    extra = {name: Node(1) for name in "efghijk"}
    for said, errors in (
        ({k: v for k, v in gold.items() if k != "b"}, 1),
        ({**gold, "e": Node(3)}, 1),
        ({**gold, **extra}, 4),  # no more than there are nodes
        ({**gold, "c": Node(17, ("a", "a"), "+")}, 1),
        ({**gold, "c": Node(17, ("b", "a"), "+")}, 0),  # parents are a set
        ({**gold, "d": Node(11, ("c", "a"), "-")}, 2),  # a value, and the answer
        ({"e": Node(1)}, 6),
    ):
        assert graph_errors(said, gold, "d") == errors
    assert process_score("e=1;", rendered(gold)) == 0.0


def test_strict_is_never_more_than_the_answer_and_wrong_answers_earn_nothing() -> None:
    """Identity 2, over worked answers of which one character is another."""
    draw, blended, seen = random.Random(0), GraphReward(), set()
    for problem in some():
        worked = problem.info["demonstration"]
        texts = [worked]
        for _ in range(12):
            place = draw.randrange(len(worked))
            texts.append(worked[:place] + draw.choice("0123456789abcn+-*=;?") + worked[place + 1 :])
        right = [TASK.score(problem, text) for text in texts]
        strict, mixed = score(StrictGraphReward(), problem, *texts), score(blended, problem, *texts)
        for text, o, s, r in zip(texts, right, strict, mixed):
            p = process_score(text, worked)
            assert s <= o and r == pytest.approx((0.2 + 0.8 * p) * o) and s == float(o == 1 and p == 1)
            assert p == 0 or parsed(text) is not None
            seen.add((o, s, p > 0))
    assert {(1, 1, True), (1, 0, True), (1, 0, False), (0, 0, True), (0, 0, False)} <= seen


@pytest.mark.parametrize(
    ("said", "answered", "process"),
    [
        ("a=7;b=10;c=a+b=17;", 1.0, 1.0),
        ("b=10;a=7;c=b*a=17;", 1.0, 1.0),  # another order, and an operation, which nothing looks at
        ("a=7;b=9;c=a+b=17;", 1.0, 2 / 3),  # a right answer by a wrong process
        ("a=7;c=a+a=17;", 1.0, 1 / 3),  # a node that is missing, wrong parents
        ("17", 1.0, 0.0),  # no graph at all
        ("a=7;b=10;c=a+b=18;", 0.0, 1 / 3),  # a wrong value, which is the answer
    ],
)
def test_strict_success_is_an_answer_that_was_come_to(said: str, answered: float, process: float) -> None:
    asked = Problem("1", "c=a+b;a=7;b=10?c>", "17", info={"demonstration": "a=7;b=10;c=a+b=17;"})
    strict = float(answered == 1 and process == 1)
    assert (Dags().score(asked, said), Dags(judged="process").score(asked, said)) == (answered, strict)
    for task in (Dags(), Dags(judged="process")):  # which says what a run is evaluated by, and not what it is paid
        context: Any = SimpleNamespace(task=task)
        (paid,) = GraphReward().score([Episode(asked, [Segment("assistant", said)])], context)
        assert paid == pytest.approx(answered * (0.2 + 0.8 * process))
    told = Dags().metrics(Episode(asked, [Segment("assistant", said)]))
    assert told == {"process": pytest.approx(process), "strict": strict}


def test_without_a_worked_graph_the_answer_is_all_there_is() -> None:
    problem = Problem("1", "1+1=", "2", info={"demonstration": "two, of course"})
    for part in (GraphReward(), StrictGraphReward()):
        assert score(part, problem, "x=2;", "2", "3") == [1.0, 1.0, 0.0]


def test_a_token_of_rl_costs_five_thirds_of_one_of_pre_training() -> None:
    """Identity 4; and the recipe spends the same on both of its later runs."""
    assert rl_cost(1, 1, 1) == pytest.approx(5 / 3) == pytest.approx((2 + 2 + 6) / 6)
    for share in (0.0, 0.25, 0.5, 1.0):
        mid, rl = steps_for(10240 * 60, share, length=60)
        assert mid * 32 * 60 + rl_cost(rl * 16, 8, 60) == pytest.approx(10240 * 60)
    runs = {run.called: run for run in interplay_pretrain_midtrain_rl.runs if isinstance(run, Train)}
    assert (runs["mid"].steps, runs["rl"].steps) == steps_for(10240, 0.5)
    pre, alone = interplay_rl_alone.runs
    assert pre == runs["pre"] and (0, alone.budget) == steps_for(10240, 0.0)
    assert {"problems=32"} < set(runs["mid"].set) and {"problems=16", "experience.size=8"} < set(runs["rl"].set)


def test_no_operations_and_a_modulus_of_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one number of operations"):
        Dags(ops=())
    with pytest.raises(ConfigError, match=r"Dags.hard must name at least one"):
        Dags(hard=())
    with pytest.raises(ConfigError, match="modulus"):
        Dags(modulus=1)


@pytest.mark.slow
def test_the_chain_is_trained_from_nothing(tmp_path: Path) -> None:
    small = ("problems=2", "task.ops=[1]")
    runs = tuple(
        run.replace(
            steps=1,
            set=(*run.set, *small, *(("experience.size=2", "experience.max_tokens=4") if run.called == "rl" else ())),
        )
        for run in interplay_pretrain_midtrain_rl.runs
    )
    recipe = interplay_pretrain_midtrain_rl.replace(id="small", runs=runs)
    made = etude.train(recipe, "dags", model="blank:1x16", out=tmp_path / "chain", evaluate=0, quiet=True)
    assert [line["run"] for line in made.metrics] == [1, 2, 3]
    assert made.metrics[-1]["reward/graph-reward"] == 0.0 and made.metrics[0]["loss"] > 0
