"""Stages: another method's slots for the first part of the steps, then the method's own."""

from __future__ import annotations

import pytest
import torch

from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.registry import get_method
from etude.loops.language import LanguageLoop
from etude.policies.language import LanguagePolicy
from etude.stages.phases import Phase
from etude.tasks import resolve_task


def staged() -> Method:
    grpo = get_method("grpo").replace(problems=4, stages=(Phase(like="sft", end=0.5), Phase()))
    return grpo


def make(steps: int = 4) -> LanguageLoop:
    return LanguageLoop(staged(), resolve_task("compose"), LanguagePolicy.load("tiny"), seed=0, steps=steps)


def test_the_first_half_is_supervised_and_the_second_samples() -> None:
    loop, samples = make(), []
    for _ in range(4):
        samples.append(loop.method.experience.samples)
        loop.step()
    assert samples == [False, False, True, True]


@pytest.mark.slow
def test_resuming_across_the_boundary_changes_nothing(tmp_path) -> None:
    whole, stopped, resumed = make(), make(), make()
    for loop in (whole, stopped):
        loop.step()
    stopped.save(tmp_path)
    resumed.load(tmp_path)
    for loop in (whole, resumed):
        for _ in range(3):
            loop.step()
    for mine, theirs in zip(whole.policy.parameters(), resumed.policy.parameters()):
        assert torch.equal(mine, theirs)


def test_a_phase_follows_every_slot_of_the_other_method_but_keeps_the_optimizer() -> None:
    method, sft = get_method("grpo"), get_method("sft")
    phase = Phase(like="sft").apply(method)
    assert (phase.objective, phase.experience) == (sft.objective, sft.experience)
    assert phase.optimizer == method.optimizer


@pytest.mark.parametrize("ends", [(0.5, 0.5), (0.7, 0.3), (0.2, 0.9)])
def test_phases_that_do_not_follow_each_other_are_refused(ends: tuple[float, ...]) -> None:
    method = get_method("grpo").replace(stages=tuple(Phase(end=e) for e in ends))
    with pytest.raises(ConfigError, match="phase"):
        method.check()
