"""Critics that learn by steps of their own: what they minimise, and that they go on exactly where they were."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from control_toys import control_loop
from etude.core.errors import NonFiniteError
from etude.core.learners import Learning
from etude.core.method import Method
from etude.core.population import Member, PerMember, Population
from etude.core.registry import get_method
from etude.core.transitions import Transitions
from etude.learners.fitted import FittedValue
from etude.loops.learning import Learners
from etude.methods.onpolicy.gae import GaussNewton, TrustRegionValue
from etude.optimizers.adam import AdamW
from etude.policies.control.networks import MLP
from solo_runs import alike

P, N, D = 3, 24, 4
NAMES = ("npg", "trpo", "gae")


class Rig:
    """A critic on random states with given returns."""

    def __init__(self, part: FittedValue, hidden: tuple[int, ...] = (5,), members: int = P, lr: Any = None) -> None:
        population = Population([Member(s) for s in range(members)])
        self.part = part.replace(network=MLP(hidden=hidden)).bind()
        if lr is not None:
            self.part.learning.optimizer.settle("lr", lr)
        self.critic = self.part.build((D,), None, population).double()
        actor = SimpleNamespace(see=lambda observations: observations)
        self.learners = Learners({"critic": self.part}, {"critic": self.critic}, actor, population, 10)
        self.parameters = self.learners.trainers["critic"].parameters
        g = torch.Generator().manual_seed(1)
        states = torch.randn(members, N, D, generator=g, dtype=torch.float64)
        returns = torch.randn(members, N, generator=g, dtype=torch.float64)
        nothing = torch.zeros_like(returns)
        self.batch = Transitions(
            states, nothing, nothing, nothing.bool(), nothing.bool(), nothing, nothing, nothing, nothing,
            returns=returns,
        )  # fmt: skip

    def values(self, rows: Transitions) -> Tensor:
        return self.critic(rows.observations)

    def fit(self, number: int = 0) -> dict[str, Tensor]:
        return self.learners.run(self.batch, number, "after")

    def gauss_newton(self, member: int) -> tuple[Tensor, Tensor]:
        """M = mean j j^T and the gradient of mean (V - G)^2, by one backward pass per state."""
        rows, leaves = [], list(self.critic.parameters())
        values = self.values(self.batch)[member]
        for value in values:
            rows.append(torch.cat([x[member].flatten() for x in torch.autograd.grad(value, leaves, retain_graph=True)]))
        jacobian = torch.stack(rows)
        error = (values - self.batch.returns[member]).detach()
        return jacobian.T @ jacobian / N, 2 * jacobian.T @ error / N


def changes(rig: Rig) -> Tensor:
    """What one fit did to the critic's weights."""
    before = rig.parameters.values.clone()
    rig.fit()
    return rig.parameters.values - before


def by_adam(epochs: int, minibatches: int, lr: float = 1e-3, clip_norm: float | None = 0.5) -> FittedValue:
    adam = AdamW(lr=lr, epsilon=1e-5, clip_norm=clip_norm)
    return FittedValue(learning=Learning(optimizer=adam, epochs=epochs, minibatches=minibatches))


def by_trust(**settings: float) -> TrustRegionValue:
    return TrustRegionValue(learning=Learning(optimizer=GaussNewton(**settings)))


def test_the_trust_region_step_is_gauss_newton_as_far_as_epsilon_says() -> None:
    rig = Rig(by_trust(epsilon=1e-6, damping=0.05, iterations=60, tolerance=1e-28))
    algebra = [rig.gauss_newton(m) for m in range(P)]
    sigma = ((rig.values(rig.batch) - rig.batch.returns) ** 2).mean(1).detach()
    found = changes(rig)
    for member, (matrix, gradient) in enumerate(algebra):
        direction = -torch.linalg.solve(matrix + 0.05 * torch.eye(len(matrix), dtype=torch.float64), gradient)
        size = (1e-6 * sigma[member] / (0.5 * direction @ matrix @ direction)).sqrt()
        torch.testing.assert_close(found[member], size * direction, atol=1e-12, rtol=1e-7)
        quadratic = 0.5 * found[member] @ matrix @ found[member]
        assert float(quadratic) == pytest.approx(1e-6 * float(sigma[member]), rel=1e-9)


@pytest.mark.parametrize("epsilon", [1e-4, 0.01])
def test_values_change_by_epsilon(epsilon: float) -> None:
    """mean (V - V_old)^2 / (2 sigma^2), to second order in the weights."""
    rig = Rig(by_trust(epsilon=epsilon))
    before = rig.values(rig.batch).detach()
    sigma = ((before - rig.batch.returns) ** 2).mean(1)
    metrics = rig.fit()
    found = ((rig.values(rig.batch).detach() - before) ** 2).mean(1) / (2 * sigma)
    torch.testing.assert_close(metrics["value_change"], found)
    torch.testing.assert_close(
        found, torch.full((P,), epsilon, dtype=torch.float64), atol=0, rtol=5 * math.sqrt(epsilon)
    )
    torch.testing.assert_close(metrics["value_loss"], sigma / 2)


def test_the_trust_region_step_lowers_the_error() -> None:
    rig = Rig(by_trust(epsilon=0.01))
    losses = torch.stack([rig.fit(n)["value_loss"] for n in range(6)])
    assert bool((losses.diff(dim=0) < 0).all())


def test_values_that_are_right_stay() -> None:
    rig = Rig(TrustRegionValue())
    rig.batch.returns[1] = rig.values(rig.batch)[1].detach()
    before = rig.parameters.values.clone()
    metrics = rig.fit()
    assert torch.equal(rig.parameters.values[1], before[1])
    assert metrics["value_skipped_steps"].tolist() == [0.0] * P
    assert not torch.equal(rig.parameters.values[0], before[0])


@pytest.mark.slow
def test_adam_fits_a_linear_critic_to_least_squares() -> None:
    rig = Rig(by_adam(400, 1, lr=0.02, clip_norm=None), hidden=())
    rig.fit()
    for member in range(P):
        inputs = torch.cat([rig.batch.observations[member], torch.ones(N, 1, dtype=torch.float64)], 1)
        expected = torch.linalg.lstsq(inputs, rig.batch.returns[member]).solution
        found = rig.parameters.values[member]
        torch.testing.assert_close(found, expected, atol=2e-3, rtol=0)


def test_one_epoch_of_one_minibatch_is_one_step_of_adam_on_half_the_squared_error() -> None:
    rig = Rig(by_adam(1, 1, lr=0.01))
    weights = [nn.Parameter(p[1].detach().clone()) for p in rig.critic.parameters()]
    optimizer = torch.optim.Adam(weights, 0.01, eps=1e-5)
    hidden = torch.tanh(rig.batch.observations[1] @ weights[0] + weights[1])
    loss = ((hidden @ weights[2] + weights[3])[:, 0] - rig.batch.returns[1]).square().mean() / 2
    loss.backward()
    nn.utils.clip_grad_norm_(weights, 0.5)
    optimizer.step()
    metrics = rig.fit()
    assert float(metrics["value_loss"][1]) == pytest.approx(loss.item())
    expected = torch.cat([w.detach().flatten() for w in weights])
    torch.testing.assert_close(rig.parameters.values[1], expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("part", [by_adam(10, 3), TrustRegionValue()])
def test_steps_that_count_for_nothing_teach_nothing(part: FittedValue) -> None:
    rig, other = Rig(part), Rig(part)
    for r in (rig, other):
        r.batch.weights = torch.ones(P, N, dtype=torch.float64)
        r.batch.weights[0, 5:9] = 0
    other.batch.returns[0, 5:9] = 1e3
    assert torch.equal(changes(rig), changes(other))


@pytest.mark.kernels
@pytest.mark.parametrize("part", [by_adam(2, 3), TrustRegionValue()])
def test_each_member_is_fitted_alone(part: FittedValue) -> None:
    together, alone = Rig(part), Rig(part, members=1)
    alone.batch = together.batch._map(lambda x: x[:1])
    for number in range(3):
        together.fit(number), alone.fit(number)
    assert alike(together.parameters.values[0], alone.parameters.values[0])


@pytest.mark.parametrize("part", [by_adam(1, 1), TrustRegionValue()])
def test_a_member_without_finite_returns_keeps_its_values_and_stops_the_run_at_the_third_time(
    part: FittedValue,
) -> None:
    rig = Rig(part)
    rig.batch.returns[1, 2] = math.inf
    before = rig.parameters.values.clone()
    for number in range(2):
        metrics = rig.fit(number)
        assert metrics["value_skipped_steps"].tolist() == [0, 1, 0]
    assert torch.equal(rig.parameters.values[1], before[1])
    assert not torch.equal(rig.parameters.values[0], before[0])
    assert rig.learners.tensors()["learners.critic.failures"].tolist() == [0, 2, 0]
    with pytest.raises(NonFiniteError, match="member 1"):
        rig.fit(2)


@pytest.mark.slow
def test_the_learning_rate_may_differ_between_members() -> None:
    both = Rig(by_adam(10, 2), lr=PerMember([0.1, 0.01, 0.001]))
    both.fit()
    for member, lr in enumerate([0.1, 0.01, 0.001]):
        single = Rig(by_adam(10, 2, lr=lr))
        single.fit()
        assert torch.equal(single.parameters.values[member], both.parameters.values[member])


# In a run


def small(name: str) -> Method:
    method = get_method(name)
    return method.replace(experience=method.experience.replace(environments=2, steps=16))


@pytest.mark.parametrize("name", NAMES)
def test_advantages_come_from_the_values_before_the_fit(name: str) -> None:
    loop, seen = control_loop(small(name), [0, 1]), []
    run = loop.updater.run

    def watched(batch: Transitions, number: int, rate: float) -> dict[str, Tensor]:
        seen.append((batch.values.clone(), loop.critic(loop.actor.see(batch.observations)).detach()))
        found = run(batch, number, rate)
        seen.append((batch.values.clone(), loop.critic(loop.actor.see(batch.observations)).detach()))
        return found

    loop.updater.run = watched
    loop.step()
    (values, now), (kept, later) = seen
    torch.testing.assert_close(values, now, atol=1e-6, rtol=1e-6)
    assert torch.equal(values, kept)
    assert (later - now).abs().max() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_ends_with_the_same_numbers(name: str, tmp_path: Path) -> None:
    whole, first = control_loop(small(name), [0, 1, 2]), control_loop(small(name), [0, 1, 2])
    for _ in range(4):
        whole.step()
    first.step(), first.step()
    first.save(tmp_path)
    second = control_loop(small(name), [0, 1, 2])
    second.load(tmp_path)
    second.step(), second.step()
    mine, theirs = whole.policy_tensors(), second.policy_tensors()
    assert all(torch.equal(v, theirs[k]) for k, v in mine.items())
    before, after = whole.updater.tensors(), second.updater.tensors()
    assert before.keys() == after.keys()
    assert any(k.startswith("learners.critic.") for k in before)
    assert all(torch.equal(before[k], after[k]) for k in before)
