"""Evaluation along axes: what is shown, what is paired with what, and questions one after the other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import etude
from etude.core.episodes import Problem
from etude.core.errors import ConfigError, DataError, UnknownNameError
from etude.core.task import LanguageTask
from etude.evaluation import axes
from etude.evaluation.axes import AxesEvaluation, chain_success, check_axes, evaluate_axes, step_by_step
from etude.evaluation.language import evaluate_split
from etude.evaluation.pass_at_k import over_problems
from etude.runs import evaluate as evaluating
from etude.runs.evaluate import Evaluated
from etude.runs.worlds import EvaluationOptions
from etude.tasks.agents.attr_20q import attr_20q
from etude.tasks.language.compose import compose
from etude.tasks.language.sums import Sums
from language_toys import random_policy

pytestmark = pytest.mark.usefixtures("one_thread")
TASK: LanguageTask = Sums(terms=(3, 4))


def test_questions_of_a_sum_lead_to_its_answer_and_show_what_was_found_before() -> None:
    for index in range(20):
        problem = TASK.problems("test")[index]
        steps = problem.info["subproblems"]
        assert [eval(s["prompt"][:-1]) for s in steps] == [int(s["answer"]) for s in steps]
        assert steps[-1]["answer"] == problem.answer and len(steps) == len(problem.prompt.split("+")) - 1
        assert sorted(problem.info["knowledge"]) == sorted(s["prompt"] + s["answer"] for s in steps)
        asked = step_by_step(problem)
        assert asked[-1].prompt == "".join(f"{s['prompt']}{s['answer']}\n" for s in steps[:-1]) + steps[-1]["prompt"]
        assert [TASK.score(p, str(p.answer)) for p in asked] == [1.0] * len(steps)
        assert len({p.id for p in asked}) == len(asked)
    said = Problem("a", [{"role": "user", "content": "1+2="}], info={"subproblems": [{"prompt": "1+2=", "answer": 3}]})
    assert step_by_step(said)[0].prompt == [{"role": "user", "content": "1+2="}]


def test_independent_questions_are_all_right_as_often_as_the_product_says() -> None:
    """Identity (2) of the row: by all combinations of what is right with chances 3/4, 1/2 and 1."""
    first, second, third = [1, 1, 1, 0], [1, 0], [1]
    right = np.array([*product(first, second, third)]).T
    assert chain_success(right) == pytest.approx(3 / 4 * 1 / 2) and chain_success(right) <= right.mean(1).min()


def test_differences_are_paired_and_said_by_level(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[Problem]] = []

    def right(policy: Any, task: Any, chosen: Sequence[Problem], split: str, **options: Any) -> Any:
        """Three terms in one sample of two, with a plan four terms in the other one; questions by their number."""
        asked.append(list(chosen))
        four = [[p.level == "terms4" and "then" in str(p.prompt), p.level == "terms3"] for p in chosen]
        questions = [[True, not p.id.endswith("/3")] for p in chosen]
        return SimpleNamespace(correct=np.array(questions if "/test/" in chosen[0].id and chosen[0].id.count("/") > 2
                                                else four))  # fmt: skip

    monkeypatch.setattr(axes, "evaluate_problems", right)
    found = evaluate_axes(None, TASK, "test", problems=40, samples=2)  # type: ignore[arg-type]
    plain, plan, knowledge, steps = asked
    assert [p.id for p in plain] == [p.id for p in plan] == [p.id for p in knowledge]  # so with the same random numbers
    assert [p.prompt for p in plan] == [f"{p.info['plan']}\n{p.prompt}" for p in plain]
    assert len(steps) == sum(len(p.info["subproblems"]) for p in plain)
    scores = found.summary()
    share = np.mean([p.level == "terms4" for p in plain])
    assert scores["plan/gain/terms4"].value == 0.5 and scores["plan/gain/terms3"].value == 0
    assert scores["plan/gain"].value == pytest.approx(0.5 * share) and scores["knowledge/gain"].value == 0
    assert scores["right"].value == pytest.approx(0.5 * (1 - share)) and scores["subproblems/gain/terms3"].value == 0.5
    assert scores["subproblems/right"].value == pytest.approx(1 - 0.5 * share)  # four terms have a third question


def test_models_differ_by_what_they_differ_in_problem_by_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """base, stage 1 and stage 2, each right more often with the plan than the one before it, on the same problems."""
    plans = {"base": [0.0, 1.0, 0.0], "first": [0.0, 1.0, 1.0], "second": [1.0, 0.0, 1.0]}

    def found(name: str, *rest: Any) -> Evaluated:
        plain = np.array([0.0, 1.0, 0.0])
        one = AxesEvaluation("test", plain, {"plan": np.array(plans[name])}, None, ["easy", "easy", "hard"])
        return Evaluated({"test": one.summary()}, None)  # type: ignore[arg-type]

    monkeypatch.setattr(evaluating, "evaluation_of", found)
    asked = evaluating.evaluations_of([*plans], "sums", EvaluationOptions(axes="plan"))
    assert [*asked] == [*plans, "first - base", "second - base", "second - first"]
    between = asked["second - first"].scores["test"]
    assert between.keys() == asked["base"].scores["test"].keys() and between["right"].value == 0
    assert between["plan/gain"] == over_problems([1.0, -1.0, 0.0]) == between["plan/right"]
    assert between["plan/gain"].low < 0 < between["plan/gain"].high and between["plan/gain/hard"].value == 0
    assert asked["first - base"].scores["test"]["plan/gain/hard"].value == 1
    assert asked["second - base"].scores["test"]["plan/gain"].value == pytest.approx(1 / 3)
    assert [*evaluating.evaluations_of(["base", "first"], "sums", EvaluationOptions())] == ["base", "first"]
    with pytest.raises(DataError, match="there are 2 and 3 of them"):
        over_problems([1.0, 0.0]).against(over_problems([0.0, 0.0, 1.0]))


def test_models_of_several_tasks_have_no_problems_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = {"a": {"task": "sums"}, "b": {"task": "sums", "task_fields": ["task.terms=(3,)"]}}
    monkeypatch.setattr(evaluating, "locate", lambda name: (name, tasks[name]))
    with pytest.raises(ConfigError, match="a and b were not trained on the same: name one task with --task"):
        evaluating.evaluations_of(["a", "b"], None, EvaluationOptions(axes="plan"))


@pytest.mark.slow
def test_what_is_plain_is_what_an_evaluation_samples() -> None:
    policy = random_policy(context=256)
    found = evaluate_axes(policy, TASK, "test", ("plan",), problems=6, samples=2, seed=3)
    plain = evaluate_split(policy, TASK, "test", problems=6, samples=2, seed=3)
    assert (found.plain == plain.correct.mean(1)).all() and found.chained is None and [*found.shown] == ["plan"]


@pytest.mark.slow
def test_data_files_have_axes_in_their_columns_and_the_verb_reads_them(tmp_path: Path) -> None:
    steps = [{"prompt": "1+2=", "answer": "3"}]
    rows = [{"prompt": "1+2=", "answer": "3", "plan": "add", "subproblems": steps}] * 3
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({**row, "id": str(i)}) + "\n" for i, row in enumerate(rows)))
    found = etude.evaluate("tiny", str(file), axes="plan,subproblems", problems=3, k=2, split="train")
    assert {"right", "plan/gain", "subproblems/gain"} <= {*found["train"]}
    with pytest.raises(DataError, match="no knowledge to show"):
        etude.evaluate("tiny", str(file), axes="knowledge", split="train")


def test_what_cannot_be_shown_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="plan"):
        check_axes(["plans"], compose)
    with pytest.raises(ConfigError, match="turns"):
        check_axes(["plan"], attr_20q)
    with pytest.raises(ConfigError, match="leave out --search"):
        etude.evaluate("tiny", "sums", axes="plan", search="best-of:2")
    with pytest.raises(ConfigError, match="means nothing"):
        etude.evaluate("tiny", "enumerable", axes="plan")
