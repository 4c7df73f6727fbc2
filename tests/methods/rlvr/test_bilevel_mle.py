"""Bilevel MLE: closed forms, hypergradient, reward and optimum (arXiv:2510.07624). All in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from etude.advantages.group import GroupMean, LeaveOneOut, scaled
from etude.core.registry import get_method
from etude.evaluation.exact import expected_gradient, gradient
from etude.experiments.rlvr.bilevel_mle import (
    best_metric,
    best_scale,
    conjugate_gradient,
    divergence,
    entropy,
    flat,
    hypergradient,
    inner_objective,
    inner_optimum,
    log_prob,
    lower,
    mahalanobis,
    residual_covariance,
    surrogate,
    unflat,
)
from etude.loops.bandit import Bandit
from etude.methods.rlvr.bilevel_mle import MahalanobisReward
from etude.rewards.entropy import EntropyReward
from etude.tasks.tabular.enumerable import Enumerable

LAM = 0.7
N = 3


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def positive(seed: int, n: int = N) -> Tensor:
    a = numbers(n, n, seed=seed)
    return a @ a.T + 0.3 * torch.eye(n, dtype=torch.float64)


MU, SIGMA, U = numbers(N, seed=1), positive(2), positive(3)


# Closed forms


def test_the_exact_inner_gradient_vanishes_at_the_closed_form() -> None:
    mean = MU.clone().requires_grad_(True)
    tril = torch.linalg.cholesky(LAM / 2 * torch.linalg.inv(U)).requires_grad_(True)
    value = inner_objective(mean, tril, MU, SIGMA, U, LAM)
    for slope in torch.autograd.grad(value, (mean, tril)):
        assert slope.tril().abs().max() < 1e-10 if slope.dim() > 1 else slope.abs().max() < 1e-10
    torch.testing.assert_close((tril @ tril.T).detach(), inner_optimum(U, LAM), atol=1e-12, rtol=0)


def test_the_inner_objective_is_the_expectation_that_it_says() -> None:
    """E[r] by a rule that is exact for quadratic functions: +-sqrt(n) along each axis."""
    tril, data = torch.linalg.cholesky(positive(5)), torch.linalg.cholesky(SIGMA)
    axes = math.sqrt(N) * torch.cat([torch.eye(N), -torch.eye(N)]).double()
    said, true = MU + 0.4 + axes @ tril.T, MU + axes @ data.T
    expected = mahalanobis(said[:, None], true[None], U).mean() + LAM * entropy(tril)
    found = inner_objective(MU + 0.4, tril, MU, SIGMA, U, LAM)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_likelihood_over_scales_is_best_at_the_closed_form() -> None:
    scale = best_scale(SIGMA, LAM)
    assert float(scale) == pytest.approx(LAM * N / (2 * float(SIGMA.trace())), abs=1e-12)

    def nll(alpha: Tensor) -> Tensor:  # E -log N(y; mu, (lambda / 2 alpha) I), y ~ N(mu, Sigma)
        variance = LAM / (2 * alpha)
        return N / 2 * torch.log(2 * math.pi * variance) + SIGMA.trace() / (2 * variance)

    grid = scale * torch.linspace(0.2, 3.0, 2801, dtype=torch.float64)
    assert float(grid[nll(grid).argmin()]) == pytest.approx(float(scale), rel=1e-3)
    at = scale.clone().requires_grad_(True)
    assert abs(float(torch.autograd.grad(nll(at), at)[0])) < 1e-10


def test_likelihood_over_all_metrics_is_best_at_the_closed_form() -> None:
    metric = best_metric(SIGMA, LAM).requires_grad_(True)
    tril = torch.linalg.cholesky(inner_optimum(metric, LAM))
    nll = entropy(tril) + (torch.cholesky_solve(SIGMA, tril).trace() - N) / 2
    assert torch.autograd.grad(nll, metric)[0].abs().max() < 1e-10
    torch.testing.assert_close((tril @ tril.T).detach(), SIGMA, atol=1e-12, rtol=0)


def test_under_the_best_metric_the_inner_objective_is_reverse_kl() -> None:
    metric, data = best_metric(SIGMA, LAM), torch.linalg.cholesky(SIGMA)
    totals = []
    for seed in range(6):
        mean, tril = numbers(N, seed=10 + seed), torch.linalg.cholesky(positive(20 + seed))
        totals.append(
            inner_objective(mean, tril, MU, SIGMA, metric, LAM) + LAM * divergence(mean, tril, MU, data)
        )  # fmt: skip
    torch.testing.assert_close(torch.stack(totals), totals[0].expand(6), atol=1e-10, rtol=0)


def test_densities_and_divergence_are_those_of_torch() -> None:
    one, two = torch.linalg.cholesky(SIGMA), torch.linalg.cholesky(U)
    first, second = (torch.distributions.MultivariateNormal(m, scale_tril=t) for m, t in ((MU, one), (MU + 1, two)))
    y = numbers(5, N, seed=4)
    torch.testing.assert_close(log_prob(y, MU, one), first.log_prob(y), atol=1e-12, rtol=0)
    torch.testing.assert_close(entropy(one), first.entropy(), atol=1e-12, rtol=0)
    expected = torch.distributions.kl_divergence(first, second)
    torch.testing.assert_close(divergence(MU, one, MU + 1, two), expected, atol=1e-11, rtol=0)


def test_residual_covariance_is_that_around_the_mean() -> None:
    mean, target = torch.zeros(1, 2, 2).double(), torch.tensor([[[1.0, 2.0], [3.0, 0.0]]]).double()
    expected = torch.tensor([[[5.0, 1.0], [1.0, 2.0]]]).double()
    torch.testing.assert_close(residual_covariance(mean, target), expected, atol=1e-7, rtol=0)


# Solvers


@pytest.mark.parametrize("pathwise", [False, True])
def test_the_surrogate_estimates_the_gradient_of_the_inner_objective(pathwise: bool) -> None:
    """The mean over many samples, within five standard errors; both estimators."""
    draws, samples = 4000, 5
    mean = (MU + 0.5).expand(1, draws, N).clone().requires_grad_(True)
    tril = torch.linalg.cholesky(positive(6)).expand(1, draws, N, N).clone().requires_grad_(True)
    noise = numbers(samples, 1, draws, N, seed=7)
    loss = surrogate(mean, tril, MU.expand(1, draws, N), U[None], LAM, noise, pathwise).sum()
    found = [-g[0].flatten(1) for g in torch.autograd.grad(loss, (mean, tril))]
    at = [mean.detach()[0, 0].requires_grad_(True), tril.detach()[0, 0].requires_grad_(True)]
    none = torch.zeros(N, N, dtype=torch.float64)
    expected = torch.autograd.grad(inner_objective(at[0], at[1], MU, none, U, LAM), at)
    for rows, truth in zip(found, expected):
        keep = torch.ones(N, N).tril().flatten().bool() if truth.dim() > 1 else torch.ones(N).bool()
        gap = (rows.mean(0) - truth.flatten())[keep].abs()
        assert (gap < 5 * rows.std(0)[keep] / math.sqrt(draws)).all()


def test_leaving_one_out_does_not_shrink_the_reward_but_the_mean_does() -> None:
    """Over every pair of samples of a categorical policy: E = grad J, where the plain mean gives half of it."""
    logits = numbers(4).requires_grad_(True)
    rewards, logp = numbers(4, seed=9), logits.log_softmax(0)
    (expected,) = torch.autograd.grad((logp.exp() * rewards).sum(), logits, retain_graph=True)
    total = {centre: torch.zeros(4).double() for centre in (LeaveOneOut(), GroupMean())}
    for i in range(4):
        for j in range(4):
            chance = (logp[i] + logp[j]).exp().detach()
            r = rewards[[i, j]]
            for centre in total:
                credit = scaled(r, torch.zeros(2), centre, None)
                value = (credit * logp[[i, j]]).mean()
                total[centre] += chance * torch.autograd.grad(value, logits, retain_graph=True)[0]
    torch.testing.assert_close(total[LeaveOneOut()], expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(total[GroupMean()], expected / 2, atol=1e-12, rtol=0)


def test_conjugate_gradient_solves_each_members_system() -> None:
    systems = torch.stack([positive(30, 5), 4 * positive(31, 5)])
    right = numbers(2, 5, seed=32)
    found = conjugate_gradient(lambda v: (systems @ v[..., None])[..., 0], right, 6)
    expected = torch.linalg.solve(systems, right[..., None])[..., 0]
    torch.testing.assert_close(found, expected, atol=1e-8, rtol=1e-8)


HELD = MU + numbers(40, N, seed=41) @ torch.linalg.cholesky(SIGMA).T
NONE = torch.zeros(N, N, dtype=torch.float64)


def policy_of(theta: Tensor) -> tuple[Tensor, Tensor]:
    return theta[:, :N], lower(theta[:, N:].view(-1, N, N))


def inner(theta: Tensor, phi: Tensor) -> Tensor:
    mean, tril = policy_of(theta)
    return inner_objective(mean, tril, MU, NONE, lower(phi) @ lower(phi).mT, LAM)


def outer(theta: Tensor) -> Tensor:
    mean, tril = policy_of(theta)
    return -log_prob(HELD, mean[:, None], tril[:, None]).mean(1)


def optimum(phi: Tensor) -> Tensor:
    """theta*(phi) by the closed form."""
    tril = torch.linalg.cholesky(inner_optimum(lower(phi) @ lower(phi).mT, LAM))
    entries = tril.tril(-1) + torch.diag_embed(tril.diagonal(dim1=-2, dim2=-1).log())
    return torch.cat([MU.expand(len(phi), N), entries.flatten(1)], 1)


def test_the_hypergradient_is_the_finite_difference_of_the_outer_loss() -> None:
    phi = 0.4 * numbers(2, N, N, seed=42)
    found = hypergradient(inner, outer, optimum(phi), phi, iterations=40, damping=1e-10)
    step = 1e-5
    for i in range(N):
        for j in range(i + 1):
            away = torch.zeros_like(phi)
            away[:, i, j] = step
            slope = (outer(optimum(phi + away)) - outer(optimum(phi - away))) / (2 * step)
            torch.testing.assert_close(found[:, i, j], slope, atol=1e-6, rtol=0)


def test_the_hypergradient_vanishes_at_the_metric_that_reproduces_the_data() -> None:
    d = HELD - MU
    chosen = torch.linalg.cholesky(best_metric(d.T @ d / len(d), LAM))
    phi = (chosen.tril(-1) + torch.diag(chosen.diagonal().log()))[None]
    found = hypergradient(inner, outer, optimum(phi), phi, iterations=40, damping=1e-10)
    assert found.abs().max() < 1e-6


def test_parameters_come_back_from_a_flat_vector() -> None:
    parameters = {"a": numbers(2, 3, 2), "b": numbers(2, 1, 2, seed=1)}
    again = unflat(flat(parameters), parameters)
    assert all(torch.equal(again[k], v) for k, v in parameters.items())
    assert flat(parameters).shape == (2, 8)


# Classification


def test_one_hot_answers_under_half_the_identity_cost_one_if_wrong() -> None:
    eye = torch.eye(4).double()
    found = mahalanobis(eye[:, None], eye[None], eye / 2)
    torch.testing.assert_close(found, eye - 1, atol=1e-12, rtol=0)


def test_the_reward_is_minus_one_on_the_last_token_of_a_wrong_answer(make_batch) -> None:
    batch = make_batch([[0, 1, 1], [1, 1, 0]], solved=torch.tensor([True, False]))
    expected = torch.tensor([[0.0, 0.0, 0.0], [0.0, -1.0, 0.0]]).double()
    assert torch.equal(MahalanobisReward().shape(batch), expected)
    assert torch.equal(MahalanobisReward(scale=1.5).shape(batch), 3 * expected)


def test_the_optimum_for_random_answers_is_a_softmax_of_their_chances() -> None:
    chances = numbers(5, seed=50).softmax(0)
    logits = (chances / LAM).requires_grad_(True)
    p = logits.softmax(0)
    eye = torch.eye(5).double()
    rewards = mahalanobis(eye[:, None], eye[None], eye / 2)
    value = (p[:, None] * chances[None] * rewards).sum() - LAM * (p * p.log()).sum()
    assert torch.autograd.grad(value, logits)[0].abs().max() < 1e-12


def bed_at_optimum(task: Enumerable, lam: float) -> Bandit:
    """The bandit's policy set to p(y) proportional to exp(r(y) / lambda), token by token."""
    policy = task.policy()
    bandit = Bandit(policy, task.table(len(policy.tokens)))
    weight = ((bandit.rewards >= 1).double() - 1).div(lam).exp()
    with torch.no_grad():
        for x in range(policy.prompts):
            mass = torch.zeros(policy.count, policy.logits[0].shape[-1], dtype=torch.float64)
            for y in range(len(policy.tokens)):
                for t in range(int(policy.mask[y].sum())):
                    mass[policy.nodes[y, t], policy.tokens[y, t]] += weight[x, y]
            policy.logits[0][x] = mass.log()
    return bandit


@pytest.mark.slow
@pytest.mark.parametrize(("length", "vocabulary"), [(1, 4), (2, 3)])
def test_the_expected_gradient_vanishes_at_the_maximum_entropy_optimum(length: int, vocabulary: int) -> None:
    lam, method = 0.6, get_method("bilevel-mle")
    method = method.replace(rewards=(MahalanobisReward(), EntropyReward(coefficient=lam)))
    bandit = bed_at_optimum(Enumerable(prompts=1, vocabulary=vocabulary, length=length, solutions=1), lam)
    p = bandit.policy.probs().detach()[0, 0]
    assert float(p.max() / p.min()) == pytest.approx(math.exp(1 / lam), rel=1e-9)
    assert expected_gradient(method, bandit, 2).abs().max() < 1e-12


@pytest.mark.slow
def test_elsewhere_it_is_the_gradient_of_accuracy_and_entropy() -> None:
    lam, method = 0.3, get_method("bilevel-mle")
    method = method.replace(rewards=(MahalanobisReward(), EntropyReward(coefficient=lam)))
    task = Enumerable(prompts=1, vocabulary=3, length=2, solutions=2, seed=3)
    policy = task.policy()
    bandit = Bandit(policy, task.table(9))
    logp = policy.logp()[0, 0]
    value = (logp.exp() * (bandit.rewards[0] >= 1)).sum() - lam * (logp.exp() * logp).sum()
    exact = gradient(value, policy)
    found = -expected_gradient(method, bandit, 2)
    scale = float((found * exact).sum() / (exact * exact).sum())
    assert scale == pytest.approx(1 / policy.length, abs=1e-9)  # token sums divided by the length limit
    torch.testing.assert_close(found, scale * exact, atol=1e-10, rtol=0)
