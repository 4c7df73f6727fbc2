"""Episodes whose environment failed count for nothing: in no normaliser, no advantage, no critic and no metric."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from control_toys import PoisonedTask
from etude.advantages.returns import GAE, RewardToGo
from etude.core.learners import Learning
from etude.core.method import Method
from etude.core.population import Member
from etude.core.registry import get_method
from etude.core.transitions import Transitions
from etude.learners.fitted import FittedValue
from etude.learners.state import StateValue
from etude.loops.on_policy import OnPolicyLoop, credited
from etude.methods.onpolicy.gae import GaussNewton, TrustRegionValue
from etude.optimizers.adam import AdamW
from etude.policies.control.memory import GRU
from etude.policies.control.networks import MLP
from etude.policies.control.observations import NormalizeObservations, RunningMoments
from etude.rewards.running import NormalizeRewards
from solo_runs import Results, assert_same, member, results

torch.set_num_threads(1)
MEMBERS = [Member(0), Member(1), Member(7)]
ENVIRONMENTS, STEPS = 6, 21
"""The last of six environments fails after every seventh step; three such episodes fill a rollout."""


def method(name: str, **changes: Any) -> Method:
    found: Any = get_method(name, "control")
    found = found.replace(
        policy=found.policy.replace(network=MLP(hidden=(8,)), observations=(NormalizeObservations(),)),
        experience=found.experience.replace(environments=ENVIRONMENTS, steps=STEPS),
        rewards=(NormalizeRewards(),),
    )
    return found.replace(**changes)


@cache
def poisoned(name: str, poison: float) -> Results:
    """Three steps in which one episode in six held `poison`."""
    own: Method
    if name == "recurrent":
        own = method("ppo", critic=StateValue(shared=True))
        own = own.replace(policy=own.policy.replace(memory=GRU(width=4)))  # type: ignore[union-attr]
    elif name == "reward-to-go":
        own = method("reinforce", advantages=RewardToGo(gamma=0.9))
    else:
        own = method(name)
    return results(own, PoisonedTask(poison=poison), MEMBERS, 3)


@pytest.mark.slow
@pytest.mark.parametrize("poison", (1e6, 1e30))
@pytest.mark.parametrize("name", ("ppo", "reinforce", "npg", "trpo", "gae", "v-mpo", "recurrent", "reward-to-go"))
def test_what_a_discarded_episode_held_changes_no_number(name: str, poison: float) -> None:
    """All tensors and metrics are those of a run where it held something else."""
    ordinary, other = poisoned(name, 1.0), poisoned(name, poison)
    assert all(bool(v.isfinite().all()) for v in other[0].values())
    for k in range(3):
        assert_same(member(other, k), member(ordinary, k), f"member {k}")


# As if the steps had never been


def collected(name: str = "ppo", **changes: Any) -> tuple[OnPolicyLoop, Transitions, Transitions]:
    """A loop, a rollout of it, and the same without the environment that failed; of member 0 alone."""
    loop = OnPolicyLoop(method(name, **changes), PoisonedTask(poison=100.0, member=0), MEMBERS[:1], 3)
    batch = loop.collector.collect(0, loop.critic)
    assert batch.weights is not None and (batch.weights[:, :, :-1] == 1).all() and (batch.weights[:, :, -1] == 0).all()
    fewer = batch._map(lambda x: x[:, :, :-1].clone()).replace(weights=None)
    return loop, batch, fewer


def test_normalisers_learn_from_what_counts() -> None:
    loop, batch, fewer = collected()
    kept = fewer.observations.flatten(1, 2)[0].double().numpy()
    loop.actor.observe(batch.observations.flatten(1, 2), batch.weights.flatten(1))  # type: ignore[union-attr]
    moments = loop.actor.transforms[0].moments
    np.testing.assert_allclose(moments.mean[0, 0], kept.mean(0), atol=1e-12)
    np.testing.assert_allclose(moments.variance[0, 0], kept.var(0), atol=1e-12)
    assert moments.count.tolist() == [[[105.0]]]


def test_rewards_are_scaled_by_what_counts() -> None:
    _, batch, fewer = collected()
    whole, part = NormalizeRewards().bind(), NormalizeRewards().bind()
    for _ in range(2):  # the second time from a state
        found, expected = whole.shape(batch), part.shape(fewer)
        torch.testing.assert_close(found[:, :, :-1], expected, atol=1e-7, rtol=1e-6)
    for key in ("mean", "variance", "count"):
        mine, exact = (torch.as_tensor(x.state[key], dtype=torch.float64).flatten() for x in (whole, part))
        torch.testing.assert_close(mine, exact)


@pytest.mark.parametrize("part", (GAE(), RewardToGo(gamma=0.9)), ids=("gae", "reward-to-go"))
def test_advantages_are_standardised_over_what_counts(part: Any) -> None:
    _, batch, fewer = collected()
    torch.testing.assert_close(part.of_transitions(batch)[:, :, :-1], part.of_transitions(fewer), atol=1e-5, rtol=1e-5)


def test_advantages_of_a_minibatch_are_standardised_over_what_counts() -> None:
    part, weights = GAE(per_minibatch=True), torch.tensor([[1.0, 1.0, 0.0, 1.0]])
    found = part.of_minibatch(torch.tensor([[1.0, 2.0, 1000.0, 6.0]]), weights)
    torch.testing.assert_close(found[:, [0, 1, 3]], torch.tensor([[-2.0, -1.0, 3.0]]) / 7**0.5)


@pytest.mark.parametrize("name", ("ppo", "gae", "npg", "v-mpo"))
def test_a_step_learns_what_it_would_without_them(name: str) -> None:
    """Weights, critic and all metrics after one step on the whole rollout."""
    own: Any = get_method(name, "control")
    changes: dict[str, Any] = {"epochs": 1, "minibatches": 1, "policy": own.policy}
    if name == "npg":
        changes["critic"] = FittedValue(learning=Learning(optimizer=AdamW(lr=1e-3), epochs=2))
    if name == "gae":  # more iterations would make rounding larger
        changes |= {
            "critic": TrustRegionValue(learning=Learning(optimizer=GaussNewton(iterations=2, epsilon=0.1))),
            "optimizer": own.optimizer.replace(iterations=2),
        }
    found = []
    for kept in (1, 2):  # the batch as it is, and without the environment that failed
        loop, *batches = collected(name, **changes)
        flat = credited(loop.method, batches[kept - 1])
        metrics = loop.updater.run(flat.flat(), 0, 1.0)
        found.append((loop.parameters.values.clone(), metrics))
    torch.testing.assert_close(found[0][0], found[1][0], atol=2e-6, rtol=1e-5)
    assert found[0][1].keys() == found[1][1].keys()
    for key, value in found[1][1].items():
        torch.testing.assert_close(found[0][1][key], value, atol=1e-5, rtol=1e-4, msg=lambda m, k=key: f"{k}: {m}")


def test_the_explained_variance_is_that_of_what_counts() -> None:
    from etude.loops.on_policy import _explained

    g = torch.Generator().manual_seed(0)
    _, batch, fewer = collected()
    returns = torch.randn(fewer.rewards.shape, generator=g)
    fewer.returns, fewer.values = returns, returns + 0.5 * torch.randn(returns.shape, generator=g)
    for name in ("returns", "values"):
        whole = torch.full_like(batch.rewards, 50.0)
        whole[:, :, :-1] = getattr(fewer, name)
        setattr(batch, name, whole)
    expected = 1 - np.var((fewer.returns - fewer.values).numpy()) / np.var(fewer.returns.numpy())
    assert float(_explained(batch.flat())[0]) == pytest.approx(float(expected), abs=1e-5)
    assert float(_explained(fewer.flat())[0]) == pytest.approx(float(expected), abs=1e-5)


def test_moments_of_members_that_lost_something_nothing_or_all() -> None:
    moments, values = RunningMoments(3, (2,)), torch.arange(24.0).view(3, 4, 2)
    weights = torch.tensor([[1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    plain = RunningMoments(3, (2,))
    moments.observe(values, weights), plain.observe(values)
    assert moments.count.flatten().tolist() == [3.0, 4.0, 0.0]
    kept = values[0, [0, 2, 3]].double()
    torch.testing.assert_close(moments.mean[0, 0], kept.mean(0))
    torch.testing.assert_close(moments.variance[0, 0], kept.var(0, correction=0))
    assert torch.equal(moments.mean[1], plain.mean[1]) and torch.equal(moments.variance[1], plain.variance[1])
    assert moments.mean[2].tolist() == [[0.0, 0.0]] and moments.variance[2].tolist() == [[1.0, 1.0]]
    moments.observe(values)
    assert torch.equal(moments.mean[2], plain.mean[2]) and moments.count.flatten().tolist() == [7.0, 8.0, 4.0]


@pytest.mark.slow
def test_a_member_of_whom_nothing_counts_stands_still_in_its_statistics() -> None:
    """Everything in one environment is lost: no number becomes infinite, and no normaliser learns."""
    one: Any = method("ppo", minibatches=1)
    one = one.replace(experience=one.experience.replace(environments=1))
    loop = OnPolicyLoop(one, PoisonedTask(poison=1e30), MEMBERS, 4)
    for _ in range(3):
        loop.step()
    assert bool(loop.parameters.values.isfinite().all())
    assert loop.actor.transforms[0].moments.count.flatten().tolist() == [63.0, 0.0, 63.0]
