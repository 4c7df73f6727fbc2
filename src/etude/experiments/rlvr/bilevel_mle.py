"""Rewards learned from data (arXiv:2510.07624): the Gaussian analysis, its two solvers, and the claim's experiments.

Data are y | x ~ N(mu(x), Sigma), policies N(m(x), S), rewards r_U(yhat, y) = -(yhat - y)' U (yhat - y). All members of
a population (seeds) are computed together.

    P members,  N rows,  M samples of each,  n dimensions of y,  D parameters of a member
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from etude.evaluation.pairs import Pair
from etude.experiments.arms import START, pairs
from etude.experiments.cells import recorded, spread
from etude.experiments.gaussian_data import ROWS, Linear, Pendulum

Parameters = dict[str, Tensor]
Policy = Callable[[Parameters, Tensor], tuple[Tensor, Tensor]]
Metric = Literal["identity", "scaled", "full", "learned"]
SAMPLES = 5
STEPS, UPDATES = 1000, 1500
"""Steps on a linear Gaussian, and of the network on Pendulum."""
DAMPING, ITERATIONS = 1e-3, 10


# Closed forms


def mahalanobis(prediction: Tensor, target: Tensor, metric: Tensor) -> Tensor:
    """-(yhat - y)' U (yhat - y): predictions and targets [..., n], U [..., n, n] -> [...]."""
    d = prediction - target
    return -torch.einsum("...i,...ij,...j->...", d, metric, d)


def inner_optimum(metric: Tensor, lam: float) -> Tensor:
    """S = (lambda/2) U^-1, the covariance of the best policy under r_U + lambda H; its mean is that of the data."""
    found: Tensor = lam / 2 * torch.linalg.inv(metric)
    return found


def best_metric(covariance: Tensor, lam: float) -> Tensor:
    """U* = (lambda/2) Sigma^-1, whose inner optimum has the covariance of the data."""
    return inner_optimum(covariance, lam)


def best_scale(covariance: Tensor, lam: float) -> Tensor:
    """alpha* = lambda n / (2 tr Sigma), the best of U = alpha I."""
    return lam * covariance.shape[-1] / (2 * covariance.diagonal(dim1=-2, dim2=-1).sum(-1))


def entropy(tril: Tensor) -> Tensor:
    """[...] entropy in nats of Gaussians with S = L L', from L [..., n, n]."""
    return tril.shape[-1] / 2 * math.log(2 * math.pi * math.e) + tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def log_prob(value: Tensor, mean: Tensor, tril: Tensor) -> Tensor:
    """[...] log N(value; mean, L L'); all broadcast."""
    d = (value - mean)[..., None]
    shape = torch.broadcast_shapes(d.shape[:-2], tril.shape[:-2])
    z = torch.linalg.solve_triangular(
        tril.expand(*shape, *tril.shape[-2:]), d.expand(*shape, *d.shape[-2:]), upper=False
    )  # fmt: skip
    quadratic: Tensor = (z**2).sum((-2, -1))
    return tril.shape[-1] / 2 - quadratic / 2 - entropy(tril)


def inner_objective(
    mean: Tensor, tril: Tensor, target: Tensor, covariance: Tensor, metric: Tensor, lam: float
) -> Tensor:
    """[...] E[r_U(yhat, y)] + lambda H for yhat ~ N(mean, L L'), y ~ N(target, covariance), exactly."""
    spread = (metric * (tril @ tril.mT + covariance)).sum((-2, -1))
    return mahalanobis(mean, target, metric) - spread + lam * entropy(tril)


def divergence(mean: Tensor, tril: Tensor, other_mean: Tensor, other_tril: Tensor) -> Tensor:
    """[...] KL(N(mean, L L') || N(other_mean, L' of its own)), in nats."""
    z = torch.linalg.solve_triangular(other_tril, tril.expand_as(other_tril), upper=False)
    d = torch.linalg.solve_triangular(other_tril, (other_mean - mean)[..., None], upper=False)
    squares: Tensor = (z**2).sum((-2, -1)) + (d**2).sum((-2, -1)) - tril.shape[-1]
    return squares / 2 + entropy(other_tril) - entropy(tril)


# Solvers


def surrogate(
    mean: Tensor, tril: Tensor, target: Tensor, metric: Tensor, lam: float, noise: Tensor, pathwise: bool = False
) -> Tensor:  # fmt: skip
    """Loss [P, N] whose gradient is an unbiased estimate of minus that of the inner objective, from M samples.

    By the score function, each sample compared with the mean of the other M - 1; or `pathwise`, through the samples
    themselves. (A group's least reward or plain mean as baseline shrinks the reward's gradient but not the entropy's.)

    Shapes: mean, target [P, N, n]; L [P, N or 1, n, n]; U [P, n, n]; noise [M, P, N, n], standard normal.
    """
    samples = mean + (tril @ noise[..., None])[..., 0]
    if pathwise:
        return -mahalanobis(samples, target, metric[:, None]).mean(0) - lam * entropy(tril)
    samples = samples.detach()
    rewards = mahalanobis(samples, target, metric[:, None])
    credit = (rewards - rewards.mean(0)) * len(rewards) / (len(rewards) - 1)
    return -(credit * log_prob(samples, mean, tril)).mean(0) - lam * entropy(tril)


def conjugate_gradient(product: Callable[[Tensor], Tensor], right: Tensor, iterations: int) -> Tensor:
    """Solve A v = b for every member, A symmetric positive definite: b, v [P, D], `product` computes A v."""
    found, residual = torch.zeros_like(right), right.clone()
    direction, square = residual.clone(), (residual**2).sum(-1, keepdim=True)
    for _ in range(iterations):
        image = product(direction)
        pace = square / (direction * image).sum(-1, keepdim=True).clamp(min=1e-30)
        found, residual = found + pace * direction, residual - pace * image
        fresh = (residual**2).sum(-1, keepdim=True)
        direction, square = residual + fresh / square.clamp(min=1e-30) * direction, fresh
    return found


def hypergradient(
    inner: Callable[[Tensor, Tensor], Tensor], outer: Callable[[Tensor], Tensor], theta: Tensor, phi: Tensor, *,
    iterations: int = ITERATIONS, damping: float = DAMPING,
) -> Tensor:  # fmt: skip
    """dL/dphi where theta maximises J(., phi): -[d2J/dphi dtheta]' [d2J/dtheta2]^-1 dL/dtheta, per member.

    Args:
        inner: J [P] of theta [P, D] and phi [P, ...]; outer: L [P] of theta.
        damping: added to -d2J/dtheta2, which conjugate gradient needs to be positive definite.

    Returns: a tensor like `phi`.
    """
    theta, phi = theta.detach().requires_grad_(True), phi.detach().requires_grad_(True)
    (slope,) = torch.autograd.grad(outer(theta).sum(), theta)
    (force,) = torch.autograd.grad(inner(theta, phi).sum(), theta, create_graph=True)

    def product(v: Tensor) -> Tensor:
        return damping * v - torch.autograd.grad(force, theta, v, retain_graph=True)[0]

    v = conjugate_gradient(product, slope, iterations)
    return torch.autograd.grad(force, phi, v)[0]


# Policies


def lower(entries: Tensor) -> Tensor:
    """L [..., n, n] of free numbers: those below the diagonal, and exp of those on it."""
    return entries.tril(-1) + torch.diag_embed(entries.diagonal(dim1=-2, dim2=-1).exp())


def linear(parameters: Parameters, x: Tensor) -> tuple[Tensor, Tensor]:
    """m = W x + b [P, N, n] and one L [P, 1, n, n]."""
    mean = torch.baddbmm(parameters["bias"], x, parameters["weight"])
    return mean, lower(parameters["tril"])[:, None]


def perceptron(parameters: Parameters, x: Tensor) -> tuple[Tensor, Tensor]:
    """Two hidden layers; heads for m [P, N, n] and the logarithm of a diagonal L [P, N, n, n]."""
    for k in range(2):
        x = torch.baddbmm(parameters[f"bias{k}"], x, parameters[f"weight{k}"]).relu()
    mean, log_std = torch.baddbmm(parameters["bias2"], x, parameters["weight2"]).chunk(2, -1)
    return mean, torch.diag_embed(log_std.clamp(-7, 3).exp())


def flat(parameters: Mapping[str, Tensor]) -> Tensor:
    """[P, D] of all of a member's parameters."""
    return torch.cat([p.flatten(1) for p in parameters.values()], 1)


def unflat(theta: Tensor, like: Mapping[str, Tensor]) -> Parameters:
    """Undo `flat`."""
    pieces = theta.split([p[0].numel() for p in like.values()], 1)
    return {k: piece.view_as(p) for (k, p), piece in zip(like.items(), pieces)}


def residual_covariance(mean: Tensor, target: Tensor) -> Tensor:
    """[P, n, n] covariance of what the mean leaves, with a little on the diagonal."""
    d = target - mean
    return d.mT @ d / d.shape[1] + 1e-8 * torch.eye(d.shape[-1], dtype=d.dtype)


def metric_for(kind: Metric, covariance: Tensor, lam: float) -> Tensor:
    """U [P, n, n] of an arm, from an estimate of Sigma [P, n, n]."""
    eye = torch.eye(covariance.shape[-1], dtype=covariance.dtype).expand_as(covariance)
    if kind == "full":
        return best_metric(covariance, lam)
    return best_scale(covariance, lam)[:, None, None] * eye if kind == "scaled" else eye


# (a) A Gaussian in two dimensions, given four numbers


@torch.no_grad()
def error(data: Linear, parameters: Parameters) -> Tensor:
    """[3, P] relative Frobenius distances from the true weights and covariance, and their sum."""
    off, tril = torch.cat([parameters["weight"] - data.weight, parameters["bias"]], 1), lower(parameters["tril"])
    mean = off.flatten(1).norm(dim=1) / data.weight.flatten(1).norm(dim=1)
    covariance = (tril @ tril.mT - data.covariance).norm(dim=(1, 2)) / data.covariance.norm(dim=(1, 2))
    return torch.stack([mean, covariance, mean + covariance])


def fit_linear(kind: Metric | None, seeds: Sequence[int], lam: float = 1.0) -> Tensor:
    """Errors [STEPS + 1, 3, P] along a run; `kind` None: likelihood itself."""
    data = Linear(seeds)
    (x, y), parameters = data.train, data.start()
    fitted = x @ torch.linalg.lstsq(x, y).solution
    metric, outer = metric_for(kind or "identity", residual_covariance(fitted, y), lam), Outer(data, lam)
    adam = torch.optim.Adam(parameters.values(), lr=0.02)
    errors = [error(data, parameters)]
    for step in range(STEPS):
        if kind == "learned" and step % 10 == 0:
            metric = outer.improve(parameters)
        mean, tril = linear(parameters, x)
        if kind is None:
            loss = -log_prob(y, mean, tril)
        else:
            noise = data.random.normal(SAMPLES, ROWS, 2).transpose(0, 1)
            loss = surrogate(mean, tril, y, metric, lam, noise)
        adam.zero_grad()
        loss.mean(1).sum().backward()
        adam.step()
        errors.append(error(data, parameters))
    return torch.stack(errors)


class Outer:
    """The outer level by implicit differentiation: U = C C', C learned on data that the policy is not fitted to."""

    def __init__(self, data: Linear, lam: float) -> None:
        self.data, self.lam = data, lam
        self.factor = torch.zeros(len(data.weight), 2, 2, dtype=torch.float64, requires_grad=True)  # U = I
        self.adam = torch.optim.Adam([self.factor], lr=0.05)

    def metric(self, factor: Tensor) -> Tensor:
        return lower(factor) @ lower(factor).mT

    def improve(self, parameters: Parameters) -> Tensor:
        """One step on the negative log-likelihood of held data; the U [P, n, n] that it leads to."""
        (x, y), (held_x, held_y), none = self.data.train, self.data.held, torch.zeros(2, 2, dtype=torch.float64)

        def inner(theta: Tensor, factor: Tensor) -> Tensor:
            mean, tril = linear(unflat(theta, parameters), x)
            return inner_objective(mean, tril, y, none, self.metric(factor)[:, None], self.lam).mean(1)

        def outer(theta: Tensor) -> Tensor:
            return -log_prob(held_y, *linear(unflat(theta, parameters), held_x)).mean(1)

        self.factor.grad = hypergradient(inner, outer, flat(parameters), self.factor)
        self.adam.step()
        return self.metric(self.factor).detach()


# (c) One step of Pendulum


def fit_pendulum(kind: Metric | None, seeds: Sequence[int], lam: float = 1.0, squared: bool = False) -> Tensor:
    """[P] test negative log-likelihood after training, in nats per row.

    `kind` None: likelihood itself, or with `squared` the squared error, which is likelihood at unit variance. Sigma
    is the covariance of the current residuals, looked at anew every 50 steps.
    """
    data = Pendulum(seeds)
    (x, y), parameters = data.train, data.start()
    adam, chosen = torch.optim.Adam(parameters.values(), lr=1e-3), torch.Generator().manual_seed(START)
    unit = torch.eye(y.shape[-1])
    metric = unit.expand(len(x), -1, -1)
    for step in range(UPDATES):
        if kind == "full" and step % 50 == 0:
            with torch.no_grad():
                metric = metric_for(kind, residual_covariance(perceptron(parameters, x)[0], y), lam)
        rows = torch.randint(x.shape[1], (128,), generator=chosen)
        mean, tril = perceptron(parameters, x[:, rows])
        if kind is None:
            loss = -log_prob(y[:, rows], mean, unit if squared else tril)
        else:
            noise = data.random.normal(SAMPLES, *mean.shape[1:]).transpose(0, 1).float()
            loss = surrogate(mean, tril, y[:, rows], metric, lam, noise, pathwise=True)
        adam.zero_grad()
        loss.mean(1).sum().backward()
        adam.step()
    with torch.no_grad():
        mean, tril = perceptron(parameters, data.test[0])
        return -log_prob(data.test[1], mean, unit if squared else tril).mean(1)


# The claim

LINEAR: dict[str, Metric | None] = {
    "U*": "full", "alpha* I": "scaled", "U = I": "identity", "learned U": "learned", "NLL": None,
}  # fmt: skip
NETWORKS: dict[str, tuple[Metric | None, bool]] = {
    "U*": ("full", False), "U = I": ("identity", False), "NLL": (None, False), "MSE": (None, True),
}  # fmt: skip
LATE = 50
"""Last steps of a linear run, over which its errors are averaged."""


class Fit(NamedTuple):
    """An arm on linear Gaussians or on Pendulum."""

    world: str
    arm: str
    seeds: Sequence[int]


def fitted(job: Fit) -> dict[str, list[float]]:
    """Each member's figures by name: errors in the end, along the run and before it; or 'nll'."""
    torch.set_num_threads(1)
    matters = [job.world, job.arm, [*job.seeds], ROWS, STEPS, UPDATES, SAMPLES]
    return recorded(f"{job.world} {job.arm} {job.seeds[0]}", matters, lambda: _fitted(job))


def _fitted(job: Fit) -> dict[str, list[float]]:
    if job.world == "pendulum":
        kind, squared = NETWORKS[job.arm]
        return {"nll": fit_pendulum(kind, job.seeds, squared=squared).tolist()}
    errors = fit_linear(LINEAR[job.arm], job.seeds)
    mean, covariance, _ = errors[-LATE:].mean(0).tolist()
    return {
        "mean": mean, "covariance": covariance, "moments": errors.mean(0)[2].tolist(), "begun": errors[0, 2].tolist(),
    }  # fmt: skip


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Recovered moments on (a) linear Gaussians, likelihood on (c) Pendulum."""
    jobs = [*(Fit("linear", arm, seeds) for arm in LINEAR), *(Fit("pendulum", arm, seeds) for arm in NETWORKS)]
    found = {(job.world, job.arm): figures for job, figures in zip(jobs, spread(fitted, jobs))}

    def linear_of(arm: str, what: str) -> list[float]:
        return found["linear", arm][what]

    def nll(arm: str) -> list[float]:
        return found["pendulum", arm]["nll"]

    covariance = {f"error of the covariance, {arm}": arm for arm in ("U*", "alpha* I", "learned U")}
    rivals = {f"test NLL against {arm}": arm for arm in ("NLL", "U = I", "MSE")}
    return pairs(
        seeds,
        {"error of the moments along the run": linear_of("U*", "moments"), "error of the mean": linear_of("U*", "mean"),
         **{name: linear_of(arm, "covariance") for name, arm in covariance.items()},
         **dict.fromkeys(rivals, nll("U*"))},
        {"error of the moments along the run": linear_of("NLL", "moments"),
         "error of the mean": linear_of("U = I", "mean"),
         **dict.fromkeys(covariance, linear_of("U = I", "covariance")),
         **{name: nll(arm) for name, arm in rivals.items()}},
        start={"error of the moments along the run": linear_of("NLL", "begun")},
    )  # fmt: skip
