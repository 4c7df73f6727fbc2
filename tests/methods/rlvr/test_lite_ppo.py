"""Lite PPO: what its study changes is one switch at a time, on beds that differ in start and difficulty alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from etude.advantages.group import scaled
from etude.core.edit import assignments, set_values, stack
from etude.core.kinds import TokenMethod
from etude.core.registry import get_method
from etude.runs.beds import Bed, load_bed
from etude.runs.studies import load_study

STUDY = load_study("lite-ppo")
ARMS = {arm.label: arm for arm in STUDY.arms()}
REWARDS, GROUPS = torch.tensor([1.0] * 7 + [0.0] + [1.0, 0.0, 0.0, 0.0] * 2), torch.tensor([0] * 8 + [1] * 8)


def method(label: str) -> TokenMethod:
    """What an arm trains by, as the study's runs make it."""
    arm = ARMS[label]
    name, *parts = arm.method.split("+")
    changes = {k: v for k, v in arm.changes.items() if not k.startswith("task.")}
    made = set_values(stack(get_method(name), parts), assignments(changes))
    assert isinstance(made, TokenMethod)
    return made


def advantages(label: str) -> list[float]:
    part: Any = method(label).advantages
    return [round(a, 3) for a in scaled(REWARDS, GROUPS, part.centre, part.scale)[[0, 7, 8, 9]].tolist()]


@pytest.mark.slow
def test_arms_change_one_switch_of_grpo() -> None:
    paths = {
        label: set(method(label).diff(get_method("grpo"))) - {"id"} for label in ARMS if ARMS[label].method == "grpo"
    }
    assert {label: len({path.partition(".")[0] for path in changed}) for label, changed in paths.items()} == {
        label: 0 if label == "three times the limit" else 1 for label in paths
    }
    assert len(paths) == len(ARMS) - 2  # all but lite-ppo and dapo


def test_four_advantages_of_one_failure_among_eight_beside_a_hard_group() -> None:
    """r - mean: 1/8, -7/8 | 3/4, -1/4, over deviations sqrt(7)/8 and sqrt(3)/4 of the groups, sqrt(63)/16 of the batch,
    whose mean is 9/16."""  # fmt: skip
    assert advantages("token mean") == [0.378, -2.646, 1.732, -0.577]
    assert advantages("no deviation") == [0.125, -0.875, 0.75, -0.25]
    assert advantages("batch deviation") == advantages("lite-ppo") == [0.252, -1.764, 1.512, -0.504]
    assert advantages("batch mean and deviation") == [0.882, -1.134, 0.882, -1.134]


def test_lite_ppo_is_two_of_the_switches() -> None:
    own, grpo = method("lite-ppo"), get_method("grpo")
    switched = set_values(grpo, assignments({**ARMS["batch deviation"].changes, **ARMS["token mean"].changes}))
    assert own.slots() == switched.slots() != grpo.slots()


def test_beds_differ_in_start_and_difficulty_alone() -> None:
    beds = {name.removeprefix("language/tricks-"): load_bed(name) for name in STUDY.beds}
    assert set(beds) == {"base-easy", "base-hard", "aligned-easy", "aligned-hard"}

    def same(one: Bed, other: Bed, but: str) -> bool:
        rest = {"name", "about", but}
        return all(getattr(one, f) == getattr(other, f) for f in one.__dataclass_fields__ if f not in rest)

    for start in ("base", "aligned"):
        easy, hard = beds[f"{start}-easy"], beds[f"{start}-hard"]
        assert same(easy, hard, "set")
        assert {k for k in easy.set if easy.set[k] != hard.set[k]} == {"task.terms"}
    for level in ("easy", "hard"):
        base, aligned = beds[f"base-{level}"], beds[f"aligned-{level}"]
        assert same(base, aligned, "start") and base.start and aligned.start
        assert base.start.steps < aligned.start.steps and base.start.set == aligned.start.set
