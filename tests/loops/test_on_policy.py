"""The on-policy loop: exact resume, what a step learns from, reports, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etude.advantages.returns import transition_gae
from etude.core.control import ControlTask
from etude.core.errors import InvariantError
from etude.core.method import Method
from etude.core.population import Member
from etude.core.registry import get_method
from etude.learners.state import StateValue
from etude.loops.control_update import Minibatch
from etude.loops.on_policy import OnPolicyLoop, credited
from etude.policies.control.networks import MLP
from etude.policies.control.observations import NormalizeObservations
from etude.rewards.running import NormalizeRewards
from etude.runtime.checkpoints import load_tensors
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum

torch.set_num_threads(1)
MEMBERS = [Member(0), Member(1), Member(7)]


def method(name: str = "ppo", **changes: Any) -> Method:
    found: Any = get_method(name, "control")
    found = found.replace(
        policy=found.policy.replace(network=MLP(hidden=(16,)), observations=(NormalizeObservations(),)),
        experience=found.experience.replace(environments=3, steps=33),
        rewards=(NormalizeRewards(),),
    )
    return found.replace(**changes)


def state(loop: OnPolicyLoop, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    loop.save(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("task", (cartpole, pendulum), ids=("cartpole", "pendulum"))
@pytest.mark.parametrize("name", ("ppo", "reinforce", "trpo"))
@pytest.mark.parametrize("members", (MEMBERS[:1], MEMBERS), ids=("alone", "three"))
def test_a_resumed_run_has_the_same_numbers(
    name: str, task: ControlTask, members: list[Member], tmp_path: Path
) -> None:
    """Saved after the first step, in the middle of episodes; weights, metrics and the last checkpoint are identical."""
    whole = OnPolicyLoop(method(name), task, members, 4)
    whole.step()
    assert bool((whole.collector.lengths > 0).all())
    state(whole, tmp_path / "first")
    fresh = OnPolicyLoop(method(name), task, members, 4)
    fresh.load(tmp_path / "first")
    for _ in range(3):
        one, other = whole.step(), fresh.step()
        assert one.members == other.members and one.episodes == other.episodes
        clocks = ("seconds", "steps_per_second")
        assert {k: v for k, v in one.metrics.items() if not k.startswith(clocks)} == {
            k: v for k, v in other.metrics.items() if not k.startswith(clocks)
        }
    assert state(whole, tmp_path / "whole") == state(fresh, tmp_path / "fresh")


@pytest.mark.slow
def test_loading_takes_everything_from_the_checkpoint(tmp_path: Path) -> None:
    """A loop that has gone elsewhere, with other seeds' numbers in it, goes back to exactly what was saved."""
    whole = OnPolicyLoop(method(), pendulum, MEMBERS, 6)
    for _ in range(2):
        whole.step()
    saved = state(whole, tmp_path / "saved")
    whole.step(), whole.step()
    whole.load(tmp_path / "saved")
    assert state(whole, tmp_path / "again") == saved


@pytest.mark.slow
def test_the_policy_of_a_checkpoint_brings_its_normaliser(tmp_path: Path) -> None:
    trained = OnPolicyLoop(method(), pendulum, MEMBERS, 2)
    trained.step()
    trained.save(tmp_path)
    fresh = OnPolicyLoop(method(), pendulum, MEMBERS, 2)
    fresh.load_policy(tmp_path)
    seen = torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(fresh.actor(fresh.actor.see(seen)), trained.actor(trained.actor.see(seen)))
    assert "policy.transforms.0.moments.mean" in load_tensors(tmp_path / "policy.safetensors")


def test_learning_uses_the_normaliser_that_acted() -> None:
    """The moments stand still until the update is over; in between, fresh log-probabilities agree."""
    loop = OnPolicyLoop(method(), pendulum, MEMBERS, 3)
    loop.step()
    before = {k: v.clone() for k, v in loop.actor.named_buffers()}
    batch = loop.collector.collect(1, loop.critic)
    batch = credited(loop.method, batch)
    out = Minibatch(loop.updater, batch.flat(), fresh=True, reports=False).evaluate()
    torch.testing.assert_close(out.logp.detach(), batch.behaviour_logp.flatten(1), atol=1e-5, rtol=1e-5)
    assert all(torch.equal(v, before[k]) for k, v in loop.actor.named_buffers())
    loop.actor.observe(batch.observations.flatten(1, 2))
    assert not any(torch.equal(v, before[k]) for k, v in loop.actor.named_buffers())
    with pytest.raises(InvariantError, match="Fresh actions of member"):
        loop.updater.run(batch.replace(observations=batch.observations * 3).flat(), 1, 1.0)


def test_a_rollout_is_one_course_of_events() -> None:
    """Every observation follows from the one before by the environment's rules, across rollouts too."""
    loop = OnPolicyLoop(
        method(experience=get_method("ppo", "control").experience.replace(steps=60)), cartpole, MEMBERS, 3
    )
    first, second = loop.collector.collect(0, loop.critic), loop.collector.collect(1, loop.critic)
    observations = torch.cat([first.observations, second.observations], 1).double().numpy()
    actions = torch.cat([first.actions, second.actions], 1).numpy()
    done = torch.cat([first.terminated | first.truncated, second.terminated | second.truncated], 1).numpy()
    assert done.any()
    for t in range(observations.shape[1] - 1):
        after, _, _ = loop.environment.advance(observations[:, t], actions[:, t])  # type: ignore[attr-defined]
        goes_on = ~done[:, t]
        np.testing.assert_allclose(observations[:, t + 1][goes_on], after[goes_on], atol=1e-5)
        assert (np.abs(observations[:, t + 1][done[:, t]]) <= 0.05 + 1e-6).all()


def test_advantages_and_returns_are_those_of_the_rollout() -> None:
    loop = OnPolicyLoop(method("reinforce"), cartpole, MEMBERS, 3)
    seen: list[Any] = []
    run = loop.updater.run
    loop.updater.run = lambda batch, number, rate: seen.append(batch) or run(batch, number, rate)  # type: ignore[method-assign,func-returns-value]
    loop.step()
    batch, part = seen[0], loop.method.advantages
    names = ("rewards", "values", "next_values", "terminated", "truncated")
    fields = [getattr(batch, k).view(3, 33, 3) for k in names]
    exact = transition_gae(*fields, part.gamma, part.lam)  # type: ignore[attr-defined]
    torch.testing.assert_close(batch.returns, (exact + fields[1]).flatten(1))
    exact = exact.flatten(1)
    exact = (exact - exact.mean(1, keepdim=True)) / exact.std(1, keepdim=True)
    torch.testing.assert_close(batch.advantages, exact, atol=1e-5, rtol=1e-5)


def test_minibatches_divide_every_epoch() -> None:
    loop = OnPolicyLoop(method(minibatches=4), cartpole, MEMBERS, 3)
    batch = loop.collector.collect(0, loop.critic).flat()
    numbered = batch.replace(rewards=torch.arange(99.0).expand(3, -1))
    orders = []
    for epoch in range(2):
        pieces = list(loop.updater._pieces(numbered, 0, epoch))
        assert [p.rewards.shape[1] for p in pieces] == [24, 25, 25, 25]
        orders.append(torch.cat([p.rewards for p in pieces], 1))
        assert torch.equal(orders[-1].sort(1).values, numbered.rewards)
        for piece in pieces:
            index = piece.rewards.long()
            assert torch.equal(piece.observations, torch.stack([batch.observations[m, index[m]] for m in range(3)]))
    assert not torch.equal(orders[0], orders[1]) and not torch.equal(orders[0][0], orders[0][1])


def test_a_member_that_stands_still_is_named() -> None:
    still = Member(1, {"optimizer.lr": 1e-60})
    loop = OnPolicyLoop(method(), cartpole, [Member(0), still, Member(2)], 3)
    with pytest.raises(InvariantError, match="every weight of member 1 as it was"):
        loop.step()


def test_a_rate_of_zero_is_no_fault() -> None:
    """The last step of a linear schedule with warmup may have the rate 0 for some members."""
    loop = OnPolicyLoop(method(), cartpole, MEMBERS, 1)
    loop.finished = 1
    before = loop.parameters.values.clone()
    loop.step()
    assert torch.equal(before, loop.parameters.values)


@pytest.mark.slow
def test_reports_are_means_over_members_and_by_setting() -> None:
    settings = [Member(0, {"optimizer.lr": 1e-3}), Member(1, {"optimizer.lr": 1e-3}), Member(0, {"optimizer.lr": 2e-3})]
    loop = OnPolicyLoop(method(), cartpole, settings, 3)
    loop.step()
    report = loop.step()
    returns = report.members["return"]
    assert report.metrics["return"] == pytest.approx(sum(returns) / 3)
    assert report.metrics["return/lr=0.001"] == pytest.approx((returns[0] + returns[1]) / 2)
    assert report.metrics["return/lr=0.002"] == pytest.approx(returns[2])
    assert report.metrics["environment_steps"] == 2 * 99
    assert {e["member"] for e in report.episodes} <= {0, 1, 2}
    assert all(len(v) == 3 for v in report.members.values())


@pytest.mark.slow
def test_value_learning_explains_the_returns() -> None:
    base: Any = method(critic=StateValue(coefficient=1.0))
    loop = OnPolicyLoop(base.replace(optimizer=base.optimizer.replace(lr=1e-2)), pendulum, MEMBERS, 12)
    found = [loop.step().metrics["explained_variance"] for _ in range(12)]
    assert found[-1] > 0.3 > found[0], found
