"""Closed-form improvement: its steps against numerical maximisation, and how the operators hang together."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from scipy.optimize import minimize
from torch import Tensor

from etude.core.population import Member, Population
from etude.learners.q import Critics, QFunctions
from etude.planners.closed_form import (
    BestOfSamples,
    Climb,
    ClosedFormImprovement,
    JensenOperator,
    LogSumExpOperator,
    LowerBound,
    _by_autograd,
    said_of,
    slopes_of,
    stepped,
)
from etude.policies.control.mixture import Normals, SquashedMixture
from etude.policies.control.networks import MLP
from own_updates import net, q

TWO = Population([Member(0), Member(1)])


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mixture(components: int, rows: int = 6, apart: float = 0.3, actions: int = 3) -> Normals:
    """Of one member."""
    return Normals(
        drawn(1, rows, components).log_softmax(-1), apart * drawn(1, rows, components, actions, seed=1),
        0.3 * drawn(1, rows, components, actions, seed=2),
    )  # fmt: skip


SLOPE = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
LINEAR: Any = SimpleNamespace(slope=lambda points: SLOPE.expand(points.shape))
"""A critic whose slope is the same everywhere."""


def critics(activation: str = "relu", count: int = 3) -> Critics:
    network = MLP(hidden=(8, 5), activation=activation)  # type: ignore[arg-type]
    made: Any = QFunctions(count=count, network=network).build((4,), Box(-1.0, 1.0, (3,)), TWO)
    return made.double()  # type: ignore[no-any-return]


def farthest(start: Any, variances: Any, radius: float) -> float:
    """max SLOPE^T u over the ellipsoid, found by walking."""
    slope = SLOPE.numpy()
    found = minimize(
        lambda u: -slope @ u, start, jac=lambda u: -slope, method="SLSQP", options={"ftol": 1e-14, "maxiter": 500},
        constraints={
            "type": "ineq", "fun": lambda u: radius - ((u - start) ** 2 / variances).sum(),
            "jac": lambda u: -2 * (u - start) / variances,
        },
    )  # fmt: skip
    return float(slope @ found.x)


def test_a_step_is_the_most_in_its_ellipsoid() -> None:
    start, variances, radius = drawn(3), drawn(3, seed=1).exp(), 1.0
    found = stepped(start, SLOPE, variances, torch.tensor(radius, dtype=torch.float64))
    assert ((found - start) ** 2 / variances).sum().item() == pytest.approx(radius, rel=1e-12)
    assert (SLOPE @ found).item() == pytest.approx(farthest(start.numpy(), variances.numpy(), radius), rel=1e-7)
    nowhere = stepped(start, torch.zeros(3, dtype=torch.float64), variances, torch.tensor(1.0))
    assert nowhere.equal(start)


def test_of_one_normal_both_operators_are_the_single_step_and_none_without_a_radius() -> None:
    one = mixture(1)
    radius = torch.tensor(2 * 0.5, dtype=torch.float64)
    expected = stepped(one.means, SLOPE, (2 * one.log_stds).exp(), radius)
    for operator in (LogSumExpOperator(), JensenOperator()):
        found = operator.build()(one, 0.5, LINEAR)
        torch.testing.assert_close(found.points, expected, atol=1e-12, rtol=1e-12)
        assert bool(found.allowed.all())
        still = operator.build()(one, 0.0, LINEAR)
        torch.testing.assert_close(still.points, one.means, atol=1e-12, rtol=1e-12)


def test_jensens_step_is_the_most_where_all_components_bound_it() -> None:
    many = mixture(4)
    found = JensenOperator().build()(many, 0.5, LINEAR)
    assert bool(found.allowed.any()) and found.points.shape == (1, 6, 1, 3)
    chances, variances = many.log_chances.exp(), (2 * many.log_stds).exp()
    away = (chances[..., None] * (found.points - many.means) ** 2 / variances).sum((-2, -1))
    torch.testing.assert_close(
        away[found.allowed[..., 0]], torch.ones_like(away)[found.allowed[..., 0]], atol=1e-8, rtol=0
    )
    row = int(found.allowed[0, :, 0].nonzero()[0, 0])
    share, mu, s = (x[0, row].numpy() for x in (chances, many.means, variances))
    middle = ((share[:, None] / s * mu).sum(0)) / (share[:, None] / s).sum(0)
    best = minimize(
        lambda u: -SLOPE.numpy() @ u, middle, jac=lambda u: -SLOPE.numpy(), method="SLSQP", options={"ftol": 1e-14},
        constraints={"type": "ineq", "fun": lambda u: 1.0 - (share[:, None] * (u - mu) ** 2 / s).sum(),
                     "jac": lambda u: -2 * (share[:, None] * (u - mu) / s).sum(0)},
    )  # fmt: skip
    assert (SLOPE @ found.points[0, row, 0]).item() == pytest.approx(float(SLOPE.numpy() @ best.x), rel=1e-6)
    assert not bool(JensenOperator().build()(mixture(4, apart=9.0), 0.5, LINEAR).allowed.any())


def test_steps_of_log_sum_exp_go_as_far_as_the_largest_term_allows() -> None:
    many = mixture(4, apart=2.0)
    found = LogSumExpOperator(least=0.05).build()(many, 0.5, LINEAR)
    away = ((found.points - many.means) ** 2 * (-2 * many.log_stds).exp()).sum(-1)
    term, most = many.heights - 0.5 * away, many.heights.amax(-1, keepdim=True)
    moved = away > 0
    assert bool(moved.any()) and not bool(moved.all())
    torch.testing.assert_close(term[moved], (most - 0.5).expand_as(term)[moved], atol=1e-9, rtol=0)
    assert bool((many.heights <= most - 0.5)[~moved].all())  # too unlikely even at their own mean
    chances = many.log_chances.exp()
    likeliest = chances == chances.amax(-1, keepdim=True)
    assert found.allowed.equal((chances >= 0.05) | likeliest)
    rare = LogSumExpOperator(least=1.0).build()(many, 0.5, LINEAR)
    assert rare.allowed.equal(likeliest)
    assert LogSumExpOperator().build()(many, 0.0, LINEAR).points.equal(many.means)


def test_a_bandit_with_two_ways_to_act() -> None:
    """Q = -|u - (1.5, 0)|^2: the step is from the component nearest to it, and worth more than either mean."""
    goal = torch.tensor([1.5, 0.0], dtype=torch.float64)
    climb: Any = SimpleNamespace(slope=lambda points: -2 * (points - goal))
    two = Normals(
        torch.full((1, 1, 2), 0.5, dtype=torch.float64).log(),
        torch.tensor([[[[1.0, 0.0], [-1.0, 0.0]]]], dtype=torch.float64),
        torch.full((1, 1, 2, 2), -1.2, dtype=torch.float64),
    )
    points = torch.cat([part.build()(two, 0.5, climb).points for part in (LogSumExpOperator(), JensenOperator())], 2)
    worth = -(points - goal).square().sum(-1)[0, 0]
    assert worth.argmax() == 0
    assert worth[0] > -(two.means - goal).square().sum(-1).max()
    assert not bool(JensenOperator().build()(two, 0.5, climb).allowed.any())  # their middle is unlikely


def test_slopes_are_those_of_autograd() -> None:
    made, seen, points = critics(), drawn(2, 5, 4), torch.tanh(drawn(2, 5, 6, 3, seed=1))
    assert made.links is not None
    said, slopes = slopes_of(made, seen, points)
    others, expected = _by_autograd(made, seen, points)
    assert said.shape == (2, 3, 5, 6) and slopes.shape == (2, 3, 5, 6, 3)
    torch.testing.assert_close(slopes, expected, atol=1e-12, rtol=1e-12)
    for values in (others, said_of(made, seen, points)):
        torch.testing.assert_close(said, values, atol=1e-12, rtol=1e-12)
    smooth = critics("tanh")
    step = 1e-6
    _, slopes = slopes_of(smooth, seen, points)
    beside = points + step * torch.eye(3, dtype=torch.float64)[1]
    change = (said_of(smooth, seen, beside) - said_of(smooth, seen, points)) / step
    torch.testing.assert_close(slopes[..., 1], change, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("beta", [0.0, 1.0, 2**-0.5])
def test_the_bound_and_its_slope(beta: float) -> None:
    said = drawn(2, 2, 7).requires_grad_()
    found, shares = LowerBound(beta).shared(said)
    torch.testing.assert_close(found, said.mean(1) - beta * said.std(1), atol=1e-12, rtol=1e-12)
    (expected,) = torch.autograd.grad(found.sum(), said)
    torch.testing.assert_close(shares, expected, atol=1e-12, rtol=1e-12)
    if beta == 2**-0.5:
        torch.testing.assert_close(found, said.amin(1), atol=1e-12, rtol=1e-12)
    alike = LowerBound(beta).shared(torch.ones(1, 3, 2))
    assert alike[0].tolist() == [[1.0, 1.0]] and bool(alike[1].isfinite().all())
    assert LowerBound(beta).shared(said[:, :1])[0].equal(said[:, 0])


def test_a_climb_goes_up() -> None:
    """Along its slope before tanh the bound grows as the slope says."""
    climb, points = Climb(critics("tanh"), drawn(2, 5, 4), LowerBound(1.0)), drawn(2, 5, 2, 3, seed=1)
    slope = climb.slope(points)
    change = (climb.worth(points + 1e-7 * slope) - climb.worth(points)) / 1e-7
    np.testing.assert_allclose(change.detach(), slope.square().sum(-1).detach(), rtol=1e-3, atol=1e-7)


# What is done, in plain numbers: one row after another, each proposal and each critic by itself


def of_mixture(made: Critics, seed: int = 0) -> tuple[Any, Tensor, Tensor]:
    """An actor of three normals, what it sees, [2, 12, 4], and what it says there."""
    spread = SquashedMixture((-1.0,) * 3, (1.0,) * 3, count=3, least=-5.0, most=2.0)
    actor: Any = SimpleNamespace(distribution=spread, held={"critic": made})
    scale = torch.tensor([3.0] * 3 + [0.6] * 9 + [0.3] * 9, dtype=torch.float64)
    return actor, drawn(2, 12, 4, seed=seed), scale * drawn(2, 12, spread.parameters, seed=seed + 1)


def networks_of(made: Critics) -> list[Any]:
    """Each member's critics, of torch's own layers."""
    tensors = {f"critic.{name}": x for name, x in made.state_dict().items()}
    return [[net(tensors, "critic", 3 * p + m) for m in range(3)] for p in range(2)]


def plain_bound(networks: list[Any], seen: Tensor, beta: float) -> Callable[[Tensor], Tensor]:
    """mean - beta std of what three critics say at one row of tanh u, [C, 3] -> [C]."""

    def bound(u: Tensor) -> Tensor:
        values = torch.stack([q(network, seen.expand(len(u), -1), torch.tanh(u)) for network in networks])
        mean = values.sum(0) / 3
        return mean - beta * ((values - mean).square().sum(0) / 2).sqrt()

    return bound


def plain_proposals(said: Tensor, bound: Callable[[Tensor], Tensor], log_tau: float) -> tuple[Tensor, list[bool]]:
    """Steps [4, 3] of log-sum-exp, then Jensen's, and whether each is allowed, of what is said [21] at one row."""
    chances, means, variances = said[:3].softmax(0), said[3:12].view(3, 3), said[12:].view(3, 3).clamp(-5, 2).exp() ** 2
    heights = torch.stack([c.log() - 0.5 * (2 * math.pi * s).log().sum() for c, s in zip(chances, variances)])
    inverses = [c * torch.diag(1 / s) for c, s in zip(chances, variances)]
    precision = torch.stack(inverses).sum(0)
    middle = precision.inverse() @ torch.stack([x @ m for x, m in zip(inverses, means)]).sum(0)
    inside = sum(float(m @ x @ m) for x, m in zip(inverses, means))
    kappas = [*(2 * (log_tau + heights - heights.max())), 2 * log_tau - inside + middle @ precision @ middle]
    starts = torch.stack([*means, middle]).requires_grad_()
    (slopes,) = torch.autograd.grad(bound(starts).sum(), starts)
    found = []
    for u, g, matrix, kappa in zip(starts, slopes, [*map(torch.diag, variances), precision.inverse()], kappas):
        found.append(u.detach() + (kappa.clamp(min=0) / (g @ matrix @ g)).sqrt() * (matrix @ g))
    return torch.stack(found), [*((chances >= 0.05) | (chances == chances.max())).tolist(), float(kappas[3]) >= 0]


def test_what_is_done_is_the_likely_step_that_is_worth_most() -> None:
    """Equations 10 and 12 of one mixture, the largest mean - beta std of those that are allowed, then tanh."""
    made, log_tau, beta, which, barred = critics(), 0.6, 0.7, list[int](), 0
    actor, seen, said = of_mixture(made)
    networks = networks_of(made)
    module = ClosedFormImprovement(log_tau=log_tau, beta=beta).build(actor, TWO)
    with torch.no_grad():
        actions = module(actor, seen, said)
    for p, n in np.ndindex(2, 12):
        bound = plain_bound(networks[p], seen[p, n], beta)
        points, allowed = plain_proposals(said[p, n], bound, log_tau)
        worth = bound(points).tolist()
        best = max((k for k in range(4) if allowed[k]), key=worth.__getitem__)
        torch.testing.assert_close(actions[p, n], torch.tanh(points[best]), atol=1e-9, rtol=0)
        which.append(best)
        barred += max(worth) > worth[best]
    assert {*which} == {0, 1, 2, 3} and barred > 1


def test_of_samples_the_one_is_done_that_is_worth_most() -> None:
    """Which normal, by Gumbel's noise, and where in it, for each of a member's own numbers; never a worse one."""
    made, beta = critics(), 0.7
    actor, seen, said = of_mixture(made, seed=4)
    module: Any = BestOfSamples(count=5, beta=beta).build(actor, TWO).double()
    with torch.no_grad():
        actions = module(actor, seen, said)
    noise, networks, which = module.noise, networks_of(made), list[int]()
    assert noise.shape == (2, 5, 6) and not torch.equal(*noise)
    for p, n in np.ndindex(2, 12):
        logits, means, log_stds = said[p, n, :3], said[p, n, 3:12].view(3, 3), said[p, n, 12:].view(3, 3)
        points = []
        for gumbel, normal in zip(*noise[p].split([3, 3], -1)):
            k = int((logits + gumbel).argmax())
            points.append(means[k] + log_stds[k].clamp(-5, 2).exp() * normal)
        with torch.no_grad():
            worth = plain_bound(networks[p], seen[p, n], beta)(torch.stack(points))
            done = plain_bound(networks[p], seen[p, n], beta)(torch.atanh(actions[p, n])[None])
        which.append(int(worth.argmax()))
        torch.testing.assert_close(actions[p, n], torch.tanh(points[which[-1]]), atol=1e-9, rtol=0)
        assert bool((done >= worth - 1e-9).all())
    assert len({*which}) > 2
