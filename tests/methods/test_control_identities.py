"""What the papers of the on-policy methods prove, exactly: enumerated processes and per-sample gradients in float64."""

from __future__ import annotations

import json

import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from control_toys import MDP
from etude.advantages.returns import GAE, RewardToGo
from etude.core.method import Method
from etude.core.registry import get_method
from etude.core.slots import TokenAdvantages, TokenObjective, TokenRegularizer
from etude.core.transitions import ActionLogProbs, Transitions
from etude.objectives.policy_gradient import ClippedSurrogate, PolicyGradient
from etude.objectives.surrogate import Surrogate
from etude.policies.control.distributions import Distribution, distribution
from etude.regularizers.behaviour_kl import AdaptiveBehaviourKL, BehaviourKL

HORIZON = 3
P, N, INPUTS = 2, 40, 5
DISCRETE, CONTINUOUS = spaces.Discrete(4), spaces.Box(-1, 1, (2,))


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# The policy gradient, enumerated


def every_course(mdp: MDP, pi: Tensor, values: Tensor) -> tuple[Transitions, Tensor, Tensor]:
    """All episodes of HORIZON steps, how likely each is, and the exact gradient of the expected discounted return."""
    states, actions = mdp.paths(HORIZON)
    batch = mdp.rollout(states, actions, values)
    batch.terminated[:, -1] = True
    batch.next_values[:, -1] = 1e3  # must not be looked at
    chance = mdp.start[states[0]] * pi[states[0], actions[0]] * mdp.chance(pi, states, actions)
    discount = mdp.gamma ** torch.arange(HORIZON, dtype=torch.float64)
    return batch, chance, (chance * (discount @ mdp.rewards[states[:-1], actions])).sum()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "credit, baseline",
    [
        (RewardToGo(gamma=0.9, baseline=None), False),
        (GAE(gamma=0.9, lam=1.0, standardize=False), False),
        (GAE(gamma=0.9, lam=1.0, standardize=False), True),
    ],
)
def test_the_enumerated_gradient_is_the_policy_gradient_with_and_without_a_baseline(
    credit: TokenAdvantages, baseline: bool, seed: int
) -> None:
    mdp, logits = MDP.random(seed), numbers(seed, 3, 2).requires_grad_()
    values = numbers(seed + 5, 3) if baseline else torch.zeros(3, dtype=torch.float64)
    batch, chance, objective = every_course(mdp, logits.softmax(-1), values)
    (exact,) = torch.autograd.grad(objective, logits)
    batch.advantages = credit.of_transitions(batch)
    discount = (mdp.gamma ** torch.arange(HORIZON, dtype=torch.float64))[None, :, None]
    logp = logits.log_softmax(-1)[batch.observations, batch.actions]
    for part in (PolicyGradient(), Surrogate()):
        loss = (
            part(batch.replace(behaviour_logp=logp.detach()), ActionLogProbs(logp)) * chance.detach() * discount
        ).sum()
        found = torch.autograd.grad(loss, logits, retain_graph=True)[0]
        torch.testing.assert_close(-found, exact, atol=1e-13, rtol=1e-11)


def test_a_baseline_that_looks_at_the_action_would_be_biased() -> None:
    mdp, logits = MDP.random(0), numbers(0, 3, 2).requires_grad_()
    batch, chance, objective = every_course(mdp, logits.softmax(-1), torch.zeros(3, dtype=torch.float64))
    (exact,) = torch.autograd.grad(objective, logits, retain_graph=True)
    batch.advantages = RewardToGo(gamma=0.9, baseline=None).of_transitions(batch) - batch.actions
    logp = logits.log_softmax(-1)[batch.observations, batch.actions]
    loss = (PolicyGradient()(batch, ActionLogProbs(logp)) * chance.detach()).sum()
    assert (torch.autograd.grad(loss, logits)[0] + exact).abs().max() > 1e-3


# Surrogates


class Case:
    """Steps of P members with a linear policy over a space, and how far it has moved since it acted."""

    def __init__(self, space: spaces.Space, moved: float, seed: int = 0) -> None:
        self.space: Distribution = distribution(space)
        inputs = numbers(seed, P, N, INPUTS)
        self.weight = numbers(seed + 1, P, INPUTS, self.space.parameters).mul_(0.5)
        noise = self.space.noise((P, N), torch.Generator().manual_seed(seed)).double()
        self.inputs, self.behaviour = inputs, inputs @ self.weight
        actions = self.space.sample(self.behaviour, noise).double()
        logp = self.space.logp(self.behaviour, actions)
        nothing = torch.zeros_like(logp)
        self.batch = Transitions(
            inputs, actions, nothing, nothing.bool(), nothing.bool(), self.behaviour, logp, nothing, nothing,
            advantages=numbers(seed + 2, P, N),
        )  # fmt: skip
        self.weight = (self.weight + moved * numbers(seed + 3, *self.weight.shape)).requires_grad_()

    def policy(self) -> ActionLogProbs:
        parameters = self.inputs @ self.weight
        kl = self.space.kl(self.behaviour, parameters)
        return ActionLogProbs(self.space.logp(parameters, self.batch.actions), parameters=parameters, kl=kl)

    def gradient(self, objective: TokenObjective, regularizers: tuple[TokenRegularizer, ...] = ()) -> Tensor:
        policy = self.policy()
        total = sum((part(self.batch, policy) for part in regularizers), objective(self.batch, policy))
        return torch.autograd.grad(total.mean(1).sum(), self.weight)[0]


VARIANTS: dict[str, tuple[TokenObjective, tuple[TokenRegularizer, ...]]] = {
    "clip": (ClippedSurrogate(low=0.2, high=0.2), ()),
    "none": (Surrogate(), ()),
    "fixed": (Surrogate(), (BehaviourKL(beta=3.0),)),
    "adaptive": (Surrogate(), (AdaptiveBehaviourKL(target=0.01).bind(),)),
}


@pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_where_the_policy_acted_every_variant_has_the_gradient_of_a2c(variant: str, space: spaces.Space) -> None:
    case = Case(space, moved=0.0)
    objective = get_method("a2c").objective
    assert objective is not None
    torch.testing.assert_close(case.gradient(*VARIANTS[variant]), case.gradient(objective), atol=1e-14, rtol=1e-11)


@pytest.mark.parametrize("variant", VARIANTS)
def test_elsewhere_no_variant_has(variant: str) -> None:
    case = Case(DISCRETE, moved=0.5)
    assert (case.gradient(*VARIANTS[variant]) - case.gradient(PolicyGradient())).abs().max() > 1e-3


def sides(case: Case, low: float, high: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Per-sample losses and their gradients by log-probability, ratios, and advantages."""
    logp = case.policy().logp.detach().requires_grad_()
    loss = ClippedSurrogate(low=low, high=high)(case.batch, ActionLogProbs(logp))
    assert case.batch.advantages is not None
    (by_logp,) = torch.autograd.grad(loss.sum(), logp)
    return loss.detach(), by_logp, (logp - case.batch.behaviour_logp).exp().detach(), case.batch.advantages


@pytest.mark.parametrize("low, high", [(0.2, 0.2), (0.1, 0.3)])
@pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_a_step_has_no_gradient_if_and_only_if_it_is_clipped(space: spaces.Space, low: float, high: float) -> None:
    case = Case(space, moved=0.3)
    loss, by_logp, ratio, advantage = sides(case, low, high)
    clipped = ((advantage > 0) & (ratio > 1 + high)) | ((advantage < 0) & (ratio < 1 - low))
    assert 0 < int(clipped.sum()) < clipped.numel()
    assert torch.equal(by_logp == 0, clipped)
    torch.testing.assert_close(by_logp[~clipped], -(ratio * advantage)[~clipped], atol=1e-14, rtol=1e-12)
    assert bool((-loss <= ratio * advantage + 1e-15).all())
    found = ClippedSurrogate(low=low, high=high).metrics(case.batch, case.policy())["clip_fraction"]
    assert torch.equal(found.bool(), clipped)


@pytest.mark.parametrize("seed", range(3))
def test_the_clip_is_a_penalty_on_what_is_outside(seed: int) -> None:
    """min(rho A, clip(rho) A) = rho A - relu((rho - clip(rho)) A)."""
    loss, _, ratio, advantage = sides(Case(DISCRETE, 0.5, seed), 0.2, 0.2)
    penalty = ((ratio - ratio.clamp(0.8, 1.2)) * advantage).relu()
    torch.testing.assert_close(-loss, ratio * advantage - penalty, atol=1e-14, rtol=1e-13)


def test_an_endless_clip_range_is_no_clip() -> None:
    case = Case(CONTINUOUS, moved=0.1)
    wide = ClippedSurrogate(low=1 - 1e-15, high=1e300)
    assert torch.equal(wide(case.batch, case.policy()), Surrogate()(case.batch, case.policy()))
    assert torch.equal(case.gradient(wide), case.gradient(Surrogate()))


def test_the_penalty_is_beta_times_the_exact_kl() -> None:
    case = Case(CONTINUOUS, moved=0.2)
    policy = case.policy()
    mean, log_std = case.behaviour.chunk(2, -1)
    other_mean, other_log_std = policy.parameters.detach().chunk(2, -1)
    first, second = (
        torch.distributions.Independent(torch.distributions.Normal(m, s.exp()), 1)
        for m, s in ((mean, log_std), (other_mean, other_log_std))
    )
    expected = 3.0 * torch.distributions.kl_divergence(first, second)
    torch.testing.assert_close(BehaviourKL(beta=3.0)(case.batch, policy).detach(), expected, atol=1e-12, rtol=1e-10)


def test_the_metric_of_the_unclipped_surrogate_is_a_divergence() -> None:
    case = Case(DISCRETE, moved=0.1)
    found = Surrogate().metrics(case.batch, case.policy())["behaviour_kl"]
    assert bool((found >= 0).all())
    assert (
        not Surrogate().metrics(case.batch, Case(DISCRETE, 0.0).policy())["behaviour_kl"].detach().abs().max() > 1e-14
    )


# Adaptive KL


def test_beta_follows_the_measured_kl_of_every_member() -> None:
    part = AdaptiveBehaviourKL(target=0.01, beta=1.0).bind()
    measured = [0.01 / 1.5 * 0.99, 0.01 / 1.5 * 1.01, 0.015 * 0.99, 0.015 * 1.01]
    part.observe({"kl": torch.tensor(measured)})
    assert part.state["beta"][:, 0].tolist() == [0.5, 1.0, 1.0, 2.0]
    part.observe({"kl": torch.tensor([0.0, 0.01, 1.0, 1.0])})
    assert part.state["beta"][:, 0].tolist() == [0.25, 1.0, 2.0, 4.0]
    policy = ActionLogProbs(torch.zeros(4, 3), kl=torch.ones(4, 3))
    assert part(None, policy).tolist() == [[b] * 3 for b in (0.25, 1.0, 2.0, 4.0)]


def test_before_the_first_rollout_beta_is_what_was_set() -> None:
    policy = ActionLogProbs(torch.zeros(2, 3), kl=torch.ones(2, 3))
    assert AdaptiveBehaviourKL(beta=0.7).bind()(None, policy).tolist() == torch.full((2, 3), 0.7).tolist()


# Composition

FAMILY = ("a2c", "a3c", "npg", "trpo", "gae", "ppo-continuous", "v-mpo", "policy-gradient-guide")


def changed(name: str) -> set[str]:
    """Slots in which a method differs from its parent, as both are in control."""
    method = get_method(name)
    parent = get_method(method.parent, "control")
    return {k.split(".")[0] for k in method.diff(parent)}


@pytest.mark.parametrize(
    "name, slots",
    [
        ("a2c", {"policy", "experience", "rewards", "advantages", "regularizers"}),
        ("a3c", {"policy", "experience", "rewards", "advantages", "critic", "optimizer"}),
        ("npg", {"experience", "objective", "critic", "regularizers", "optimizer"}),
        ("trpo", {"optimizer"}),
        ("gae", {"advantages", "critic"}),
        ("v-mpo", {"experience", "advantages", "objective", "regularizers", "critic", "epochs", "minibatches"}),
        (
            "policy-gradient-guide",
            {"policy", "experience", "rewards", "advantages", "regularizers", "critic", "optimizer", "minibatches"},
        ),
        (
            "ppo-continuous",
            {"policy", "experience", "rewards", "advantages", "critic", "regularizers", "optimizer", "minibatches"},
        ),
    ],
)
def test_each_method_changes_only_what_it_says(name: str, slots: set[str]) -> None:
    assert changed(name) == slots


@pytest.mark.parametrize("name", FAMILY)
def test_each_method_is_written_down_and_checked(name: str) -> None:
    method = get_method(name)
    method.check()
    again = Method.from_json(json.loads(json.dumps(method.to_json())))
    assert again.slots() == method.slots()
    assert all(type(part).__name__ in method.describe() for part in method.parts().values())
