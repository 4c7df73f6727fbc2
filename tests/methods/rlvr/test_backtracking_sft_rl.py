"""backtracking-sft-rl: what is rewarded, which answers are shown first, and what its study compares."""

from __future__ import annotations

from types import SimpleNamespace as Run
from typing import Any, cast

import pytest
import torch

from etude.core.batches import TokenBatch
from etude.core.edit import assignments
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.kinds import TokenMethod
from etude.core.recipe import Recipe
from etude.core.registry import get_method
from etude.experience.data import Demonstrations
from etude.methods.rlvr.backtracking_sft_rl import backtracking_rl, backtracking_sft_rl
from etude.methods.rlvr.grpo import grpo
from etude.rewards.outcome import TaskReward
from etude.rewards.patterns import FormatReward
from etude.runs.beds import load_bed
from etude.runs.kinds.recipe import composed, divided
from etude.runs.studies import load_study
from etude.runs.training import compose_method, compose_task
from etude.tasks.language.countdown_lines import CountdownLines, backtracks, countdown_lines

ASKED = Problem("1", "3,5,8->16:", 16, info={"numbers": (3, 5, 8)})


def paid(text: str, stop: StopReason = StopReason.TERMINATED) -> float:
    """What the method pays for a completion."""
    said = Segment("assistant", text, [1, 2], [1, 1], [0.0, 0.0], reward=countdown_lines.score(ASKED, text))
    episode = Episode(ASKED, [said], stop=stop)
    right, form = cast("tuple[TaskReward, FormatReward]", backtracking_rl.rewards)
    rows = cast(TokenBatch, Run(rewards=torch.zeros(1, 2, dtype=torch.float64), episodes=[episode]))
    return float(right.shape(rows).sum()) + form.score([episode], cast(Any, Run(task=countdown_lines)))[0]


def test_right_pays_one_well_formed_a_tenth_and_all_else_nothing() -> None:
    texts = {
        "5-3=2\n2*8=16": 1.0, "(5-3)*8": 1.0, "3*5=15\n15-8=7\nrestart\n5-3=2\n2*8=16": 1.0,
        "3*5=15\n15-8=7": 0.1, "8+8=16": 0.1, "2*8=17": 0.1, "restart\n5-3=2\n2*8=16": 0.0, "so": 0.0, "": 0.0,
    }  # fmt: skip
    assert {text: paid(text) for text in texts} == pytest.approx(texts, abs=1e-12)
    assert paid("3*5=15\n15-8=7", StopReason.MAX_TOKENS) == 0.0


def test_what_differs_from_grpo_after_worked_answers() -> None:
    assert {path.partition(".")[0] for path in backtracking_rl.diff(grpo)} == {"rewards", "problems", "minibatches"}
    assert backtracking_rl.problems // backtracking_rl.minibatches == 64 and backtracking_rl.experience.size == 8
    assert cast(Recipe, get_method("backtracking-sft-rl")).runs == backtracking_sft_rl.runs


def test_the_task_says_what_is_shown_before_the_same_reinforcement() -> None:
    task = CountdownLines(backtracks=2)
    first, second = (composed(link, task) for link in backtracking_sft_rl.runs)
    assert first.task == second.task == task and backtracks(str(task.problems("train")[4].info["demonstration"])) == 2
    taught, reinforced = cast(TokenMethod, first.method), cast(TokenMethod, second.method)
    assert isinstance(taught.experience, Demonstrations) and taught.problems == 64
    assert reinforced.diff(backtracking_rl).keys() == {"problems"} and reinforced.problems == 16
    assert [run.begins for run in backtracking_sft_rl.plan()] == [None, 1]
    assert divided(backtracking_sft_rl, 360) == [300, 60]


# The study


@pytest.mark.slow
def test_recipes_differ_in_what_is_shown_and_nothing_else() -> None:
    study = load_study("backtracking-sft-rl")
    arms = {arm.label: arm for arm in study.arms()}
    cold = arms.pop("cold start")
    assert (cold.method, cold.changes) == ("backtracking-rl", {"problems": 16})
    assert backtracking_sft_rl.runs[1].set == ("problems=16",)
    assert {arm.method for arm in arms.values()} == {"backtracking-sft-rl"}
    assert {name for arm in arms.values() for name in arm.changes} == {"task.backtracks", "task.shown"}
    branches = [arm.changes["task.backtracks"] for arm in arms.values() if {*arm.changes} == {"task.backtracks"}]
    assert branches == [1, 3]
    broken = {arm.changes["task.shown"]: arm.changes["task.backtracks"] for arm in arms.values()
              if len(arm.changes) == 2}  # fmt: skip
    assert broken == {"wrong": 1, "of-others": 1, "shuffled": 1}
    for name in study.beds:
        for arm in arms.values():
            task = compose_task(study.bed(name).task, assignments({**study.bed(name).set, **arm.changes}))
            assert task.problems("test")[3].prompt == study.bed(name).goal.problems("test")[3].prompt
    tests = [study.bed(name).goal for name in study.beds]
    assert [goal.numbers for goal in tests] == [(3,)] and {goal.backtracks for goal in tests} == {0}


def test_the_claim_compares_one_branch_with_none() -> None:
    claim = backtracking_sft_rl.claim
    assert claim is not None and claim.baseline == backtracking_sft_rl.id
    bed, shown = load_bed(claim.bed), []
    for changes in (claim.changes, claim.baseline_changes):
        arm = cast(Recipe, compose_method(claim.baseline, assignments(changes)))
        taught, reinforced = (composed(link, bed.goal) for link in arm.runs)
        assert (taught.method, reinforced.method) == tuple(
            composed(r, bed.goal).method for r in backtracking_sft_rl.runs
        )
        assert reinforced.task == bed.goal
        shown.append(cast(CountdownLines, taught.task).backtracks)
    assert shown == [1, 0]
