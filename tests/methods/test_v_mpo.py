"""V-MPO: what its equations say of weights, temperature and multipliers, and how the loop trains the latter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch import distributions as D

from control_toys import control_loop
from etude.core.errors import ConfigError
from etude.core.population import Member, Population
from etude.core.registry import get_method
from etude.core.transitions import ActionLogProbs, Transitions
from etude.evaluation.part_check import check_part
from etude.methods.onpolicy.v_mpo import BehaviourKLConstraint, TopAdvantages
from etude.optimizers.adam import AdamW
from etude.policies.control.distributions import distribution
from etude.policies.control.networks import MLP
from etude.stages.phases import Phase

P, N = 2, 10


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rows(advantages: Tensor, weights: Tensor | None = None) -> Transitions:
    x, off = torch.zeros_like(advantages), torch.zeros(advantages.shape, dtype=torch.bool)
    return Transitions(x, x, x, off, off, x, x, x, x, advantages=advantages, weights=weights)


def policy(eta: Tensor, logp: Tensor | None = None) -> ActionLogProbs:
    logp = -numbers(3, P, N).abs() if logp is None else logp
    return ActionLogProbs(logp.requires_grad_(), said={"top-advantages": eta})


def by_logp(part: TopAdvantages, batch: Transitions, said: ActionLogProbs) -> Tensor:
    """The gradient of the members' losses with respect to log-probabilities: less each step's weight."""
    (found,) = torch.autograd.grad(batch.mean(part(batch, said)).sum(), said.logp)
    return found


# The policy's loss


@pytest.mark.parametrize("eta", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("share, count", [(0.5, 5), (0.25, 3), (1.0, 10)])
def test_the_best_steps_are_imitated_by_weights_that_sum_to_one(share: float, count: int, eta: float) -> None:
    advantages = numbers(1, P, N)
    psi = -by_logp(TopAdvantages(share=share), rows(advantages), policy(torch.full((P, 1), eta, dtype=torch.float64)))
    for member in range(P):
        best = sorted(range(N), key=lambda i: -float(advantages[member, i]))[:count]
        assert set(psi[member].nonzero()[:, 0].tolist()) == set(best)
        size = sum(float((advantages[member, i] / eta).exp()) for i in best)
        for i in best:
            assert float(psi[member, i]) == pytest.approx(float((advantages[member, i] / eta).exp()) / size, abs=1e-12)
    torch.testing.assert_close(psi.sum(1), torch.ones(P, dtype=torch.float64), atol=1e-12, rtol=0)


def test_an_endless_temperature_and_no_halving_clone_the_behaviour() -> None:
    """The gradient is that of -mean log pi(a | s), through a policy with weights."""
    inputs, actions = numbers(5, N, 3), torch.arange(N) % 4
    weight = numbers(6, 3, 4).requires_grad_()
    logp = (inputs @ weight).log_softmax(1)[range(N), actions][None]
    part, said = TopAdvantages(share=1.0), ActionLogProbs(logp, said={"top-advantages": torch.full((1, 1), 1e12)})
    batch = rows(numbers(1, 1, N))
    (found,) = torch.autograd.grad(batch.mean(part(batch, said)).sum(), weight, retain_graph=True)
    (cloned,) = torch.autograd.grad(-logp.mean(), weight, retain_graph=True)
    torch.testing.assert_close(found, cloned, atol=1e-10, rtol=0)
    warm = ActionLogProbs(logp, said={"top-advantages": torch.ones(1, 1)})
    (other,) = torch.autograd.grad(batch.mean(part(batch, warm)).sum(), weight)
    assert (other - cloned).abs().max() > 1e-2


def test_steps_that_do_not_count_are_as_if_they_were_not_there() -> None:
    weights = torch.tensor([[1.0, 0, 1, 1, 0, 1, 1, 1, 1, 1], [1.0] * 10]).double()
    advantages, on = numbers(1, P, N), weights[0].bool()
    advantages[0, ~on] = 1e6
    eta = torch.ones(P, 1, dtype=torch.float64)
    whole, fewer = policy(eta), policy(eta[:1], -numbers(3, P, N).abs()[:1, on])
    batch, kept = rows(advantages, weights), rows(advantages[:1, on])
    part = TopAdvantages(share=0.5, epsilon=0.1)
    torch.testing.assert_close(batch.mean(part(batch, whole))[:1], kept.mean(part(kept, fewer)), atol=1e-12, rtol=0)
    torch.testing.assert_close(by_logp(part, batch, whole)[:1, on], by_logp(part, kept, fewer), atol=1e-12, rtol=0)
    assert by_logp(part, batch, whole)[0, ~on].tolist() == [0.0, 0.0]


def test_a_member_of_whom_nothing_counts_has_a_loss_of_zero() -> None:
    batch, said = rows(numbers(1, P, N), torch.zeros(P, N).double()), policy(torch.ones(P, 1).double())
    assert batch.mean(TopAdvantages()(batch, said)).tolist() == [0.0, 0.0]
    assert by_logp(TopAdvantages(), batch, said).abs().max() == 0


# The temperature


def slope(part: TopAdvantages, batch: Transitions, eta: float) -> float:
    """Of the loss in eta, for the first member."""
    at = torch.full((len(batch.rewards), 1), eta, dtype=torch.float64, requires_grad=True)
    said = policy(at, -numbers(3, *batch.rewards.shape).abs())
    (found,) = torch.autograd.grad(batch.mean(part(batch, said)).sum(), at)
    return float(found[0])


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_where_the_temperatures_loss_is_least_the_weights_are_epsilon_from_uniform(seed: int, epsilon: float) -> None:
    advantages = numbers(seed, 1, 40)
    part, batch = TopAdvantages(share=0.5, epsilon=epsilon), rows(advantages)
    low, high = 1e-3, 1e3
    assert slope(part, batch, low) < 0 < slope(part, batch, high)
    for _ in range(80):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if slope(part, batch, middle) < 0 else (low, middle)
    best = advantages[0].sort(descending=True).values[:20]
    psi = (best / low).softmax(0)
    assert float((psi * (psi * 20).log()).sum()) == pytest.approx(epsilon, abs=1e-9)


def test_the_temperature_learns_from_its_own_terms_only() -> None:
    """Whatever the policy says of the actions."""
    eta, found = torch.full((P, 1), 0.7, dtype=torch.float64, requires_grad=True), []
    for logp in (-numbers(3, P, N).abs(), -10 * numbers(4, P, N).abs()):
        batch, said = rows(numbers(1, P, N)), policy(eta, logp)
        found.append(torch.autograd.grad(batch.mean(TopAdvantages()(batch, said)).sum(), eta)[0])
    torch.testing.assert_close(found[0], found[1], atol=1e-12, rtol=0)


# The constraint


def said_of_kl(kl: Tensor, alpha: Tensor) -> ActionLogProbs:
    return ActionLogProbs(kl[..., 0], kl_parts=kl, said={"behaviour-kl-constraint": alpha})


def test_a_multiplier_stands_still_where_the_divergence_is_at_its_bound() -> None:
    part = BehaviourKLConstraint(epsilon=0.02, epsilon_std=0.003)
    bounds = torch.tensor([0.02, 0.003], dtype=torch.float64)
    for factor, sign in ((1.0, 0.0), (0.5, 1.0), (2.0, -1.0)):  # downhill: it falls below the bound and rises above
        kl = (factor * bounds * torch.tensor([0.5, 1.5])[:, None]).expand(P, 2, 2).clone().requires_grad_()
        alpha = torch.tensor([[2.0, 3.0], [0.5, 7.0]], dtype=torch.float64, requires_grad=True)
        loss = part(rows(numbers(1, P, 2)), said_of_kl(kl, alpha))
        by_alpha, by_kl = torch.autograd.grad(loss.mean(1).sum(), (alpha, kl))
        torch.testing.assert_close(by_alpha, (1 - factor) * bounds.expand(P, 2), atol=1e-15, rtol=0)
        assert torch.equal(by_alpha.abs() < 1e-15, torch.full((P, 2), sign == 0.0))
        torch.testing.assert_close(by_kl, alpha[:, None].expand_as(kl) / 2, atol=1e-15, rtol=0)


GAUSSIANS = {
    "plain": (spaces.Box(-1, 1, (3,)), False), "squashed": (spaces.Box(-1, 1, (3,)), True),
    "with choices": (spaces.Tuple((spaces.Discrete(4), spaces.Box(-1, 1, (3,)))), False),
}  # fmt: skip


@pytest.mark.parametrize("name", GAUSSIANS)
def test_the_divergence_is_split_into_that_of_the_means_and_that_of_the_deviations(name: str) -> None:
    space, squash = GAUSSIANS[name]
    found = distribution(space, squash)
    old, new = numbers(1, 5, found.parameters), numbers(2, 5, found.parameters)
    choices = found.parameters - 6
    (m0, s0), (m1, s1) = ((x[:, choices:-3], x[:, -3:].exp()) for x in (old, new))
    normal: Callable[[Tensor, Tensor], Any] = lambda m, s: D.Independent(D.Normal(m, s), 1)  # noqa: E731
    means = D.kl_divergence(normal(m0, s0), normal(m1, s0))
    if choices:
        means = means + D.kl_divergence(D.Categorical(logits=old[:, :4]), D.Categorical(logits=new[:, :4]))
    deviations = D.kl_divergence(normal(m0, s0), normal(m0, s1))
    parts = found.kl_parts(old, new)
    torch.testing.assert_close(torch.stack(parts), torch.stack((means, deviations)), atol=1e-12, rtol=1e-12)
    for free in (False, True):  # where only one kind moved, the two make up the whole
        moved = torch.cat([old[:, :-3], new[:, -3:]] if free else [new[:, :-3], old[:, -3:]], 1)
        split = found.kl_parts(old, moved)
        torch.testing.assert_close(sum(split), found.kl(old, moved), atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(split[1 - free], torch.zeros(5, dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.MultiBinary(3)], ids=["choices", "yes or no"])
def test_what_is_no_gaussian_has_one_divergence(space: spaces.Space) -> None:
    found = distribution(space)
    old, new = numbers(1, 5, found.parameters), numbers(2, 5, found.parameters)
    (whole,) = found.kl_parts(old, new)
    assert torch.equal(whole, found.kl(old, new))


def test_multipliers_start_as_the_guide_says() -> None:
    people, part = Population([Member(0), Member(1)]), BehaviourKLConstraint()
    assert {k: v.tolist() for k, v in part.multipliers(spaces.Discrete(2), people).items()} == {"alpha": [5.0, 5.0]}
    two = part.multipliers(spaces.Box(-1, 1, (2,)), people)
    assert {k: v.tolist() for k, v in two.items()} == {"alpha_mean": [1.0, 1.0], "alpha_std": [1.0, 1.0]}
    assert TopAdvantages().multipliers(spaces.Discrete(2), people)["temperature"].tolist() == [1.0, 1.0]


# In the loop


def small(**changes: Any) -> Any:
    found: Any = get_method("v-mpo")
    found = found.replace(
        policy=found.policy.replace(network=MLP(hidden=(8,))),
        experience=found.experience.replace(environments=2, steps=16), epochs=2, **changes,
    )  # fmt: skip
    return found


def test_multipliers_are_trained_by_the_policys_step_and_reported() -> None:
    loop = control_loop(small(), [0, 1], steps=4)
    before = dict(loop.parameters.named())
    assert before["top-advantages.numbers"].tolist() == [[1.0], [1.0]]
    assert before["behaviour-kl-constraint.numbers"].tolist() == [[5.0], [5.0]]
    members = loop.step().members
    after = dict(loop.parameters.named())
    for name, key in (("temperature", "top-advantages"), ("alpha", "behaviour-kl-constraint")):
        found = after[f"{key}.numbers"][:, 0].tolist()
        assert members[f"multiplier/{name}"] == found
        assert len({1.0, 5.0, *found}) == 4  # both have moved, each its own way


def test_multipliers_are_brought_back_above_zero_after_every_step() -> None:
    """Adam's first steps are as long as its rate, so that 5 - 2 x 4 would be below."""
    hot = small(optimizer=AdamW(lr=4.0), objective=TopAdvantages(epsilon=100.0), minibatches=1)
    loop = control_loop(hot, [0, 1], steps=4)
    loop.step()
    found = dict(loop.parameters.named())
    least = torch.tensor(1e-8).tolist()
    assert found["top-advantages.numbers"].tolist() == [[least], [least]]
    assert bool((found["behaviour-kl-constraint.numbers"] >= least).all())


@pytest.mark.slow
def test_a_resumed_run_keeps_its_multipliers(tmp_path: Path) -> None:
    whole, first, second = (control_loop(small(), [0, 1], steps=6) for _ in range(3))
    for _ in range(4):
        whole.step()
    first.step(), first.step()
    first.save(tmp_path)
    second.load(tmp_path)
    second.step(), second.step()
    assert torch.equal(whole.parameters.values, second.parameters.values)


def test_any_method_may_take_the_constraint() -> None:
    ppo: Any = get_method("ppo", "control")
    ppo = ppo.replace(experience=ppo.experience.replace(environments=2, steps=16), epochs=2)
    loop = control_loop(ppo.replace(regularizers=(BehaviourKLConstraint(),)), [0], steps=2)
    assert loop.step().metrics["multiplier/alpha"] != 5.0


def test_where_nobody_would_train_multipliers_they_are_refused() -> None:
    npg = get_method("npg")
    with pytest.raises(
        ConfigError, match="BehaviourKLConstraint has multipliers to be trained, and NaturalGradient moves"
    ):
        npg.replace(regularizers=(BehaviourKLConstraint(),)).check()
    with pytest.raises(ConfigError, match="TopAdvantages has multipliers to be trained, and NaturalGradient moves"):
        npg.replace(objective=TopAdvantages()).check()
    twice = (BehaviourKLConstraint(epsilon=0.01), BehaviourKLConstraint(epsilon=0.02))
    with pytest.raises(ConfigError, match="two networks are called behaviour-kl-constraint"):
        small(regularizers=twice).check()


def test_a_stage_brings_multipliers_with_a_fresh_optimizer_only() -> None:
    def staged(optimizer: Any) -> Any:
        return small(stages=(Phase(like="a2c", end=0.5), Phase(optimizer=optimizer)), minibatches=1)

    with pytest.raises(ConfigError, match=r"stage 1 changes what has Lagrange multipliers.*optimizer=reset"):
        staged("keep").check()
    loop = control_loop(staged("reset"), [0], steps=4)
    names = [[k for k in loop.step().metrics if k.startswith("multiplier/")] for _ in range(4)]
    assert names == [
        [],
        [],
        ["multiplier/temperature", "multiplier/alpha"],
        ["multiplier/temperature", "multiplier/alpha"],
    ]


@pytest.mark.parametrize("part", [TopAdvantages(), BehaviourKLConstraint()], ids=["objective", "regularizer"])
def test_the_parts_can_be_checked_like_any_other(part: Any) -> None:
    assert [f for f in check_part(part) if f.level != "fact"] == []
