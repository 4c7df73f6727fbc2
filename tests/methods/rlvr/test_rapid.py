"""RAPID: what its weights, its value and its gradient are on average, by enumeration."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.registry import get_method
from etude.evaluation.exact import every_group, expected_gradient, gradient
from etude.loops.bandit import Bandit
from etude.methods.rlvr.rapid import ReweightedGroups
from etude.objectives.sequence import GroupObjective
from etude.policies.tabular import SoftmaxTree

LENGTH = 2
OLD = SoftmaxTree(1, 2, LENGTH, spread=0.8, seed=8)
FREE = ReweightedGroups(eta=1e12)


@pytest.fixture
def bandit() -> Bandit:
    """Four responses of two tokens."""
    policy = SoftmaxTree(1, 2, LENGTH, spread=0.8, seed=9)
    return Bandit(policy, torch.tensor([[0.0, 1.0, 0.3, -0.5]], dtype=torch.float64))


def value(bandit: Bandit) -> Tensor:
    return (bandit.policy.probs()[0, 0] * bandit.rewards[0]).sum()


def method(objective: Any) -> Method:
    return get_method("rapid").replace(objective=objective)


def said(bandit: Bandit, response: Tensor) -> Any:
    return bandit.policy.rows(0, torch.zeros_like(response), response, bandit.policy.table().detach())


@pytest.mark.first
@pytest.mark.parametrize("size", [2, 3])
def test_with_one_minibatch_it_is_group_policy_gradient(bandit: Bandit, size: int) -> None:
    """GPG with F_norm = 1 and no correction for equal groups: on every group, so on average."""
    rapid, gpg = get_method("rapid"), get_method("gpg")
    plain = gpg.replace(advantages=gpg.advantages.of, filters=(), aggregation="fixed-length")
    found = expected_gradient(rapid, bandit, size)
    torch.testing.assert_close(found, expected_gradient(plain, bandit, size), atol=1e-12, rtol=0)
    for _, batch, response in every_group(bandit, size):
        policy = said(bandit, response)
        assert (rapid.objective.weights(batch, policy) - 1).abs().max() < 1e-12
        expected = batch.scores - batch.scores.mean()
        torch.testing.assert_close(rapid.objective.coefficients(batch, policy), expected, atol=1e-12, rtol=0)


class Constant(GroupObjective):
    """w (r - c) with the weights of `ReweightedGroups`."""

    of: ReweightedGroups = FREE
    c: float = 0.0

    def coefficients(self, batch: Any, policy: Any) -> Tensor:
        return self.of.weights(batch, policy) * (batch.scores - self.c)


@pytest.mark.parametrize("c", [0.0, 0.7, -3.0])
def test_without_truncation_any_constant_baseline_gives_the_gradient_of_the_value(bandit: Bandit, c: float) -> None:
    found = expected_gradient(method(Constant(c=c)), bandit, 1, behaviour=OLD) * LENGTH
    torch.testing.assert_close(found, -gradient(value(bandit), bandit.policy), atol=1e-11, rtol=0)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_groups_value_is_unbiased_without_truncation(bandit: Bandit, size: int) -> None:
    total = torch.zeros((), dtype=torch.float64)
    for chance, batch, response in every_group(bandit, size, OLD):
        total += chance * FREE.value(batch, FREE.weights(batch, said(bandit, response)))[0]
    torch.testing.assert_close(total, value(bandit).detach(), atol=1e-12, rtol=0)


@pytest.mark.slow
def test_its_own_share_of_the_value_is_all_that_biases_the_gradient(bandit: Bandit) -> None:
    """E = grad J - E_old[w^2 r grad log pi] / k."""
    size, logp = 3, bandit.policy.logp()[0, 0]
    old = OLD.probs()[0, 0].detach()
    w = logp.exp().detach() / old
    own = gradient((old * w**2 * bandit.rewards[0] * logp).sum(), bandit.policy)
    found = expected_gradient(method(FREE), bandit, size, behaviour=OLD) * LENGTH
    torch.testing.assert_close(found, own / size - gradient(value(bandit), bandit.policy), atol=1e-11, rtol=0)


def test_weights_are_truncated_and_bound_the_second_moment(bandit: Bandit) -> None:
    objective, everything = ReweightedGroups(eta=1.2), torch.arange(4)
    batch = next(every_group(bandit, 4, OLD))[1].replace(
        behaviour_logp=OLD.token_logp()[0, 0].detach(), action_mask=OLD.mask
    )
    w = objective.weights(batch, said(bandit, everything))
    exact = bandit.policy.probs()[0, 0].detach() / OLD.probs()[0, 0].detach()
    torch.testing.assert_close(w, exact.clamp(max=1.2), atol=1e-12, rtol=0)
    assert 0 < int((w < exact).sum()) < 4
    new, old = bandit.policy.probs()[0, 0].detach(), OLD.probs()[0, 0].detach()
    for seed in range(20):  # ||A s||^2 of any size
        size = torch.rand(4, generator=torch.Generator().manual_seed(seed)).double()
        assert (old * w**2 * size).sum() <= 1.2 * (new * size).sum() + 1e-15
    assert (old * exact**2).sum() > 1.2 * (new).sum()  # which does not hold without truncation


def test_coefficients_by_hand(make_batch: Any, logprobs: Any) -> None:
    """w = min((4, 1/2, 1), 2), r = (1, 1, 0): V = 2.5 / 3, or 2.5 / 3.5 where it is normalised."""
    batch = make_batch(torch.ones(3, 2), scores=[1.0, 1.0, 0.0])
    policy = logprobs(torch.tensor([[2.0, 2.0], [0.5, 1.0], [2.0, 0.5]], dtype=torch.float64).log())
    for normalised, mean in ((False, 2.5 / 3), (True, 2.5 / 3.5)):
        objective = ReweightedGroups(eta=2.0, normalised=normalised)
        expected = torch.tensor([2 * (1 - mean), 0.5 * (1 - mean), -mean], dtype=torch.float64)
        torch.testing.assert_close(objective.coefficients(batch, policy), expected, atol=1e-12, rtol=0)
        spread = (2 / 9) ** 0.5
        scaled = objective.replace(scale="group").coefficients(batch, policy)
        torch.testing.assert_close(scaled, expected / spread, atol=1e-12, rtol=0)
    assert objective.metrics(batch, policy)["truncated_weights"].tolist() == [1.0, 0.0, 0.0]


def test_what_does_not_fit_is_refused() -> None:
    rapid = get_method("rapid")
    with pytest.raises(ConfigError, match="2 or more"):
        rapid.replace(experience=rapid.experience.replace(size=1)).check()
    with pytest.raises(ConfigError):
        ReweightedGroups(eta=0.5)
