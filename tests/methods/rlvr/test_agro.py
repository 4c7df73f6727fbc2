"""AGRO's gradients against the variance that it minimises, by enumeration."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.registry import get_method
from etude.evaluation.exact import expected_gradient, gradient
from etude.loops.bandit import Bandit
from etude.methods.rlvr.agro import GenerationConsistency
from etude.policies.tabular import SoftmaxTree

BETA = 0.6
V, LENGTH = 2, 2
REFERENCE, OTHER = SoftmaxTree(1, V, LENGTH, spread=0.9, seed=4), SoftmaxTree(1, V, LENGTH, spread=0.9, seed=5)


@pytest.fixture
def bandit() -> Bandit:
    """Four responses of two tokens."""
    policy = SoftmaxTree(1, V, LENGTH, spread=0.9, seed=6)
    return Bandit(policy, torch.tensor([[0.0, 1.0, 0.3, -0.5]], dtype=torch.float64))


def method(extra: float) -> Method:
    return get_method("agro").replace(objective=GenerationConsistency(beta=BETA, extra=extra))


def held() -> Tensor:
    return REFERENCE.logp()[0, 0].detach()


def half_variance(bandit: Bandit, mu: Tensor, logp: Tensor) -> Tensor:
    """(1/2) Var_mu[r - beta log pi / pi_ref]."""
    consistent = bandit.rewards[0] - BETA * (logp - held())
    mean = (mu * consistent).sum()
    return 0.5 * (mu * (consistent - mean) ** 2).sum()


def optimum(bandit: Bandit) -> Tensor:
    return (held() + bandit.rewards[0] / BETA).softmax(0)


def finite_difference(bandit: Bandit, mu: Tensor | None) -> Tensor:
    """Central differences of the loss by every logit; mu None moves with the policy."""
    table = bandit.policy.logits[0].data
    found, step = torch.zeros_like(table), 1e-5

    def loss() -> float:
        logp = bandit.policy.logp()[0, 0].detach()
        return float(half_variance(bandit, logp.exp() if mu is None else mu, logp))

    for place in range(table.numel()):
        flat, begun = table.view(-1), float(table.view(-1)[place])
        flat[place] = begun + step
        high = loss()
        flat[place] = begun - step
        found.view(-1)[place] = (high - loss()) / (2 * step)
        flat[place] = begun
    return found


def test_the_optimum_is_consistent_under_every_distribution(bandit: Bandit) -> None:
    best = optimum(bandit)
    for mu in (best, OTHER.probs()[0, 0].detach(), torch.full((4,), 0.25, dtype=torch.float64)):
        assert half_variance(bandit, mu, best.log()) < 1e-24
    assert half_variance(bandit, best, bandit.policy.logp()[0, 0].detach()) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_off_policy_it_is_the_gradient_with_mu_frozen(bandit: Bandit, size: int) -> None:
    """Size n: the loss per completion and token is -c log pi / (n L)."""
    mu = OTHER.probs()[0, 0].detach()
    found = expected_gradient(method(0.0), bandit, size, behaviour=OTHER, reference=REFERENCE) * LENGTH
    exact = gradient(half_variance(bandit, mu, bandit.policy.logp()[0, 0]), bandit.policy) / BETA
    torch.testing.assert_close(found, exact, atol=1e-11, rtol=0)
    torch.testing.assert_close(found * BETA, finite_difference(bandit, mu), atol=1e-8, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_on_policy_it_is_the_gradient_with_mu_moving(bandit: Bandit, size: int) -> None:
    found = expected_gradient(method(1.0), bandit, size, reference=REFERENCE) * LENGTH
    logp = bandit.policy.logp()[0, 0]
    exact = gradient(half_variance(bandit, logp.exp(), logp), bandit.policy) / BETA
    torch.testing.assert_close(found, exact, atol=1e-11, rtol=0)
    torch.testing.assert_close(found * BETA, finite_difference(bandit, None), atol=1e-8, rtol=0)


def test_without_the_extra_term_on_fresh_samples_it_is_the_regularised_policy_gradient(bandit: Bandit) -> None:
    found = expected_gradient(method(0.0), bandit, 2, reference=REFERENCE) * LENGTH
    logp = bandit.policy.logp()[0, 0]
    target = (logp.exp() * (bandit.rewards[0] - BETA * (logp - held()))).sum()
    torch.testing.assert_close(found, -gradient(target, bandit.policy), atol=1e-11, rtol=0)


def test_the_loss_stands_still_at_the_optimum_on_every_group_of_samples(bandit: Bandit) -> None:
    """Not only on average: the coefficients themselves are 0."""
    tree = SoftmaxTree(1, 4, spread=0.0)
    flat = Bandit(tree, bandit.rewards)
    reference = SoftmaxTree(1, 4, spread=1.0, seed=2)
    tree.logits[0].data.copy_(reference.logits[0].data + bandit.rewards[:, None] / BETA)
    for extra, behaviour in ((0.0, reference), (1.0, None)):
        found = expected_gradient(method(extra), flat, 2, behaviour=behaviour, reference=reference)
        assert found.abs().max() < 1e-12


def test_coefficients_by_hand(make_batch: Any, logprobs: Any) -> None:
    """R = 1, 0, 3: others' means 1.5, 2, 0.5 and their variances 2.25, 1, 0.25."""
    batch = make_batch(torch.ones(3, 1), scores=[1.0, 0.0, 3.0], reference_logp=[[-1.0]] * 3)
    said = logprobs([[-1.0]] * 3)
    objective = GenerationConsistency(beta=0.5)
    assert objective.replace(extra=0.0).coefficients(batch, said).tolist() == [-0.5, -2.0, 2.5]
    found = objective.replace(extra=1.0).coefficients(batch, said)
    assert found.tolist() == [-0.5 - (0.25 - 2.25), -2.0 - (4 - 1), 2.5 - (6.25 - 0.25)]
    alone = make_batch([[1]], scores=[1.0], reference_logp=[[-3.0]])
    assert objective.replace(extra=1.0).coefficients(alone, logprobs([[-1.0]])).tolist() == [0.0]


def test_what_does_not_fit_is_refused() -> None:
    agro = get_method("agro")
    with pytest.raises(ConfigError, match="set extra to 0"):
        method(1.0).replace(minibatches=4).check()
    method(0.0).replace(minibatches=4).check()
    with pytest.raises(ConfigError, match="2 or more"):
        agro.replace(experience=agro.experience.replace(size=1)).check()
    with pytest.raises(ConfigError):
        GenerationConsistency(beta=0.0)
