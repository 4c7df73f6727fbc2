"""Several ways to act at once: a mixture of normals before tanh, whose chances, means and deviations a network says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from etude.core.errors import ConfigError
from etude.core.fields import Count
from etude.core.replay_slots import Choice
from etude.policies.control.activations import softplus
from etude.policies.control.distributions import EDGE
from etude.policies.control.replay import NetworkPolicy
from etude.policies.control.units import Bounded, SquashedBox, Units, box_bounds, gumbel

if TYPE_CHECKING:
    from gymnasium import spaces


class Normals(NamedTuple):
    """K normals with diagonal covariances before tanh: log_chances [..., K], means and log_stds [..., K, A]."""

    log_chances: Tensor
    means: Tensor
    log_stds: Tensor

    @property
    def heights(self) -> Tensor:
        """[..., K] log l_k N(mu_k; mu_k, S_k), the logarithm of what each adds to the density at its own mean."""
        return self.log_chances - self.log_stds.sum(-1) - 0.5 * math.log(2 * math.pi) * self.means.shape[-1]


@dataclass(frozen=True)
class SquashedMixture(Bounded):
    """tanh of a mixture of normals with diagonal covariances.

        a = tanh u,   log p(a) = log sum_k l_k N(u; mu_k, S_k) - sum log(1 - tanh(u)^2)

    What is drawn has gradient to the normal that was drawn, and none to the chances.

    Args:
        count: K. least, most: between which logarithms of deviations are kept.
    """

    count: int
    least: float
    most: float

    @property
    def parameters(self) -> int:
        return self.count * (1 + 2 * self.actions)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Which normal, [*shape, K], and where in it, [*shape, A]."""
        which = gumbel((*shape, self.count), generator)
        return torch.cat([which, torch.randn(*shape, self.actions, generator=generator)], -1)

    def normals(self, parameters: Tensor) -> Normals:
        """What the parameters [..., K (1 + 2 A)] say: logits, means, logarithms of deviations."""
        numbers = self.count * self.actions
        logits, means, log_stds = parameters.split([self.count, numbers, numbers], -1)
        shape = (self.count, self.actions)
        kept = log_stds.unflatten(-1, shape).clamp(self.least, self.most)
        return Normals(logits.log_softmax(-1), means.unflatten(-1, shape), kept)

    def middle(self, parameters: Tensor) -> Tensor:
        """tanh of the mean of the likeliest normal."""
        found = self.normals(parameters)
        return torch.tanh(_of(found.means, found.log_chances.argmax(-1)))

    def chosen(self, parameters: Tensor, noise: Tensor) -> Choice:
        found = self.normals(parameters)
        which = (found.log_chances + noise[..., : self.count]).argmax(-1)
        deviation = _of(found.log_stds, which).exp()
        u = torch.addcmul(_of(found.means, which), deviation, noise[..., self.count :].expand(deviation.shape))
        return Choice(torch.tanh(u), self._density(found, u))

    def logp(self, parameters: Tensor, actions: Tensor) -> Tensor:
        place = actions.clamp(-EDGE, EDGE)
        return self._density(self.normals(parameters), 0.5 * (place.log1p() - (-place).log1p()))

    def _density(self, found: Normals, u: Tensor) -> Tensor:
        """Of tanh u, [...], for u [..., A]."""
        away = (u[..., None, :] - found.means) * (-found.log_stds).exp()
        each = found.heights - 0.5 * away.square().sum(-1)
        return each.logsumexp(-1) - (2 * (math.log(2) - u - softplus(-2 * u))).sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        raise ConfigError("The entropy of a mixture has no closed form: set policy=squashed-policy.")


def _of(each: Tensor, which: Tensor) -> Tensor:
    """[..., K, A] at `which` [...] -> [..., A]."""
    lead = torch.broadcast_shapes(each.shape[:-2], which.shape)
    index = which.expand(lead)[..., None, None].expand(*lead, 1, each.shape[-1])
    return each.expand(*lead, *each.shape[-2:]).gather(-2, index).squeeze(-2)


class MixturePolicy(NetworkPolicy):
    """tanh of one of several normals, whose chances, means and deviations the network says, scaled to the bounds.

    Its mode is taken to be the mean of the likeliest normal.

    Args:
        count: how many normals. least, most: between which the logarithms of the deviations are kept.

    Shapes: observations [P, N, ...] -> actions [P, N, A], log-probabilities [P, N] of actions in units.

    >>> from gymnasium.spaces import Box
    >>> two = MixturePolicy(count=2).distribution(Box(-2.0, 2.0, (1,)))
    >>> said = torch.tensor([0.0, 1.0, -3.0, 3.0, 0.0, 0.0])  # chances 0.27 and 0.73, means -3 and 3
    >>> [round(x, 4) for x in (two.mode(said).item(), two.logp(said, torch.tensor([0.0])).item())]
    [1.9901, -5.4189]
    """

    scores: ClassVar[bool] = True
    count: Count = 4
    least: float = -5.0
    most: float = 2.0

    def check(self) -> None:
        if not self.least < self.most:
            raise ConfigError(f"MixturePolicy.least must be below most, got {self.least} and {self.most}.")

    def distribution(self, actions: spaces.Space[Any]) -> Units:
        return SquashedMixture(*box_bounds(actions, "MixturePolicy"), self.count, self.least, self.most)


def normals_of(spread: object, parameters: Tensor) -> Normals | None:
    """The normals before tanh of a policy that is made of them, [P, N, K]; None of another one."""
    if isinstance(spread, SquashedMixture):
        return spread.normals(parameters)
    if type(spread) is SquashedBox:
        mean, log_std = parameters.chunk(2, -1)
        one = mean.new_zeros(*mean.shape[:-1], 1)
        return Normals(one, mean[..., None, :], log_std.clamp(spread.least, spread.most)[..., None, :])
    return None
