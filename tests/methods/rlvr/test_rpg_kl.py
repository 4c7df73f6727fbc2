"""RPG's losses by enumeration: every expectation is a sum over all responses of a softmax policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage
from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.registry import get_method
from etude.evaluation.exact import expected_gradient, gradient
from etude.loops.bandit import Bandit
from etude.methods.rlvr.rpg_kl import RegularizedPolicyGradient, RegularizedReinforce
from etude.objectives.policy_gradient import PolicyGradient
from etude.policies.tabular import SoftmaxTree
from etude.regularizers.kl import KLToReference

DIVERGENCES = ("fkl", "ufkl", "rkl", "urkl")
FORMS = (RegularizedPolicyGradient, RegularizedReinforce)
UNCLIPPED: dict[str, Any] = {"low": 1.0, "high": 1e30, "dual": 1e30}
BETA = 0.7
Y = 5


def tree(seed: int) -> SoftmaxTree:
    return SoftmaxTree(1, Y, spread=0.8, seed=seed)


@pytest.fixture
def bandit() -> Bandit:
    """A policy over five responses with rewards of all sizes."""
    return Bandit(tree(1), torch.tensor([[0.0, 1.0, 0.3, -0.5, 2.0]], dtype=torch.float64))


OLD, REFERENCE = tree(2), tree(3)


def method(objective: Any, **slots: Any) -> Method:
    """One sample, its plain reward as the advantage, nothing filtered."""
    plain = GroupAdvantage(centre=None, scale=None)
    rpg = get_method("rpg-kl")
    return rpg.replace(rewards=rpg.rewards[:1], advantages=plain, filters=(), objective=objective, **slots)


def target(bandit: Bandit, divergence: str, beta: float = BETA) -> Tensor:
    """grad of J = E_pi[R] - beta D(pi, pi_old), D written out for the two policies' masses."""
    p, old = bandit.policy.probs()[0, 0], OLD.probs()[0, 0].detach()
    forward, reverse = (old * (old / p).log()).sum(), (p * (p / old).log()).sum()
    excess = p.sum() - old.sum()
    d = {"fkl": forward, "ufkl": forward + excess, "rkl": reverse, "urkl": reverse - excess}[divergence]
    return gradient((p * bandit.rewards[0]).sum() - beta * d, bandit.policy)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_both_forms_have_the_gradient_of_the_regularised_target(bandit: Bandit, divergence: str, form: Any) -> None:
    objective = form(divergence=divergence, beta=BETA, **UNCLIPPED)
    found = expected_gradient(method(objective), bandit, 1, behaviour=OLD)
    torch.testing.assert_close(found, -target(bandit, divergence), atol=1e-11, rtol=0)


def test_unnormalised_divergences_have_the_same_gradient_as_normalised_ones(bandit: Bandit) -> None:
    for one, other in (("fkl", "ufkl"), ("rkl", "urkl")):
        torch.testing.assert_close(target(bandit, one), target(bandit, other), atol=1e-12, rtol=0)
        found = [expected_gradient(method(RegularizedReinforce(divergence=d, beta=BETA, **UNCLIPPED)), bandit, 1,
                                   behaviour=OLD) for d in (one, other)]  # fmt: skip
        torch.testing.assert_close(*found, atol=1e-11, rtol=0)
    assert not torch.allclose(target(bandit, "fkl"), target(bandit, "rkl"), atol=1e-3)


def kl_gradient(bandit: Bandit, weighted: bool, behaviour: SoftmaxTree | None) -> Tensor:
    """What the KL term of GRPO does on average."""
    term = KLToReference(coefficient=1.0, estimator="k3", weighted=weighted)
    only = method(PolicyGradient(), regularizers=(term,)).replace(advantages=None)
    return expected_gradient(only, bandit, 1, behaviour=behaviour, reference=REFERENCE)


def exact_kl(bandit: Bandit, forward: bool) -> Tensor:
    logp, held = bandit.policy.logp()[0, 0], REFERENCE.logp()[0, 0].detach()
    value = (held.exp() * (held - logp)).sum() if forward else (logp.exp() * (logp - held)).sum()
    return gradient(value, bandit.policy)


def test_weighted_k3_has_the_gradient_of_the_reverse_kl_whoever_sampled(bandit: Bandit) -> None:
    for behaviour in (OLD, None):
        torch.testing.assert_close(kl_gradient(bandit, True, behaviour), exact_kl(bandit, False), atol=1e-11, rtol=0)


def test_unweighted_k3_does_not_and_on_fresh_samples_it_follows_the_forward_kl(bandit: Bandit) -> None:
    """The catalogue says that at pi = pi_old it is right: that holds where the reference is pi_old too (both are 0)."""
    for behaviour in (OLD, None):
        assert (kl_gradient(bandit, False, behaviour) - exact_kl(bandit, False)).abs().max() > 0.01
    torch.testing.assert_close(kl_gradient(bandit, False, None), exact_kl(bandit, True), atol=1e-11, rtol=0)


def test_unweighted_k3_is_right_where_policy_behaviour_and_reference_are_one(bandit: Bandit) -> None:
    bandit.policy.logits[0].data.copy_(REFERENCE.logits[0].data)
    for weighted in (False, True):
        torch.testing.assert_close(kl_gradient(bandit, weighted, None), exact_kl(bandit, False), atol=1e-12, rtol=0)


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_without_divergence_and_clip_it_is_the_weighted_policy_gradient(
    make_batch: Callable[..., Any], logprobs: Callable[..., Any], divergence: str
) -> None:
    logp = torch.tensor([[-1.0, -0.3], [-2.0, -0.9]], dtype=torch.float64, requires_grad=True)
    batch = make_batch(torch.ones(2, 2), behaviour_logp=[[-0.4, -0.8], [-2.5, -0.1]], advantages=[[1.0, 1.0], [-2, -2]])
    objective = RegularizedReinforce(divergence=divergence, beta=0.0, **UNCLIPPED)
    (found,) = torch.autograd.grad(objective(batch, logprobs(logp)).sum(), logp)
    expected = -(logp.detach() - batch.behaviour_logp).exp() * batch.advantages
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=0)


W = torch.tensor([[0.5, 0.79, 0.81, 1.0, 1.27, 1.29, 2.9, 3.1]], dtype=torch.float64)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("advantage", "kept"), [(1.0, [1, 1, 1, 1, 1, 0, 0, 0]), (-1.0, [0, 0, 1, 1, 1, 1, 1, 0])])
def test_the_clip_keeps_what_the_paper_keeps(
    make_batch, logprobs, form: Any, advantage: float, kept: list[int]
) -> None:
    """w < 1.28 for a gain; 0.8 < w < c for a loss."""
    logp = torch.full((1, 8), -2.0, dtype=torch.float64, requires_grad=True)
    batch = make_batch(torch.ones(1, 8), behaviour_logp=-2.0 - W.log(), advantages=torch.full((1, 8), advantage))
    objective = form(beta=0.0, dual=3.0)
    (found,) = torch.autograd.grad(objective(batch, logprobs(logp)).sum(), logp)
    torch.testing.assert_close(found, -advantage * W * torch.tensor([kept]), atol=1e-12, rtol=0)
    assert objective.metrics(batch, logprobs(logp))["clip_fraction"].tolist() == [[1.0 - k for k in kept]]


def test_the_sign_of_the_whole_weight_decides_which_side_is_clipped(make_batch, logprobs) -> None:
    """A = 1 alone would stop at w = 2; with beta = 3, W = w (1 - 3 log 2) < 0 still teaches."""
    logp = torch.full((1, 1), -1.0, dtype=torch.float64, requires_grad=True)
    batch = make_batch([[1]], behaviour_logp=logp.detach() - torch.tensor(2.0).double().log(), advantages=[[1.0]])
    loss = RegularizedReinforce(divergence="urkl", beta=3.0)(batch, logprobs(logp))
    (found,) = torch.autograd.grad(loss.sum(), logp)
    torch.testing.assert_close(found, -2 * (1 - 3 * torch.tensor([[2.0]]).double().log()), atol=1e-12, rtol=0)


def test_fields_are_checked() -> None:
    for bad in ({"dual": 1.0}, {"beta": -1.0}, {"low": 1.5}, {"divergence": "js"}):
        with pytest.raises(ConfigError):
            RegularizedReinforce(**bad)
