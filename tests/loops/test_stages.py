"""Stages: another method's slots for the first part of the steps, then the method's own."""

from __future__ import annotations

import pytest
import torch

from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.registry import get_method
from etude.loops.language import LanguageLoop
from etude.policies.language import LanguagePolicy
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference
from etude.stages.phases import Phase
from etude.tasks import resolve_task


def staged() -> Method:
    grpo = get_method("grpo").replace(problems=4, stages=(Phase(like="sft", end=0.5), Phase()))
    return grpo


def make(steps: int = 4) -> LanguageLoop:
    return LanguageLoop(staged(), resolve_task("compose"), LanguagePolicy.load("tiny"), seed=0, steps=steps)


@pytest.mark.slow
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


# What goes on, and what starts anew


def of(optimizer: str = "keep", reference: str = "keep") -> LanguageLoop:
    """Two steps of supervision, then two of grpo with a KL penalty."""
    second = Phase(optimizer=optimizer, reference=reference)
    method = get_method("grpo").replace(
        problems=4, stages=(Phase(like="sft", end=0.5), second), regularizers=(KLToReference(),), reference=Frozen()
    )
    return LanguageLoop(method, resolve_task("compose"), LanguagePolicy.load("tiny"), seed=0, steps=4)


@pytest.mark.slow
def test_the_curriculum_goes_on_where_the_phase_before_stopped() -> None:
    """Two steps of supervised problems, then two of grpo's: none is seen twice."""
    loop = make()
    for _ in range(4):
        loop.step()
    assert [m.curriculum.state["drawn"] for _, m in loop.stages] == [2 * get_method("sft").problems + 2 * 4] * 2


def taken(loop: LanguageLoop) -> int:
    state = loop.updater.stepper.moments()
    return int(next(iter(state.values()))["step"]) if state else 0


@pytest.mark.slow
def test_the_optimizer_goes_on_or_starts_anew() -> None:
    kept, reset = of(), of(optimizer="reset")
    for loop in (kept, reset):
        loop.step()
        assert taken(loop) > 0
        loop.step()
    assert taken(kept) > 0 and taken(reset) == 0


@pytest.mark.slow
def test_the_reference_goes_on_or_becomes_the_policy_of_the_moment() -> None:
    kept, reset = of(), of(reference="reset")
    for loop in (kept, reset):
        loop.step()
        loop.step()
        same = [
            torch.equal(mine, held)
            for mine, held in zip(loop.policy.model.parameters(), loop.policy.reference.parameters())
        ]
        assert all(same) == (loop is reset)


@pytest.mark.slow
def test_a_reset_run_resumes_on_either_side_of_the_boundary(tmp_path) -> None:
    for when in (1, 2):
        whole, resumed = of("reset", "reset"), of("reset", "reset")
        for _ in range(when):
            whole.step()
        whole.save(tmp_path / str(when))
        resumed.load(tmp_path / str(when))
        for loop in (whole, resumed):
            for _ in range(4 - when):
                loop.step()
        for mine, theirs in zip(whole.policy.parameters(), resumed.policy.parameters()):
            assert torch.equal(mine, theirs)


def test_another_optimizer_needs_a_reset() -> None:
    grpo = get_method("grpo")
    slow = grpo.replace(optimizer=grpo.optimizer.replace(lr=1e-6))
    stages = (Phase(like="alpine", end=0.5, optimizer="reset"), Phase())
    with pytest.raises(ConfigError, match=r"stage 1 changes the optimizer, .*optimizer=reset"):
        slow.replace(stages=stages).check()
    slow.replace(stages=(stages[0], Phase(optimizer="reset"))).check()
