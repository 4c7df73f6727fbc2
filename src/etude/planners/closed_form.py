"""Acting by a critic without a policy that climbs it: a step along its slope in closed form, or the best of samples.

Operators and their bounds are those of "Offline Reinforcement Learning with Closed-Form Policy Improvement Operators"
(arXiv:2211.15956).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative, Probability
from etude.core.part import Part
from etude.core.replay_slots import ReplayPlanner
from etude.learners.q import Critics
from etude.policies.control.actor import Actor
from etude.policies.control.mixture import MixturePolicy, Normals, normals_of
from etude.policies.control.networks import affine
from etude.policies.control.replay import SquashedPolicy
from etude.policies.control.units import in_units

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.core.population import Population


def said_of(critics: Critics, seen: Tensor, points: Tensor) -> Tensor:
    """What critics say of C actions at each row, [P, N, C, A] in units: [P, M, N, C]."""
    count = points.shape[2]
    wide = seen[:, :, None].expand(-1, -1, count, -1).flatten(1, 2)
    said: Tensor = critics(wide, points.flatten(1, 2))[..., 0]
    return cast(Tensor, said.unflatten(2, (-1, count)))


def slopes_of(critics: Critics, seen: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """What critics say of C actions at each row, [P, M, N, C], and its gradient in them, [P, M, N, C, A].

    Where critics are linear layers with rectifiers that is computed layer by layer, which can be exported.
    """
    count, width = points.shape[2:]
    if critics.links is None:
        return _by_autograd(critics, seen, points)
    wide = seen[:, :, None].expand(-1, -1, count, -1).flatten(1, 2)
    x, networks = critics._read(wide, points.flatten(1, 2))
    read = []
    for own, activation in critics.links:
        x = affine(x, own["weight"], own["bias"])
        if activation is not None:
            x = torch.relu(x)
            read.append(x)
    slope = torch.ones_like(x)
    for k in reversed(range(len(critics.links))):
        slope = slope @ critics.links[k][0]["weight"].mT
        if k:
            slope = slope * (read[k - 1] > 0)
    said, slope = (y.unflatten(0, (-1, networks)).unflatten(2, (-1, count)) for y in (x, slope[..., -width:]))
    return said[..., 0], slope


def _by_autograd(critics: Critics, seen: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    if torch.compiler.is_exporting():
        raise ConfigError(
            "A planner that climbs a critic is exported where the critic is made of linear layers and rectifiers: set "
            "critic.network.activation=relu and leave out what normalises or disturbs its layers."
        )
    networks = critics(seen[:, :1], points[:, :1, 0]).shape[1]
    with torch.enable_grad():
        each = points.detach()[:, None].expand(-1, networks, -1, -1, -1).clone().requires_grad_()
        wide = seen.detach()[:, :, None].expand(-1, -1, points.shape[2], -1).flatten(1, 2)
        said = critics(wide, each.flatten(2, 3))[..., 0]
        (slope,) = torch.autograd.grad(said.sum(), each)
    return said.detach().unflatten(2, (-1, points.shape[2])), slope


class LowerBound(nn.Module):
    """mean_m Q_m - beta std_m Q_m over M critics, deviations with M - 1; of two, beta 1 / sqrt 2 is their minimum."""

    def __init__(self, beta: Any) -> None:
        super().__init__()
        self.beta = beta

    def forward(self, said: Tensor) -> Tensor:
        """[P, M, ...] -> [P, ...]."""
        return self.shared(said)[0]

    def shared(self, said: Tensor) -> tuple[Tensor, Tensor]:
        """The bound [P, ...], and how much of it each critic is, d bound / d Q_m, [P, M, ...]."""
        count = said.shape[1]
        if count == 1:
            return said[:, 0], torch.ones_like(said)
        mean = said.mean(1)
        away = said - mean[:, None]
        spread = (away.square().sum(1) / (count - 1)).sqrt()
        tiny = torch.finfo(said.dtype).tiny
        shares = 1 / count - self.beta * (away / ((count - 1) * spread.clamp(min=tiny))[:, None])
        return mean - self.beta * spread, shares


class Climb:
    """The lower bound of what critics say at rows, asked about points u [P, N, C, A] before tanh."""

    def __init__(self, critics: Critics, seen: Tensor, bound: LowerBound) -> None:
        self.critics, self.seen, self.bound = critics, seen, bound

    def slope(self, points: Tensor) -> Tensor:
        """Its gradient in u, [P, N, C, A]."""
        actions = torch.tanh(points)
        said, slopes = slopes_of(self.critics, self.seen, actions)
        _, shares = self.bound.shared(said)
        return (shares[..., None] * slopes).sum(1) * (1 - actions.square())

    def worth(self, points: Tensor) -> Tensor:
        """[P, N, C]."""
        return self.bound.shared(said_of(self.critics, self.seen, torch.tanh(points)))[0]


class Proposals(NamedTuple):
    """Points before tanh, [P, N, C, A], and whether each is allowed, [P, N, C]."""

    points: Tensor
    allowed: Tensor


def stepped(start: Tensor, slope: Tensor, variances: Tensor, radius: Tensor) -> Tensor:
    """start + sqrt(radius) S g / sqrt(g^T S g): the most of g^T u where (u - start)^T S^-1 (u - start) <= radius.

    Shapes: [..., A] each, radius [...].

    >>> start, slope, variances = torch.zeros(2), torch.tensor([3.0, 4.0]), torch.ones(2)
    >>> stepped(start, slope, variances, torch.tensor(4.0)).tolist()
    [1.2000000476837158, 1.600000023841858]
    """
    length = (slope.square() * variances).sum(-1, keepdim=True).sqrt()
    tiny = torch.finfo(slope.dtype).tiny
    return start + radius.sqrt()[..., None] * variances * (slope / length.clamp(min=tiny))


class ImprovementOperator(Part, abstract=True):
    """A step from the behaviour, as far as a bound on its likelihood allows."""

    slot = "operators"

    def build(self) -> nn.Module:
        """A module of `Normals`, log tau and `Climb` that makes `Proposals`."""
        raise NotImplementedError


class _LogSumExp(nn.Module):
    def __init__(self, least: Any) -> None:
        super().__init__()
        self.least = least

    def forward(self, normals: Normals, log_tau: Any, climb: Climb) -> Proposals:
        heights, chances = normals.heights, normals.log_chances.exp()
        radius = 2 * (heights - heights.amax(-1, keepdim=True) + log_tau).clamp(min=0.0)
        points = stepped(normals.means, climb.slope(normals.means), (2 * normals.log_stds).exp(), radius)
        return Proposals(points, (chances - self.least >= 0) | (chances == chances.amax(-1, keepdim=True)))


class _Jensen(nn.Module):
    def forward(self, normals: Normals, log_tau: Any, climb: Climb) -> Proposals:
        weights = normals.log_chances.exp()[..., None] * (-2 * normals.log_stds).exp()
        precision = weights.sum(-2)
        middle = (weights * normals.means).sum(-2) / precision
        apart = (weights * (normals.means - middle[..., None, :]).square()).sum((-2, -1))
        radius = 2 * (torch.zeros_like(apart) + log_tau) - apart
        slope = climb.slope(middle[..., None, :])[..., 0, :]
        points = stepped(middle, slope, 1 / precision, radius.clamp(min=0.0))
        return Proposals(points[..., None, :], (radius >= 0)[..., None])


class LogSumExpOperator(ImprovementOperator):
    """A step from every component's mean, where log-sum-exp is bounded by its largest term (eq. 10).

        u_i = mu_i + sqrt(kappa_i) S_i g_i / sqrt(g_i^T S_i g_i),   g_i = grad Q(tanh mu_i)
        kappa_i = 2 max(0, log tau + c_i - max_j c_j),   c_i = log l_i - log det(2 pi S_i) / 2

    Of one normal that is the whole answer, u = mu + sqrt(2 log tau) S g / sqrt(g^T S g).

    Args:
        least: components that are rarer are left out, but for the likeliest one.

    Shapes: as of `ImprovementOperator`.

    >>> from types import SimpleNamespace as Rows
    >>> two = Normals(torch.tensor([[[0.9, 0.1]]]).log(), torch.tensor([[[[1.0], [-1.0]]]]), torch.zeros(1, 1, 2, 1))
    >>> found = LogSumExpOperator(least=0.05).build()(two, 0.5, Rows(slope=lambda points: torch.ones_like(points)))
    >>> found.points.flatten().tolist(), found.allowed.flatten().tolist()  # too rare for a step
    ([2.0, -1.0], [True, True])
    """

    least: Probability = 0.05

    def build(self) -> nn.Module:
        return _LogSumExp(self.least)


class JensenOperator(ImprovementOperator):
    """A step from the mean that all components make, where Jensen's inequality bounds their mixture (eq. 12).

        u = m + sqrt(kappa) P^-1 g / sqrt(g^T P^-1 g),   P = sum_i l_i S_i^-1,   m = P^-1 sum_i l_i S_i^-1 mu_i
        kappa = 2 log tau - sum_i l_i (mu_i - m)^T S_i^-1 (mu_i - m)

    No step is allowed where kappa is negative: components are too far apart for their mean to be likely.

    Shapes: as of `ImprovementOperator`.

    >>> from types import SimpleNamespace as Rows
    >>> climb = Rows(slope=lambda points: torch.ones_like(points))
    >>> for half in (0.5, 2.0):
    ...     means = torch.tensor([[[[half], [-half]]]])
    ...     two = Normals(torch.full((1, 1, 2), 0.5).log(), means, torch.zeros(1, 1, 2, 1))
    ...     found = JensenOperator().build()(two, 0.5, climb)
    ...     print(round(found.points.item(), 4), found.allowed.item())
    0.866 True
    0.0 False
    """

    def build(self) -> nn.Module:
        return _Jensen()


class _ClosedForm(nn.Module):
    def __init__(self, operators: list[nn.Module], log_tau: Any, beta: Any) -> None:
        super().__init__()
        self.operators, self.bound, self.log_tau = nn.ModuleList(operators), LowerBound(beta), log_tau

    def forward(self, actor: Actor, seen: Tensor, parameters: Tensor) -> Tensor:
        normals = normals_of(actor.distribution, parameters)
        assert normals is not None, "the part's objection is asked first"
        climb = Climb(cast(Critics, actor.held["critic"]), seen, self.bound)
        each: list[Proposals] = [operator(normals, self.log_tau, climb) for operator in self.operators]
        points, allowed = (torch.cat(column, 2) for column in zip(*each, strict=True))
        worth = climb.worth(points).masked_fill(~allowed, -torch.inf)
        return torch.tanh(_at(points, worth.argmax(-1)))


def _at(points: Tensor, which: Tensor) -> Tensor:
    """[P, N, C, A] at `which` [P, N] -> [P, N, A]."""
    index = which[..., None, None].expand(-1, -1, 1, points.shape[-1])
    return points.gather(2, index).squeeze(2)


class ClosedFormImprovement(ReplayPlanner):
    """What is worth most of the steps that operators take from a cloned behaviour, likely to it (arXiv:2211.15956).

        max_u g^T u   where   -log pi_beta(u|s) <= delta,   of the linearised bound Q = mean_m Q_m - beta std_m Q_m

    all before tanh, as the authors' code has it, g its slope there. A log tau of 0 takes no step: it acts by the best
    of the components' means, and of one normal by its mean, which is cloning.

    Args:
        operators: who proposes. log_tau: how far, delta being log tau below the likeliest. beta: how much critics that
            differ count against an action.

    Shapes: parameters [P, N, K] -> actions [P, N, A] in units.

    >>> ClosedFormImprovement(log_tau=-0.1)
    Traceback (most recent call last):
    etude.core.errors.ConfigError: ClosedFormImprovement.log_tau must be a number of at least 0, got -0.1.
    """

    operators: tuple[ImprovementOperator, ...] = (LogSumExpOperator(), JensenOperator())
    log_tau: NonNegative = 0.5
    beta: NonNegative = 1.0

    def objection(self, method: Method) -> str | None:
        if sentence := super().objection(method):
            return sentence
        policy = method.slots()["policy"]
        if not self.operators:
            return "has nobody who proposes: set planner.operators=log-sum-exp-operator,jensen-operator."
        if policy is not None and type(policy) is not SquashedPolicy and not isinstance(policy, MixturePolicy):
            return (
                f"steps from normals before tanh, of which {type(policy).__name__} is not made: set "
                "policy=mixture-policy or policy=squashed-policy."
            )
        return None

    def build(self, actor: nn.Module, population: Population) -> nn.Module:
        return _ClosedForm([part.build() for part in self.operators], self.log_tau, self.beta)


class _BestSample(nn.Module):
    noise: Tensor

    def __init__(self, noise: Tensor, beta: Any) -> None:
        super().__init__()
        self.bound = LowerBound(beta)
        self.register_buffer("noise", noise)

    def forward(self, actor: Actor, seen: Tensor, parameters: Tensor) -> Tensor:
        actions = in_units(actor).chosen(parameters[:, :, None], self.noise[:, None]).actions
        worth = self.bound(said_of(cast(Critics, actor.held["critic"]), seen, actions))
        return _at(actions, worth.argmax(-1))


class BestOfSamples(ReplayPlanner):
    """The one of several of the policy's actions that critics say is worth most.

    Every member draws the random numbers once that samples are made of, so that a policy does one thing at an
    observation, and is exported as it acted.

    Args:
        count: how many. beta: how much critics that differ count against an action, as of `ClosedFormImprovement`.

    Shapes: parameters [P, N, K] -> actions [P, N, A] in units.

    >>> BestOfSamples(count=0)
    Traceback (most recent call last):
    etude.core.errors.ConfigError: BestOfSamples.count must be a whole number of at least 1, got 0.
    """

    count: Count = 10
    beta: NonNegative = 1.0

    def objection(self, method: Method) -> str | None:
        policy = method.slots()["policy"]
        if policy is not None and (policy.of_choices or not policy.scores):
            return (
                f"draws numbers by chance, and {type(policy).__name__} does not: set policy=mixture-policy or "
                "policy=squashed-policy."
            )
        return super().objection(method)

    def build(self, actor: nn.Module, population: Population) -> nn.Module:
        spread = in_units(cast(Actor, actor))
        noise = population.draw("planner", "samples", of=lambda g: spread.noise((self.count,), g))
        return _BestSample(noise.to(torch.get_default_dtype()), self.beta)
