"""MR-RLVR: exercises about worked answers, what they are worth, and the chain of runs."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import etude
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError, DataError
from etude.core.registry import get_method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.experiments.rlvr import mr_rlvr as experiment
from etude.experiments.watched import Job, Run
from etude.methods.rlvr.mr_rlvr import Exercises, ProcessReward, fill_score, filled, mr_rlvr, order_score
from etude.methods.rlvr.mr_rlvr.pieces import LETTERS
from etude.tasks.language.files import DataFile
from etude.tasks.language.sums import Sums

TASK = Sums(terms=(2, 3, 5, 6))
PROBLEMS = [TASK.problems("train")[i] for i in range(200)]
READS: Any = SimpleNamespace(task=SimpleNamespace(answer=lambda text: text.strip()))


class Worked(LanguageTask):
    """One worked answer, whatever the problem."""

    id: ClassVar[str] = "worked"
    text: str | None = "8,17"

    def demonstration(self, problem: Problem) -> str | None:
        return self.text


def made(text: str, **fields: Any) -> list[dict[str, Any]]:
    return Exercises(**fields).rows([Problem("1", "3+5+9=")], Worked(text), 0)


def paid(row: dict[str, Any], said: str) -> float:
    problem = Problem("1", row["prompt"], row["answer"], row["level"], row)
    return ProcessReward().bind().score([Episode(problem, [Segment("assistant", said)])], READS)[0]


# Exercises


def test_gold_answers_are_worth_one_and_worked_answers_come_back() -> None:
    """Identities 1 and 2, of both kinds."""
    rows = Exercises().rows(PROBLEMS, TASK, seed=1)
    worked = {p.id: (p.prompt, TASK.demonstration(p)) for p in PROBLEMS}
    for row in rows:
        asked, text = worked[row["id"]]
        assert paid(row, row["answer"]) == 1.0 and row["prompt"].startswith(asked)
        shown = row["prompt"].removeprefix(asked).removesuffix("|")
        if row["level"] == "fill":
            assert filled(shown, row["gold"]) == text != shown
            assert 1 <= len(row["gold"]) <= 4 and row["answer"] == ";".join(row["gold"])
        else:
            steps = dict(part.split(":") for part in shown.split(" "))
            assert ",".join(steps[letter] for letter in row["answer"]) == text
            assert list(steps.values()) != text.split(",")  # never in order already
    kinds = [row["level"] for row in rows]
    several = [r for r in rows if "," in worked[r["id"]][1]]
    share = sum(r["level"] == "fill" for r in several) / len(several)
    assert set(kinds) == {"fill", "order"} and abs(share - 0.5) < 4 * (0.25 / len(several)) ** 0.5
    assert {len(r["gold"]) for r in rows if r["level"] == "fill"} == {1, 2, 3, 4}


def test_a_random_order_is_worth_one_place_of_n() -> None:
    """Identity 1: a permutation has one fixed point in expectation."""
    for n in (2, 3, 5):
        gold, steps = LETTERS[:n], [str(10 * i) for i in range(n)]
        scores = [order_score("".join(o), gold, steps) for o in itertools.permutations(gold)]
        assert sum(scores) / len(scores) == pytest.approx(1 / n, abs=1e-12)


@pytest.mark.parametrize(
    ("text", "fields", "kinds"),
    [
        ("eight", {"masks": 1.0}, []),  # nothing to be left blank, one step
        ("eight", {"masks": 0.0}, []),
        ("8", {"masks": 0.0}, ["fill"]),  # one step has no order
        ("8,8", {"masks": 0.0}, ["fill"]),  # nor have two that are alike
        ("eight,nine", {"masks": 1.0}, ["order"]),
        ("8,[1]", {"masks": 1.0}, ["order"]),  # it looks as if it had a blank already
        ("8,17", {"masks": 1.0}, ["fill"]),
    ],
)
def test_what_cannot_be_asked_is_left_out(text: str, fields: dict[str, Any], kinds: list[str]) -> None:
    """Identity 2: no exercise has no blank."""
    assert [row["level"] for row in made(text, **fields)] == kinds
    assert all(row["gold"] for row in made(text, **fields))


def test_how_many_blanks_there_are_is_a_field() -> None:
    for blanks in (1, 2):
        rows = Exercises(masks=1.0, blanks=blanks).rows(PROBLEMS, TASK, seed=0)
        assert {len(r["gold"]) for r in rows} == set(range(1, blanks + 1))
    (words,) = made("the sum is eight", masks=1.0, spans=r"\b(?:sum|eight)\b", blanks=4, fill="Fill in {masked}.")
    assert set(words["gold"]) <= {"sum", "eight"} and words["prompt"].startswith("Fill in the ")


def test_exercises_are_the_same_for_a_seed_alone() -> None:
    first, again, other = (Exercises().rows(PROBLEMS, TASK, seed=s) for s in (0, 0, 1))
    assert first == again and first != other
    assert Exercises().rows(PROBLEMS[50:60], TASK, seed=0) == [
        r for r in first if r["id"] in {p.id for p in PROBLEMS[50:60]}
    ]


# Rewards


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "score"),
    [
        ("17;0.5;x = 2", 1.0), ("17;1/2;X = 2", 1.0), (" 17 ; 0.50 ; x = 2 ", 1.0), ("17", 1 / 3), ("", 0.0),
        ("9;0.5;x = 2", 2 / 3), ("17;0.5;x = 2;4", 1.0), ("0.5;17", 0.0), ("9;17;0.5;x = 2", 0.0),
    ],
)  # fmt: skip
def test_missing_and_extra_fills_earn_nothing(given: str, score: float) -> None:
    assert fill_score(given.split(";"), ["17", "0.5", "x = 2"]) == pytest.approx(score)


@pytest.mark.parametrize(
    ("given", "score"),
    [("BAC", 1.0), ("ABC", 1 / 3), ("CAB", 1 / 3), ("ACB", 0.0), ("BA", 0.0), ("BACA", 0.0), ("BAD", 0.0), ("", 0.0)],
)
def test_places_count_and_what_is_no_order_does_not(given: str, score: float) -> None:
    assert order_score(given, "BAC", ["17", "8", "19"]) == pytest.approx(score)


def test_steps_that_say_the_same_stand_for_each_other() -> None:
    assert order_score("ABC", "BAC", ["8", "8", "19"]) == 1.0


def test_an_order_is_read_with_or_without_what_stands_between() -> None:
    (row,) = made("8,17,19", masks=0.0)
    assert paid(row, ", ".join(row["answer"])) == paid(row, row["answer"]) == 1.0
    assert paid(row, "I do not know") == 0.0


def test_what_is_no_exercise_is_refused() -> None:
    with pytest.raises(DataError, match="is no exercise about a worked answer"):
        ProcessReward().bind().score([Episode(Problem("1", "1+1=", "2"), [Segment("assistant", "2")])], READS)
    with pytest.raises(DataError, match="has no worked answer to make exercises of"):
        made(None)  # type: ignore[arg-type]
    for fields, sentence in (
        ({"fill": "{problem}"}, "fill must have {masked} in it"), ({"order": "?"}, "order must have {steps} in it"),
        ({"separator": ""}, "text between two steps"), ({"spans": "("}, "must be a regular expression"),
        ({"spans": "[0-9]*"}, "must not match nothing"), ({"blanks": 0}, "blanks"), ({"masks": 2.0}, "masks"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=re.escape(sentence)):
            Exercises(**fields)


# The chain

SMALL: Any = {"quiet": True, "evaluate": 0, "preset": False, "threads": 1}
FIELDS = ["problems=2", "experience.size=4", "experience.max_tokens=8"]


def weights(folder: Path) -> bytes:
    return max((folder / "checkpoints").glob("step-*")).joinpath("model", "model.safetensors").read_bytes()


@pytest.mark.slow
def test_the_chain_hands_exercises_on(tmp_path: Path) -> None:
    run = etude.train(
        "mr-rlvr", "sums", steps=4, set=[*FIELDS, "runs.exercises.problems=30"], out=tmp_path / "r", **SMALL
    )
    data = [json.loads(line) for line in (run.folder / "01-exercises" / "data.jsonl").read_text().splitlines()]
    assert len(data) == 30
    assert [line["run"] for line in run.metrics] == [2, 2, 3, 3]
    assert {"reward/process-reward"} <= run.metrics[0].keys() and "reward/task-reward" in run.metrics[-1]
    method = json.loads((run.folder / "02-process" / "method.json").read_text())
    assert [p["part"] for p in method["rewards"]] == ["process-reward"]
    problem = DataFile(str(run.folder / "01-exercises" / "data.jsonl")).problems("train")[0]
    assert problem.info["gold"] and problem.level in ("fill", "order")
    row = next(r for r in data if r["prompt"] == problem.prompt)
    said = Episode(problem, [Segment("assistant", row["answer"])])
    task = DataFile(str(run.folder / "01-exercises" / "data.jsonl"))
    assert ProcessReward().bind().score([said], Context(task, None, Stream(0))) == [1.0]


@pytest.mark.slow
def test_stopped_between_its_steps_it_goes_on_to_the_same(tmp_path: Path) -> None:
    told: dict[str, Any] = {"set": [*FIELDS, "runs.exercises.problems=30"], "steps": 4, **SMALL}
    whole = etude.train("mr-rlvr", "sums", out=tmp_path / "whole", **told)
    for until in (1, 3):
        cut = tmp_path / f"cut-{until}"
        etude.train("mr-rlvr", "sums", out=cut, until=until, **told)
        etude.resume(cut, quiet=True)
        assert weights(cut) == weights(whole.folder)


@pytest.mark.slow
def test_without_exercises_it_is_grpo(tmp_path: Path) -> None:
    """Identity 3: the last run alone, with the seed of a first run, is GRPO bit for bit."""
    alone = mr_rlvr.replace(id="alone", runs=mr_rlvr.runs[-1:])
    chain = etude.train(alone, "sums", steps=2, set=FIELDS, out=tmp_path / "chain", **SMALL)
    plain = etude.train("grpo", "sums", steps=2, set=FIELDS, out=tmp_path / "plain", **SMALL)
    assert weights(chain.folder) == weights(plain.folder)
    assert [m["reward"] for m in chain.metrics] == [m["reward"] for m in plain.metrics]


def test_nothing_to_hand_on_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"made no row of 20 problems of sums.*It is run 1 of 3"):
        etude.train("mr-rlvr", "sums", steps=4, out=tmp_path / "r", **SMALL,
                    set=[*FIELDS, "runs.exercises.problems=20", "task.terms=2", "runs.exercises.spans=x"])  # fmt: skip


def test_it_is_grpo_twice_behind_exercises() -> None:
    process, last = (link.methods()[0] for link in mr_rlvr.runs[1:])
    assert process == last == get_method("grpo", "language") and mr_rlvr.runs[1].takes() == ["exercises"]


# The claim


def test_the_claim_compares_the_arms_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Job] = []
    level = {"grpo": 0.5, "grpo after exercises": 0.8, "grpo after worked answers": 0.6, "start": 0.1}

    def fake(job: Job) -> Run:
        seen.append(job)
        value = level.get(job.label, 0.2)
        metrics = [{"rows": 128.0, "reward": i / max(1, job.steps)} for i in range(job.steps)]
        return Run(job.label, job.seed, metrics, [], {"pass@1": value, "pass@8": value + 0.1})

    class Begun:
        def __init__(self, *args: object, **options: object) -> None:
            self.folder = "start"

        def __enter__(self) -> Begun:
            return self

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(experiment, "started", Begun)
    monkeypatch.setattr(experiment, "run", fake)
    monkeypatch.setattr(experiment, "spread", lambda function, work: [function(w) for w in work])
    pair = experiment.experiment([0, 1])[0]
    assert mr_rlvr.claim is not None and {m.name for m in mr_rlvr.claim.measures} == set(pair.arm)
    assert pair.arm["pass@1 against GRPO alone"] == 0.8 and pair.baseline["pass@1 against GRPO alone"] == 0.5
    assert pair.baseline["pass@8 after imitation"] == pytest.approx(0.7)
    assert pair.start["pass@1 after imitation"] == 0.1
    assert pair.arm[experiment.PROCESS] > 0.8 > 0.2 > pair.baseline[experiment.PROCESS]
    assert pair.budgets["rl completions"] == (60 * 128.0, 60 * 128.0)
    pools = {job.label: job.pool for job in seen if job.pool is not None}
    assert all(len(pool) == 500 for pool in pools.values())
    assert {p.level for p in pools["exercises"]} == {"fill", "order"}
    assert pools["grpo"] is not None and pools["grpo"][0] == pools["worked answers"][0]
