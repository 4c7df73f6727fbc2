"""Distributions over actions, for every action space of Gymnasium.

A distribution is a description; its numbers come as one tensor of parameters [..., K], so that what was sampled from
can be stored, compared and exported. Actions are float32 vectors [..., A] whatever the space: an index for each
discrete choice, the value for each continuous one. Log-probabilities and entropies are in nats.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from etude.core.errors import ConfigError
from etude.policies.control.activations import sigmoid, softplus

EDGE = 1 - 1e-6
"""Squashed actions count as at most this far from the middle, in halves of the range: atanh has no value at 1."""
NODES, WEIGHTS = (tuple(map(float, x)) for x in np.polynomial.hermite.hermgauss(20))


def total(each: list[Tensor]) -> Tensor:
    """Their sum, one after another: a reduction over a leading axis adds in an order that depends on the shape."""
    return sum(each[1:], each[0])


class Distribution:
    """What every distribution can do. `parameters` and `actions` are the sizes K and A.

    `free` of the K parameters do not depend on the observation (a Gaussian's log standard deviation) and come last.
    """

    @property
    def parameters(self) -> int:
        """K."""
        raise NotImplementedError

    @property
    def actions(self) -> int:
        """A."""
        raise NotImplementedError

    @property
    def free(self) -> int:
        """How many of the K do not depend on the observation."""
        return 0

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """What `sample` needs: [*shape, noise size]."""
        raise NotImplementedError

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Actions [..., A]."""
        raise NotImplementedError

    def mode(self, parameters: Tensor) -> Tensor:
        """The likeliest actions [..., A]."""
        raise NotImplementedError

    def logp(self, parameters: Tensor, actions: Tensor) -> Tensor:
        """Log-probabilities (densities for continuous actions) [...]."""
        raise NotImplementedError

    def entropy(self, parameters: Tensor) -> Tensor:
        """Entropies [...]."""
        raise NotImplementedError

    def logp_and_entropy(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Both, with what they share computed once."""
        return self.logp(parameters, actions), self.entropy(parameters)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """KL(old || new) [...], exact."""
        raise NotImplementedError

    def kl_parts(self, old: Tensor, new: Tensor) -> tuple[Tensor, ...]:
        """KL [...] of what depends on the observation having moved alone, and of what is `free` if something is.

        Both are divergences; where only one kind moved, one is the whole KL and the other 0.
        """
        return (self.kl(old, new),)


@dataclass(frozen=True)
class Categorical(Distribution):
    """Independent choices, `counts` options each: Discrete has one, MultiDiscrete several."""

    counts: tuple[int, ...]

    @property
    def parameters(self) -> int:
        return sum(self.counts)

    @property
    def actions(self) -> int:
        return len(self.counts)

    def _each(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x,) if len(self.counts) == 1 else x.split(self.counts, -1)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Gumbel noise: the largest of logits plus noise is a sample."""
        uniform = torch.rand(*shape, self.parameters, generator=generator)
        return -(-uniform.clamp_(1e-20, 1 - 6e-8).log()).log()

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        return self.mode(parameters + noise)

    def mode(self, parameters: Tensor) -> Tensor:
        choices = [z.argmax(-1, keepdim=True) for z in self._each(parameters)]
        return (choices[0] if len(choices) == 1 else torch.cat(choices, -1)).float()

    def logp(self, parameters: Tensor, actions: Tensor) -> Tensor:
        return self._chosen(self._logs(parameters), actions)

    def entropy(self, parameters: Tensor) -> Tensor:
        return self._spread(self._logs(parameters))

    def logp_and_entropy(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        logs = self._logs(parameters)
        return self._chosen(logs, actions), self._spread(logs)

    def _logs(self, parameters: Tensor) -> list[Tensor]:
        """Log-probabilities [..., count] of the options of each choice."""
        return [z.log_softmax(-1) for z in self._each(parameters)]

    def _chosen(self, logs: list[Tensor], actions: Tensor) -> Tensor:
        index = actions.long().split(1, -1)
        return total([x.gather(-1, i).squeeze(-1) for x, i in zip(logs, index)])

    def _spread(self, logs: list[Tensor]) -> Tensor:
        return -total([(x.exp() * x).sum(-1) for x in logs])

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        pairs = [(a.log_softmax(-1), b.log_softmax(-1)) for a, b in zip(self._each(old), self._each(new))]
        each = [(a.exp() * (a - b)).sum(-1) for a, b in pairs]
        return total(each)


@dataclass(frozen=True)
class Bernoulli(Distribution):
    """`size` independent yes-or-no choices (MultiBinary); parameters are logits."""

    size: int

    @property
    def parameters(self) -> int:
        return self.size

    @property
    def actions(self) -> int:
        return self.size

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Logistic noise: logits plus noise is positive with the right probability."""
        uniform = torch.rand(*shape, self.actions, generator=generator).clamp_(1e-20, 1 - 6e-8)
        return uniform.log() - (-uniform).log1p()

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        return (parameters + noise > 0).float()

    def mode(self, parameters: Tensor) -> Tensor:
        return (parameters > 0).float()

    def logp(self, parameters: Tensor, actions: Tensor) -> Tensor:
        return -softplus((1 - 2 * actions) * parameters).sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        return (softplus(parameters) - parameters * sigmoid(parameters)).sum(-1)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        p = sigmoid(old)
        return (p * (softplus(-new) - softplus(-old)) + (1 - p) * (softplus(new) - softplus(old))).sum(-1)


@dataclass(frozen=True)
class Gaussian(Distribution):
    """`size` independent normals: means, then log standard deviations, the latter free of the observation.

    Actions outside of the space's bounds are clipped by the environment, not here: the density is the normal's.
    """

    size: int

    @property
    def parameters(self) -> int:
        return 2 * self.size

    @property
    def actions(self) -> int:
        return self.size

    @property
    def free(self) -> int:
        return self.size

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randn(*shape, self.actions, generator=generator)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = parameters.chunk(2, -1)
        return mean + log_std.exp() * noise

    def mode(self, parameters: Tensor) -> Tensor:
        return parameters.chunk(2, -1)[0]

    def logp(self, parameters: Tensor, actions: Tensor) -> Tensor:
        mean, log_std = parameters.chunk(2, -1)
        z = (actions - mean) * (-log_std).exp()
        return -(0.5 * z * z + log_std).sum(-1) - 0.5 * math.log(2 * math.pi) * self.actions

    def entropy(self, parameters: Tensor) -> Tensor:
        return parameters.chunk(2, -1)[1].sum(-1) + 0.5 * (1 + math.log(2 * math.pi)) * self.actions

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        (m0, s0), (m1, s1) = old.chunk(2, -1), new.chunk(2, -1)
        return (s1 - s0 + ((2 * s0).exp() + (m0 - m1) ** 2) * (-2 * s1).exp() / 2 - 0.5).sum(-1)

    def kl_parts(self, old: Tensor, new: Tensor) -> tuple[Tensor, ...]:
        """Of the means, deviations being the old ones, and of the deviations (arXiv:1909.12238)."""
        (m0, s0), (m1, s1) = old.chunk(2, -1), new.chunk(2, -1)
        means = ((m0 - m1) ** 2 * (-2 * s0).exp() / 2).sum(-1)
        return means, (s1 - s0 + ((2 * (s0 - s1)).exp() - 1) / 2).sum(-1)


@dataclass(frozen=True)
class Squashed(Gaussian):
    """A normal u through tanh, onto the box [low, high]: a = low + (high - low) (tanh u + 1) / 2 (arXiv:1801.01290).

        log p(a) = log N(u) - sum log((high - low) / 2) - sum log(1 - tanh(u)^2)

    Exact, up to the rounding of actions at the bounds (`EDGE`). KL is the normals', since the map is one to one.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def _half(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Half the range and the lower bound of each action."""
        low, high = like.new_tensor(self.low), like.new_tensor(self.high)
        return (high - low) / 2, low

    def _squash(self, normal: Tensor) -> Tensor:
        half, low = self._half(normal)
        return low + half * (1 + torch.tanh(normal))

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        return self._squash(super().sample(parameters, noise))

    def mode(self, parameters: Tensor) -> Tensor:
        """The image of the normal's mean: the median."""
        return self._squash(super().mode(parameters))

    def logp(self, parameters: Tensor, actions: Tensor) -> Tensor:
        half, low = self._half(actions)
        place = ((actions - low) / half - 1).clamp(-EDGE, EDGE)
        above, below = place.log1p(), (-place).log1p()  # atanh y = (log(1 + y) - log(1 - y)) / 2
        return super().logp(parameters, 0.5 * (above - below)) - (above + below + half.log()).sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """The normal's entropy plus E[log |da/du|], which has no closed form: Gauss-Hermite quadrature, 20 nodes.

        Within 1e-5 nats per action for standard deviations up to 1, 0.02 up to 3.
        """
        mean, log_std = parameters.chunk(2, -1)
        nodes, weights = mean.new_tensor(NODES), mean.new_tensor(WEIGHTS) / math.sqrt(math.pi)
        size = (mean[..., None] + math.sqrt(2) * log_std.exp()[..., None] * nodes).abs()
        stretch = 2 * (math.log(2) - size - (-2 * size).exp().log1p())
        return super().entropy(parameters) + ((stretch * weights).sum(-1) + self._half(mean)[0].log()).sum(-1)


@dataclass(frozen=True)
class Product(Distribution):
    """Independent distributions side by side: Dict and Tuple spaces. Free parameters of all come last."""

    each: tuple[Distribution, ...]

    @property
    def parameters(self) -> int:
        return sum(d.parameters for d in self.each)

    @property
    def actions(self) -> int:
        return sum(d.actions for d in self.each)

    @property
    def free(self) -> int:
        return sum(d.free for d in self.each)

    def _parameters(self, x: Tensor) -> list[Tensor]:
        bound, free = x.split([x.shape[-1] - self.free, self.free], -1)
        ours = bound.split([d.parameters - d.free for d in self.each], -1)
        theirs = free.split([d.free for d in self.each], -1)
        return [torch.cat(pair, -1) for pair in zip(ours, theirs)]

    def _actions(self, x: Tensor) -> tuple[Tensor, ...]:
        each: tuple[Tensor, ...] = x.split([d.actions for d in self.each], -1)
        return each

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.cat([d.noise(shape, generator) for d in self.each], -1)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        sizes = [d.parameters - d.free for d in self.each]
        triples = zip(self.each, self._parameters(parameters), noise.split(sizes, -1))
        return torch.cat([d.sample(p, n) for d, p, n in triples], -1)

    def mode(self, parameters: Tensor) -> Tensor:
        return torch.cat([d.mode(p) for d, p in zip(self.each, self._parameters(parameters))], -1)

    def logp(self, parameters: Tensor, actions: Tensor) -> Tensor:
        triples = zip(self.each, self._parameters(parameters), self._actions(actions))
        return total([d.logp(p, a) for d, p, a in triples])

    def entropy(self, parameters: Tensor) -> Tensor:
        return total([d.entropy(p) for d, p in zip(self.each, self._parameters(parameters))])

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        triples = zip(self.each, self._parameters(old), self._parameters(new))
        return total([d.kl(a, b) for d, a, b in triples])

    def kl_parts(self, old: Tensor, new: Tensor) -> tuple[Tensor, ...]:
        """Sums over all; choices count with the means."""
        triples = zip(self.each, self._parameters(old), self._parameters(new))
        found = [d.kl_parts(a, b) for d, a, b in triples]
        kinds = (parts for parts in itertools.zip_longest(*found))
        return tuple(total([x for x in parts if x is not None]) for parts in kinds)


def distribution(space: spaces.Space[Any], squash: bool = False) -> Distribution:
    """The distribution over a space's actions; with `squash` continuous ones keep to their bounds.

    Raises ConfigError for a space that has none, and for a Box without bounds that is to be squashed.
    """
    match space:
        case spaces.Discrete():
            return Categorical((int(space.n),))
        case spaces.MultiDiscrete():
            return Categorical(tuple(int(n) for n in space.nvec.flatten()))
        case spaces.MultiBinary():
            return Bernoulli(math.prod(space.shape))
        case spaces.Box() if space.dtype.kind == "f":
            return _squashed(space) if squash else Gaussian(math.prod(space.shape))
        case spaces.Dict():
            return Product(tuple(distribution(s, squash) for s in space.spaces.values()))
        case spaces.Tuple():
            return Product(tuple(distribution(s, squash) for s in space.spaces))
    raise ConfigError(
        f"Actions must be a Box of floats, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these; "
        f"got {space}."
    )


def _squashed(space: spaces.Box) -> Squashed:
    if not space.is_bounded():
        raise ConfigError(f"Only actions with bounds can be squashed; got {space}: set policy.squash=false.")
    low, high = (tuple(float(x) for x in bound.flatten()) for bound in (space.low, space.high))
    return Squashed(len(low), low, high)
