"""QwenLong-L1: its identities, and its chain of phases as it is trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

import etude
from etude.core.episodes import Episode, Problem, Segment
from etude.core.recipe import Recipe
from etude.core.registry import get_method
from etude.experience.groups import Groups
from etude.methods.rlvr.dapo import dapo
from etude.methods.rlvr.qwenlong_l1 import qwenlong_l1, qwenlong_l1_phase
from etude.rewards.judged import JudgeReward
from etude.rewards.judges import Contained, SameAnswer
from etude.rewards.outcome import OverlongPenalty, TaskReward
from etude.runs.train import resume
from etude.tasks.language.facts import Facts, spelt
from language_toys import Toy, make_loop, untimed

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
def test_one_phase_with_the_rule_alone_is_dapo() -> None:
    """Identity 1: without limits, earlier runs and a judge nothing is left but DAPO's settings."""
    own = {
        "experience": Groups(size=4, temperature=0.7), "objective": qwenlong_l1_phase.objective,
        "filters": qwenlong_l1_phase.filters, "minibatches": 4, "problems": 4,
        "rewards": (TaskReward(), OverlongPenalty(buffer=0.1)),
    }  # fmt: skip
    task = Toy(prompts=tuple(f"{n}:" for n in range(9)))
    here, there = (make_loop(m.replace(**own), task) for m in (qwenlong_l1_phase, dapo))
    for _ in range(3):
        assert untimed(here.step().metrics) == untimed(there.step().metrics)
    for name, value in there.policy.tensors().items():
        assert torch.equal(here.policy.tensors()[name], value)


def test_what_differs_from_dapo() -> None:
    changed = {path.partition(".")[0] for path in qwenlong_l1_phase.diff(dapo)}
    assert changed == {"curriculum", "experience", "rewards", "filters", "objective", "minibatches"}
    reward = qwenlong_l1_phase.rewards[0]
    assert isinstance(reward, JudgeReward)
    assert [type(judge) for judge in reward.panel] == [Contained, SameAnswer]


def test_the_rule_knows_figures_and_the_judge_words() -> None:
    task = Facts(kinds=("sum",), words=0.0)
    pool = task.problems("train")
    run: Any = SimpleNamespace(task=task, policy=None)
    for problem in (pool[i] for i in range(30)):
        right = int(problem.answer)
        texts = [str(right), spelt(right), str(right + 1), spelt((right + 1) % 40), ""]
        said = [Episode(problem, [Segment("assistant", f"1,2,{t}")]) for t in texts]
        rule, judge = (list(JudgeReward(panel=(one,)).bind().score(said, run)) for one in (Contained(), SameAnswer()))
        both = JudgeReward(panel=(Contained(), SameAnswer())).bind().score(said, run)
        assert rule == [1.0, 0.0, 0.0, 0.0, 0.0]
        assert both == judge == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_limits_of_the_phases_are_those_of_the_lists() -> None:
    """Every length of `facts` is in one phase, in their order."""
    limits = [(0, 128), (128, 256), (256, 512)]
    for count, (above, most) in zip((16, 32, 64), limits):
        pool = Facts(facts=(count,)).problems("train")
        assert all(above < len(str(pool[i].prompt)) <= most for i in range(200))
    said = [dict(field.split("=") for field in run.set) for run in qwenlong_l1.runs]
    assert [(int(s.get("curriculum.of.above", 0)), int(s.get("curriculum.of.most", 512))) for s in said] == limits


def small(**changes: Any) -> Recipe:
    """Two phases, of 8 and of 20 facts, of few small steps."""
    sets = (("curriculum.of.most=60",), ("curriculum.of.above=60", "curriculum.run={short}", "curriculum.share=0.5"))
    chain = zip((qwenlong_l1.runs[0], qwenlong_l1.runs[2]), sets)
    few = ("task.facts=[8,20]", "experience.size=4", "experience.max_tokens=4", "problems=4", "filters=none",
           "minibatches=1", "curriculum.size=40", "curriculum.of.size=40")  # fmt: skip
    runs = tuple(run.replace(steps=2, set=(*own, *few)) for run, own in chain)
    return qwenlong_l1.replace(id="small", runs=runs, **changes)


@pytest.mark.slow
def test_the_second_phase_takes_up_the_record_of_the_first(tmp_path: Path) -> None:
    made = etude.train(small(), "facts", seed=3, out=tmp_path / "chain", evaluate=0, quiet=True)
    state = json.loads(next((made.folder / "02-long" / "checkpoints").glob("step-2/state.json")).read_text())
    record = state["parts"][0]["curriculum.record"]["epoch_means"]
    earlier = state["parts"][0]["curriculum"]["earlier"]
    pool = Facts(facts=(8, 20)).problems("train")
    counts = {f"facts/train/{i}": pool[i].level for i in range(40)}
    assert {counts[name] for name in earlier} == {"facts8"}
    new = record.keys() - set(earlier)
    assert {counts[name] for name in new} == {"facts20"}
    assert (len(earlier), len(new), sum(map(len, record.values()))) == (8, 4, 8 + 2 * 4)
    assert "judge/contained/asked" in made.metrics[0]


@pytest.mark.slow
def test_it_goes_on_to_the_same_numbers_from_anywhere(tmp_path: Path) -> None:
    whole = etude.train(small(), "facts", seed=3, out=tmp_path / "whole", evaluate=0, quiet=True)
    for until in (1, 3):
        cut = etude.train(small(), "facts", seed=3, out=tmp_path / f"cut{until}", evaluate=0, quiet=True, until=until)
        again = resume(cut.folder, quiet=True)
        ours, theirs = (
            [{k: v for k, v in untimed(line).items() if "_per_" not in k} for line in result.metrics]
            for result in (whole, again)
        )
        assert ours == theirs


class Stops(Toy):
    """Say one of a dozen letters, and so stop in time."""

    stop: ClassVar[tuple[str, ...]] = tuple("abcdefghijklm")

    def problems(self, split: str) -> list[Problem]:
        return [replace(problem, answer=12) for problem in super().problems(split)]

    def answer(self, completion: str) -> str:
        return "Twelve." if completion[-1:] in self.stop else "none"


@pytest.mark.slow
def test_a_toy_policy_learns_what_the_judge_accepts() -> None:
    optimizer = qwenlong_l1_phase.optimizer.replace(lr=2e-2)
    loop = make_loop(qwenlong_l1_phase.replace(problems=3, optimizer=optimizer), Stops(), steps=8)
    accepted = [loop.step().metrics["reward/judge-reward"] for _ in range(8)]
    assert sum(accepted[-3:]) / 3 > accepted[0] + 0.1, accepted


def test_it_is_registered_with_its_phase() -> None:
    assert get_method("qwenlong-l1") is not None
    assert get_method("qwenlong-l1-phase").parent == "dapo"
