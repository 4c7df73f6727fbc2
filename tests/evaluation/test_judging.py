"""Judging: F1 of first wrong steps, independence, and what choosing by a judge's word comes to."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2_contingency

import etude
from etude.core.episodes import Problem
from etude.core.errors import ConfigError, DataError, UnknownNameError
from etude.core.task import LanguageTask
from etude.evaluation import judging
from etude.evaluation.judging import Judged, chi_square, evaluate_judging, judge_f1, select
from etude.evaluation.language import Evaluation, evaluate_split
from etude.evaluation.pass_at_k import pass_at_k
from etude.tasks.agents.attr_20q import attr_20q
from etude.tasks.language.sums import Sums
from language_toys import random_policy

pytestmark = pytest.mark.usefixtures("one_thread")
TASK: LanguageTask = Sums(terms=(3, 4))


def judged(correct: Any, accepted: Any, answers: list[list[str]] | None = None) -> Judged:
    """Solutions, and a judge's word about them."""
    right = np.array(correct, bool)
    episodes: Any = [[SimpleNamespace(problem=Problem("a", "?"))] * right.shape[1] for _ in right]
    texts = answers or [[""] * right.shape[1] for _ in right]
    own = Evaluation("test", right, right.astype(float), episodes, texts)
    return Judged("test", [], [], np.array([], bool), own, np.array(accepted, float), np.zeros(right.shape))


def test_a_perfect_judge_finds_what_there_is_and_one_that_knows_nothing_the_first() -> None:
    """Identity (1) of the row: pass@k, and pass@1 where nothing breaks ties."""
    random = np.random.default_rng(0)
    right = random.random((50, 4)) < 0.3
    perfect, blind = judged(right, right), judged(right, np.ones_like(right))
    for k in (2, 4):
        assert (perfect.chosen(k) == right[:, :k].any(1)).all() and (blind.chosen(k) == right[:, 0]).all()
    assert perfect.chosen(4).mean() == pass_at_k(right, 4).mean() > right.mean()


def test_ties_go_to_the_commonest_answer_and_then_to_the_likeliest() -> None:
    assert select([0.5, 1.0, 0.5], ["a", "b", "a"], [0, -9, 0]) == 1
    assert select([1, 1, 1], ["a", "b", "b"], [0, -9, -8]) == 2
    assert select([1, 1, 1], ["", "", "b"], [0, 0, -8]) == 2  # what is no answer does not vote
    assert select([1, 1], ["a", "b"], [-2, -1]) == 1


def test_who_always_accepts_has_no_f1() -> None:
    """Identity (2) of the row, and two numbers by hand."""
    labels = [0, 2, 1, -1, -1]
    assert judge_f1(labels, [-1] * 5) == 0 and judge_f1(labels, labels) == 1
    assert judge_f1(labels, [0, 2, None, -1, 3]) == pytest.approx(2 * (2 / 3) * (1 / 2) / (2 / 3 + 1 / 2))
    assert judge_f1([1, 2], [1, 2]) == judge_f1([-1], [-1]) == 0  # there is nothing of the other kind


def test_the_statistic_is_pearsons() -> None:
    """Identity (3) of the row."""
    for table in ([[3, 9], [14, 2]], [[1, 5], [7, 8]], [[20, 1], [1, 1]]):
        assert chi_square(table) == pytest.approx(chi2_contingency(table, correction=False).statistic, rel=1e-12)
    assert chi_square(np.outer([2, 3], [5, 7])) == pytest.approx(0, abs=1e-12) and chi_square([[0, 0], [3, 4]]) == 0


def test_wrong_solutions_of_sums_are_right_up_to_the_step_that_is_said() -> None:
    for index in range(30):
        problem = TASK.problems("test")[index]
        (right, none), (wrong, place) = TASK.given_solutions(problem)
        assert none == -1 and TASK.score(problem, ",".join(right)) == 1 and TASK.score(problem, ",".join(wrong)) == 0
        assert wrong[:place] == right[:place] and all(a != b for a, b in zip(wrong[place:], right[place:]))
        assert len({int(a) - int(b) for a, b in zip(wrong[place:], right[place:])}) == 1
        assert TASK.given_solutions(problem) == [(right, -1), (wrong, place)]


@pytest.mark.parametrize("how", ["plain", "self-ref"])
def test_a_judge_that_can_add_is_found_perfect(how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def says(policy: Any, task: Any, chosen: Sequence[Problem], split: str, *, samples: int, **rest: Any) -> Evaluation:
        """Solves every other problem in the second of two samples; judges by adding up."""
        rows = []
        for number, problem in enumerate(chosen):
            if "/given/" in problem.id or "/own/" in problem.id:
                asked.append(str(problem.prompt))
                steps = [line.split()[1] for line in str(problem.prompt).splitlines() if line.startswith("<")]
                truth = str(task.demonstration(problem)).split(",")
                wrong = [i for i, (a, b) in enumerate(zip(steps, truth)) if a != b]
                texts = [str(wrong[0] if wrong else -1)] * samples
            else:
                texts = ["0", str(task.demonstration(problem)) if number % 2 else "1,1"]
            turn = SimpleNamespace(behaviour_logp=[-1.0])
            rows.append([SimpleNamespace(problem=problem, completion=t, turns=[turn]) for t in texts])
        correct = np.array([[task.score(e.problem, e.completion) == 1 for e in row] for row in rows])
        return Evaluation(split, correct, correct.astype(float), rows, [[e.completion for e in r] for r in rows])  # type: ignore[arg-type]

    monkeypatch.setattr(judging, "evaluate_problems", says)
    found = evaluate_judging(None, TASK, "test", how, problems=10, samples=2)  # type: ignore[arg-type]
    scores = found.summary((1, 2))
    assert scores["judge/f1"].value == scores["judge/precision"].value == scores["judge/recall"].value == 1
    assert scores["self-prm@2"].value == scores["pass@2"].value == 0.5 and scores["pass@1"].value == 0.25
    views = [text.partition("\n")[0] if text.startswith("A solution: ") else "" for text in asked]
    assert len(asked) == 20 + 20 and (set(views) == {""}) == (how == "plain")
    if how == "self-ref":  # given ones beside the first of its own, and each of these beside the other one
        second = [str(TASK.demonstration(p)) if i % 2 else "1,1" for i, p in enumerate(TASK.problems("test")[:10])]
        assert views[:20] == ["A solution: 0"] * 20
        assert views[20:] == [f"A solution: {text}" for other in second for text in (other, "0")]


def test_of_several_judgements_the_commonest_word_counts_and_of_its_own_the_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three judgements of each solution: of given ones two are exact, of its own one or two of three accept."""

    def says(policy: Any, task: Any, chosen: Sequence[Problem], split: str, *, samples: int, **rest: Any) -> Evaluation:
        rows = []
        for problem in chosen:
            if "/given/" in problem.id:
                steps = [line.split()[1] for line in str(problem.prompt).splitlines() if line.startswith("<")]
                truth = str(task.demonstration(problem)).split(",")
                place = next((i for i, (a, b) in enumerate(zip(steps, truth)) if a != b), -1)
                texts = ["fine", str(place), str(place), "77"]
            elif "/own/" in problem.id:
                texts = ["-1", "0", "0", "-1"] if int(problem.id.rpartition("/")[2]) else ["-1", "-1", "0", "-1"]
            else:
                texts = ["0", str(task.demonstration(problem))]
            turn = SimpleNamespace(behaviour_logp=[-1.0])
            rows.append([SimpleNamespace(problem=problem, completion=t, turns=[turn]) for t in texts[:samples]])
        correct = np.array([[task.score(e.problem, e.completion) == 1 for e in row] for row in rows])
        return Evaluation(split, correct, correct.astype(float), rows, [[e.completion for e in r] for r in rows])  # type: ignore[arg-type]

    monkeypatch.setattr(judging, "evaluate_problems", says)
    f1 = []
    for judges in (1, 3):
        found = evaluate_judging(None, TASK, "test", problems=10, samples=2, judges=judges)  # type: ignore[arg-type]
        f1.append(found.summary((1, 2))["judge/f1"].value)
    assert f1 == [0.0, 1.0] and (found.accepted == [2 / 3, 1 / 3]).all()


@pytest.mark.slow
def test_its_own_solutions_are_those_of_an_evaluation_and_data_files_have_given_ones(tmp_path: Path) -> None:
    policy = random_policy(context=256)
    found = evaluate_judging(policy, TASK, "test", problems=4, samples=2, judges=3, seed=3)
    plain = evaluate_split(policy, TASK, "test", problems=4, samples=2, seed=3)
    assert (found.own.correct == plain.correct).all() and found.accepted.shape == (4, 2)
    assert all(math.isfinite(i.value) for i in found.summary((1, 2)).values())
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"prompt": "1+2=", "answer": "3", "steps": ["1+2=4"], "label": 0}) + "\n")
    scores = etude.evaluate("tiny", str(file), judge="plain", problems=1, k=(1, 2), split="train")["train"]
    assert {"judge/f1", "judge/exact/wrong", "self-prm@2"} <= {*scores}
    file.write_text(json.dumps({"prompt": "1+2=", "answer": "3"}) + "\n")
    with pytest.raises(DataError, match="'steps'"):
        etude.evaluate("tiny", str(file), judge="plain", split="train")


@pytest.mark.slow
def test_runs_say_along_the_way_how_well_they_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As evaluating the checkpoint says afterwards, and no number of the training is another one."""
    monkeypatch.setattr(judging, "verdict", lambda text: len(text) % 3 - 1)  # the shipped model says no numbers
    told: dict[str, Any] = {
        "set": {"problems": 4, "experience.size": 4, "task.terms": (4,)}, "steps": 2, "evaluate": 4,
        "evaluate_samples": 2, "evaluate_split": "test", "evaluate_every": 1, "quiet": True, "threads": 1, "seed": 3,
    }  # fmt: skip
    run = etude.train("grpo", "sums", out=tmp_path / "run", evaluate_judge="plain", keep_best="test/judge/f1", **told)
    plain = etude.train("grpo", "sums", out=tmp_path / "plain", **told)
    first, second = ([{k: v for k, v in m.items() if "second" not in k} for m in r.metrics] for r in (run, plain))
    assert first == second and "loss" in first[0]
    lines = [json.loads(line) for line in (run.folder / "evaluations.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2] and all({*judging.GIVEN} <= {*line["test"]} for line in lines)
    after = etude.evaluate(run.folder, judge="plain", problems=4, k=(1, 2), seed=3, split="test")["test"]
    for name in judging.GIVEN:
        last, end = lines[-1]["test"][name], run.evaluation["after"]["test"][name]
        assert last == after[name].value == end["value"]
        assert lines[-1]["intervals"][name] == [after[name].low, after[name].high] == [end["low"], end["high"]]
    assert after["judge/exact/wrong"].value + after["judge/exact/right"].value > 0
    assert {*plain.evaluation["after"]["test"]} == {*run.evaluation["after"]["test"]} - {*judging.GIVEN}


def test_runs_without_anything_to_judge_are_refused_before_they_begin(tmp_path: Path) -> None:
    told: dict[str, Any] = {"out": tmp_path / "run", "evaluate_judge": "plain", "steps": 1, "quiet": True}
    with pytest.raises(DataError, match="has a solution to judge"):
        etude.train("grpo", "compose", **told)
    with pytest.raises(ConfigError, match="no judge"):
        etude.train("grpo", "attr-20q", **told)
    with pytest.raises(ConfigError, match="evaluate=0 makes none"):
        etude.train("grpo", "sums", evaluate=0, **told)
    with pytest.raises(ConfigError, match="--evaluate-judge means nothing for cartpole"):
        etude.train("ppo", "cartpole", **told)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="give --judge plain"):
        etude.evaluate("tiny", "sums", judgements=3)


def test_what_cannot_be_judged_is_refused() -> None:
    with pytest.raises(ConfigError, match="no judge"):
        judging.check_judging(attr_20q)
    for wrong, sentence in (({"axes": "plan"}, "--axes"), ({"temperature": 0.0}, "--temperature 0")):
        with pytest.raises(ConfigError, match=sentence):
            etude.evaluate("tiny", "sums", judge="plain", **wrong)
    with pytest.raises(UnknownNameError, match="self-ref"):
        etude.evaluate("tiny", "sums", judge="self")
