"""What replay policies do, in units: actions of a Box scaled to [-1, 1] by its bounds, choices as indices.

Where an action carries gradient, its log-probability comes from the normal that it was made of: taken back from the
rounded action it is 3.8 nats off at a mean of 6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from etude.core.errors import ConfigError
from etude.core.replay_slots import Choice
from etude.policies.control.activations import softplus
from etude.policies.control.actor import Actor
from etude.policies.control.distributions import Distribution, Squashed


class Units(Distribution):
    """A distribution that also acts in units; `sample` and `mode` are the environment's, as of every distribution.

    Log-probabilities and entropies, of those that have them, are of actions in units.
    """

    def outside(self, actions: Tensor) -> Tensor:
        """Actions [..., A] in units as the environment takes them."""
        raise NotImplementedError

    def inside(self, actions: Tensor) -> Tensor:
        """Actions [..., A] as the environment takes them in units: undoes `outside`."""
        raise NotImplementedError

    def middle(self, parameters: Tensor) -> Tensor:
        """What is done without chance, [..., A] in units."""
        raise NotImplementedError

    def chosen(self, parameters: Tensor, noise: Tensor) -> Choice:
        """What is done by chance, with gradient to the parameters."""
        raise NotImplementedError

    def anything(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Uniform actions [*shape, A] in units."""
        raise NotImplementedError

    @property
    def anything_logp(self) -> float:
        """The logarithm of the density, or of the chance, of what `anything` draws."""
        raise NotImplementedError

    def moved(self, actions: Tensor, noise: Tensor) -> Tensor:
        """Actions [..., A] in units with noise added, brought back among those that there are."""
        raise ConfigError(
            "Noise is added to numbers, and these actions are choices: leave it out of critic.backup, or set "
            "exploration=epsilon-greedy."
        )

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        return self.outside(self.chosen(parameters, noise).actions)

    def mode(self, parameters: Tensor) -> Tensor:
        return self.outside(self.middle(parameters))


@dataclass(frozen=True)
class Bounded(Units):
    """Actions of a Box with the bounds `low` and `high`."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def actions(self) -> int:
        return len(self.low)

    def outside(self, actions: Tensor) -> Tensor:
        low, high = actions.new_tensor(self.low), actions.new_tensor(self.high)
        return low + 0.5 * (high - low) * (actions + 1)

    def inside(self, actions: Tensor) -> Tensor:
        low, high = actions.new_tensor(self.low), actions.new_tensor(self.high)
        return (actions - low) / (0.5 * (high - low)) - 1

    def anything(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.rand(*shape, self.actions, generator=generator) * 2 - 1

    @property
    def anything_logp(self) -> float:
        return -self.actions * math.log(2)

    def moved(self, actions: Tensor, noise: Tensor) -> Tensor:
        return (actions + noise).clamp(-1.0, 1.0)


class Point(Bounded):
    """One action: tanh of the parameters."""

    @property
    def parameters(self) -> int:
        return self.actions

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.zeros(*shape, 0)

    def middle(self, parameters: Tensor) -> Tensor:
        return torch.tanh(parameters)

    def chosen(self, parameters: Tensor, noise: Tensor) -> Choice:
        return Choice(torch.tanh(parameters), None)


@dataclass(frozen=True)
class SquashedBox(Bounded):
    """tanh of a normal whose mean and logarithm of the deviation depend on the observation (arXiv:1812.05905, C).

        a = tanh u,   log p(a) = log N(u) - sum 2 (log 2 - u - softplus(-2 u))

    Args:
        least, most: between which the logarithm of the deviation is kept.
    """

    least: float
    most: float

    @property
    def parameters(self) -> int:
        return 2 * self.actions

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randn(*shape, self.actions, generator=generator)

    def middle(self, parameters: Tensor) -> Tensor:
        return torch.tanh(parameters.chunk(2, -1)[0])

    def drawn(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """u, what is done by chance before tanh, with gradient to the parameters."""
        mean, log_std = parameters.chunk(2, -1)
        return torch.addcmul(mean, log_std.clamp(self.least, self.most).exp(), noise)

    def chosen(self, parameters: Tensor, noise: Tensor) -> Choice:
        u, log_std = self.drawn(parameters, noise), parameters.chunk(2, -1)[1].clamp(self.least, self.most)
        stretch = 2 * (math.log(2) - u - softplus(-2 * u))
        each = -0.5 * noise * noise - log_std - stretch - 0.5 * math.log(2 * math.pi)
        return Choice(torch.tanh(u), each.sum(-1))

    def _normal(self, parameters: Tensor) -> tuple[Squashed, Tensor]:
        """The same in the form of which actions that were done have log-probabilities."""
        mean, log_std = parameters.chunk(2, -1)
        plain = Squashed(self.actions, (-1.0,) * self.actions, (1.0,) * self.actions)
        return plain, torch.cat([mean, log_std.clamp(self.least, self.most)], -1)

    def logp(self, parameters: Tensor, actions: Tensor) -> Tensor:
        plain, normal = self._normal(parameters)
        return plain.logp(normal, actions)

    def entropy(self, parameters: Tensor) -> Tensor:
        plain, normal = self._normal(parameters)
        return plain.entropy(normal)


class Normal(Bounded):
    """A normal, of which the parameters say means and deviations.

    Beyond the bounds the environment cuts actions: what is stored is what was drawn, and its density the normal's.
    """

    @property
    def parameters(self) -> int:
        return 2 * self.actions

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randn(*shape, self.actions, generator=generator)

    def middle(self, parameters: Tensor) -> Tensor:
        return self._normal(parameters)[0]

    def _normal(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Means and deviations."""
        raise NotImplementedError

    def _density(self, noise: Tensor, deviation: Tensor) -> Tensor:
        return (-0.5 * noise * noise - deviation.log()).sum(-1) - 0.5 * math.log(2 * math.pi) * self.actions

    def chosen(self, parameters: Tensor, noise: Tensor) -> Choice:
        mean, deviation = self._normal(parameters)
        return Choice(torch.addcmul(mean, deviation, noise), self._density(noise, deviation))

    def logp(self, parameters: Tensor, actions: Tensor) -> Tensor:
        mean, deviation = self._normal(parameters)
        return self._density((actions - mean) / deviation, deviation)

    def entropy(self, parameters: Tensor) -> Tensor:
        each = self._normal(parameters)[1].log()
        return each.sum(-1) + 0.5 * (1 + math.log(2 * math.pi)) * self.actions


class NormalBox(Normal):
    """Means and deviations depend on the observation; the deviation is the softplus of what is said."""

    def middle(self, parameters: Tensor) -> Tensor:
        return parameters.chunk(2, -1)[0]

    def _normal(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        mean, said = parameters.chunk(2, -1)
        return mean, softplus(said)


@dataclass(frozen=True)
class MeanBox(Normal):
    """Means are tanh of what is said, the logarithms of the deviations numbers that no observation moves.

    Args:
        least, most: between which these are kept.
    """

    least: float
    most: float

    @property
    def free(self) -> int:
        return self.actions

    def _normal(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = parameters.chunk(2, -1)
        return torch.tanh(mean), log_std.clamp(self.least, self.most).exp()


@dataclass(frozen=True)
class Indices(Units):
    """One of `count` choices."""

    count: int

    @property
    def parameters(self) -> int:
        return self.count

    @property
    def actions(self) -> int:
        return 1

    def outside(self, actions: Tensor) -> Tensor:
        return actions

    def inside(self, actions: Tensor) -> Tensor:
        return actions

    def middle(self, parameters: Tensor) -> Tensor:
        """The one with the largest parameter, the first of equal ones."""
        return parameters.argmax(-1, keepdim=True).to(parameters.dtype)

    def anything(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randint(self.count, (*shape, 1), generator=generator).float()

    @property
    def anything_logp(self) -> float:
        return -math.log(self.count)


class Best(Indices):
    """The choice with the largest parameter, whatever chance says."""

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.zeros(*shape, 0)

    def chosen(self, parameters: Tensor, noise: Tensor) -> Choice:
        return Choice(self.middle(parameters), None)


class Softmax(Indices):
    """A choice by its chance, the softmax of the parameters; formulas see all chances."""

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return gumbel((*shape, self.count), generator)

    def chosen(self, parameters: Tensor, noise: Tensor) -> Choice:
        logs = parameters.log_softmax(-1)
        chances = logs.exp()
        return Choice(self.middle(parameters + noise), (chances * logs).sum(-1), chances)

    def logp(self, parameters: Tensor, actions: Tensor) -> Tensor:
        return parameters.log_softmax(-1).gather(-1, actions.long()).squeeze(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        logs = parameters.log_softmax(-1)
        return -(logs.exp() * logs).sum(-1)


def gumbel(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Gumbel noise: the largest of logits plus noise is a sample."""
    uniform = torch.rand(*shape, generator=generator)
    return -(-uniform.clamp_(1e-20, 1 - 6e-8).log()).log()


def choice_count(space: spaces.Space[Any], who: str) -> int:
    """How many choices there are. Raises ConfigError for a space that is not Discrete, naming who wants it."""
    if not isinstance(space, spaces.Discrete):
        raise ConfigError(
            f"{who} chooses among Discrete actions, and they are {space}: for a Box there are td3 and sac, and ppo "
            "takes every space."
        )
    return int(space.n)


def in_units(actor: Actor) -> Units:
    """The distribution of a replay policy. Raises ConfigError for a policy of another kind."""
    if not isinstance(actor.distribution, Units):
        raise ConfigError(f"{type(actor.distribution).__name__} does not act in units, as what is stored has to be.")
    return actor.distribution


def box_bounds(space: spaces.Space[Any], who: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Bounds of a Box, flattened. Raises ConfigError for another space, naming who wants it, and for one without."""
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        raise ConfigError(
            f"{who} acts in a Box of floats, and the actions are {space}: for choices there is dqn, and ppo takes "
            "every space."
        )
    if not space.is_bounded():
        raise ConfigError(f"{who} keeps actions within bounds, and {space} has none: give the environment bounds.")
    low, high = (tuple(float(x) for x in bound.flatten()) for bound in (space.low, space.high))
    return low, high
