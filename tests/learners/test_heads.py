"""Auxiliary heads: trained by the policy's own step, in both kinds, with their state saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from control_toys import control_loop
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import ConfigError
from etude.core.fields import NonNegative
from etude.core.learners import StepHead, TokenHead
from etude.core.population import Population
from etude.core.registry import get_method
from etude.core.transitions import ActionLogProbs, Transitions
from etude.experience.groups import Groups
from etude.optimizers.adam import AdamW
from etude.policies.control.networks import Linear
from etude.regularizers.entropy import EntropyBonus
from etude.rewards.outcome import TaskReward
from etude.stages.phases import Phase
from language_toys import Toy, make_loop
from solo_runs import alike

GRPO: Any = get_method("grpo").replace(experience=Groups(size=4), problems=3, optimizer=AdamW(lr=1e-2))
PPO: Any = get_method("ppo", "control")
PPO = PPO.replace(experience=PPO.experience.replace(environments=2, steps=8))


class RewardHead(TokenHead):
    """Predicts a row's score at each of its tokens: coefficient / 2 (w h_t - score)^2."""

    coefficient: NonNegative = 1.0

    def build(self, width: int) -> nn.Module:
        return nn.Linear(width, 1)

    def loss(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        return self.coefficient / 2 * (policy.said[self.name][..., 0] - batch.scores[:, None]) ** 2


class StepRewardHead(StepHead):
    """Predicts the reward of a step from what the policy's body says."""

    coefficient: NonNegative = 1.0

    def build(self, shape: tuple[int, ...], actions: Any, population: Population) -> nn.Module:
        return Linear(population, "reward-head", shape[0], 1, gain=1.0)

    def loss(self, batch: Transitions, policy: ActionLogProbs) -> Tensor:
        return self.coefficient / 2 * (policy.said[self.name].squeeze(-1) - batch.rewards) ** 2


class SeenRewardHead(StepRewardHead):
    """The same, from what the policy sees."""

    shared = False  # type: ignore[misc]


def language(head: TokenHead | None, steps: int = 4, **changes: Any) -> Any:
    return make_loop(GRPO.replace(learners=() if head is None else (head,), **changes), Toy(), steps=steps)


def weights(loop: Any) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in loop.policy.parameters()])


def head_of(loop: Any) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in loop.updater.learners.parameters()])


# Language


@pytest.mark.slow
def test_a_head_on_a_language_model_learns_what_it_predicts() -> None:
    loop = language(RewardHead(), steps=20)
    errors = [loop.step().metrics["reward_head_loss"] for _ in range(12)]
    assert sum(errors[-3:]) < 0.5 * sum(errors[:3])


@pytest.mark.slow
def test_its_gradient_reaches_the_policy_and_that_of_a_coefficient_of_zero_does_not() -> None:
    every_row = {"regularizers": (EntropyBonus(coefficient=0.1),)}
    found = [language(head, **every_row) for head in (None, RewardHead(coefficient=0.0), RewardHead())]
    begun = head_of(found[2])
    for loop in found:
        loop.step()
    plain, idle, taught = map(weights, found)
    assert torch.equal(plain, idle)
    assert not torch.equal(plain, taught)
    assert not torch.equal(begun, head_of(found[2]))


@pytest.mark.slow
def test_rows_without_advantage_teach_a_head() -> None:
    """Nothing is paid, so no row has an advantage: without the head none takes part."""
    unpaid = {"rewards": (TaskReward(weight=0.0),)}
    assert "reward_head_loss" not in language(None, **unpaid).step().metrics
    loop = language(RewardHead(), **unpaid)
    before = weights(loop), head_of(loop)
    metrics = loop.step().metrics
    assert metrics["rows_skipped"] == 0
    assert not any(torch.equal(old, new) for old, new in zip(before, (weights(loop), head_of(loop))))


@pytest.mark.slow
def test_a_head_of_a_language_model_is_resumed(tmp_path: Path) -> None:
    """The run that was stopped goes on to the same weights, the head's and its moments' included."""
    straight, stopped = language(RewardHead()), language(RewardHead())
    for _ in range(4):
        straight.step()
    for _ in range(2):
        stopped.step()
    stopped.save(tmp_path)
    resumed = language(RewardHead())
    resumed.load(tmp_path)
    assert torch.equal(head_of(resumed), head_of(stopped))
    assert not torch.equal(head_of(resumed), head_of(language(RewardHead())))
    for _ in range(2):
        resumed.step()
    assert torch.equal(head_of(resumed), head_of(straight))
    assert torch.equal(weights(resumed), weights(straight))


def test_its_first_weights_are_the_runs_own() -> None:
    torch.manual_seed(1)
    first = head_of(language(RewardHead()))
    torch.manual_seed(2)
    assert torch.equal(first, head_of(language(RewardHead())))
    assert not torch.equal(first, head_of(make_loop(GRPO.replace(learners=(RewardHead(),)), Toy(), seed=6)))


@pytest.mark.slow
def test_a_stage_brings_a_head_with_a_fresh_optimizer_only() -> None:
    phases: Any = (Phase(like="grpo", end=0.5), Phase())
    with pytest.raises(ConfigError, match=r"stage 1 changes the learners, .* give the stage optimizer=reset"):
        GRPO.replace(learners=(RewardHead(),), stages=phases).check()
    phases = (phases[0], Phase(optimizer="reset"))
    loop = language(RewardHead(), stages=phases)
    metrics = [loop.step().metrics for _ in range(4)]
    assert ["reward_head_loss" in m for m in metrics] == [False, False, True, True]


@pytest.mark.slow
def test_a_head_that_a_stage_brought_is_resumed(tmp_path: Path) -> None:
    phases: Any = (Phase(like="grpo", end=0.5), Phase(optimizer="reset"))
    straight, resumed = (language(RewardHead(), stages=phases) for _ in range(2))
    for _ in range(3):
        straight.step()
    straight.save(tmp_path)
    resumed.load(tmp_path)
    assert len(head_of(resumed)) and torch.equal(head_of(resumed), head_of(straight))
    straight.step(), resumed.step()
    assert torch.equal(head_of(resumed), head_of(straight))
    assert torch.equal(weights(resumed), weights(straight))


# Control


@pytest.mark.slow
def test_a_head_of_control_learns_what_it_predicts() -> None:
    loop = control_loop(PPO.replace(learners=(StepRewardHead(),)), [0, 1])
    errors = [loop.step().metrics["step_reward_head_loss"] for _ in range(4)]
    assert errors[-1] < 0.5 * errors[0]


def actor(loop: Any) -> Tensor:
    return loop.parameters.values[:, loop.parameters.of("policy")].clone()


@pytest.mark.slow
def test_a_shared_head_of_control_teaches_the_policys_body_and_another_does_not() -> None:
    """The critic is apart, and no norm is clipped, so only what they share can carry the head's gradient."""
    plain = PPO.replace(optimizer=AdamW(lr=1e-3, clip_norm=None))
    bare, seen, shared = (
        control_loop(plain.replace(learners=learners), [0])
        for learners in ((), (SeenRewardHead(),), (StepRewardHead(),))
    )
    for loop in (bare, seen, shared):
        loop.step()
    assert torch.equal(actor(bare), actor(seen))
    assert not torch.equal(actor(bare), actor(shared))


@pytest.mark.slow
def test_a_member_with_a_head_is_its_own_run(one_thread: None) -> None:
    method = PPO.replace(learners=(StepRewardHead(),))
    together, alone = control_loop(method, [3, 4]), control_loop(method, [4])
    for loop in (together, alone):
        for _ in range(2):
            loop.step()
    assert alike(together.parameters.values[1], alone.parameters.values[0])


@pytest.mark.slow
def test_a_head_of_control_is_resumed(tmp_path: Path) -> None:
    method = PPO.replace(learners=(StepRewardHead(),))
    straight, stopped, resumed = (control_loop(method, [0, 1]) for _ in range(3))
    for _ in range(3):
        straight.step()
    stopped.step()
    stopped.save(tmp_path)
    resumed.load(tmp_path)
    for _ in range(2):
        resumed.step()
    assert "step-reward-head.weight" in dict(straight.parameters.named())
    assert torch.equal(straight.parameters.values, resumed.parameters.values)


def test_a_natural_gradient_moves_no_head() -> None:
    with pytest.raises(ConfigError, match="moves the policy only, and StepRewardHead is trained by the policy's step"):
        get_method("npg").replace(learners=(StepRewardHead(),)).check()
