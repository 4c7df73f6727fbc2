"""What acts by chance in any space, in units: independent choices, numbers without bounds, and these side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from etude.core.errors import ConfigError
from etude.core.replay_slots import Choice
from etude.policies.control.distributions import Bernoulli, Categorical, total
from etude.policies.control.units import NormalBox, Units, box_bounds


class EndlessBox(NormalBox):
    """Numbers some of which have no bounds: these are in the environment's own units, `low` and `high` are -1 and 1.

    So what is done where anything is as likely as another is uniform there.
    """

    def moved(self, actions: Tensor, noise: Tensor) -> Tensor:
        raise ConfigError(
            "Noise is kept within the bounds of actions, and some of these have none: leave it out of critic.backup, "
            "or set exploration=sampled."
        )


@dataclass(frozen=True)
class Options(Units):
    """Independent choices, as indices: their log-probability is that of what was drawn, and no chance of all is said.

    Args:
        of: how they are drawn, and how likely each is.
    """

    of: Categorical | Bernoulli

    @property
    def parameters(self) -> int:
        return self.of.parameters

    @property
    def actions(self) -> int:
        return self.of.actions

    def outside(self, actions: Tensor) -> Tensor:
        return actions

    def inside(self, actions: Tensor) -> Tensor:
        return actions

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return self.of.noise(shape, generator)

    def middle(self, parameters: Tensor) -> Tensor:
        return self.of.mode(parameters).to(parameters.dtype)

    def chosen(self, parameters: Tensor, noise: Tensor) -> Choice:
        actions = self.of.sample(parameters, noise).to(parameters.dtype)
        return Choice(actions, self.of.logp(parameters, actions))

    def anything(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        each = [torch.randint(count, (*shape, 1), generator=generator).float() for count in self._counts]
        return torch.cat(each, -1)

    @property
    def _counts(self) -> tuple[int, ...]:
        return self.of.counts if isinstance(self.of, Categorical) else (2,) * self.of.size

    @property
    def anything_logp(self) -> float:
        return -sum(map(math.log, self._counts))

    def logp(self, parameters: Tensor, actions: Tensor) -> Tensor:
        return self.of.logp(parameters, actions)

    def entropy(self, parameters: Tensor) -> Tensor:
        return self.of.entropy(parameters)


@dataclass(frozen=True)
class Together(Units):
    """Independent actions side by side, of Dict and Tuple spaces."""

    each: tuple[Options | NormalBox, ...]

    @property
    def parameters(self) -> int:
        return sum(one.parameters for one in self.each)

    @property
    def actions(self) -> int:
        return sum(one.actions for one in self.each)

    def _said(self, parameters: Tensor) -> Iterator[tuple[Options | NormalBox, Tensor]]:
        """Each, and its parameters."""
        return zip(self.each, parameters.split([one.parameters for one in self.each], -1), strict=True)

    def _done(self, actions: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = actions.split([one.actions for one in self.each], -1)
        return found

    def outside(self, actions: Tensor) -> Tensor:
        return torch.cat([one.outside(a) for one, a in zip(self.each, self._done(actions), strict=True)], -1)

    def inside(self, actions: Tensor) -> Tensor:
        return torch.cat([one.inside(a) for one, a in zip(self.each, self._done(actions), strict=True)], -1)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.cat([one.noise(shape, generator) for one in self.each], -1)

    def middle(self, parameters: Tensor) -> Tensor:
        return torch.cat([one.middle(p) for one, p in self._said(parameters)], -1)

    def chosen(self, parameters: Tensor, noise: Tensor) -> Choice:
        sizes = [one.parameters if isinstance(one, Options) else one.actions for one in self.each]
        pairs = zip(self._said(parameters), noise.split(sizes, -1), strict=True)
        found = [one.chosen(p, n) for (one, p), n in pairs]
        logs = [choice.logp for choice in found if choice.logp is not None]
        return Choice(torch.cat([choice.actions for choice in found], -1), total(logs))

    def anything(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.cat([one.anything(shape, generator) for one in self.each], -1)

    @property
    def anything_logp(self) -> float:
        return sum(one.anything_logp for one in self.each)

    def logp(self, parameters: Tensor, actions: Tensor) -> Tensor:
        pairs = zip(self._said(parameters), self._done(actions), strict=True)
        return total([one.logp(p, a) for (one, p), a in pairs])

    def entropy(self, parameters: Tensor) -> Tensor:
        return total([one.entropy(p) for one, p in self._said(parameters)])


def any_space(space: spaces.Space[Any], who: str) -> Units:
    """What acts by chance in any space: choices by theirs, numbers of a Box by a normal of their own.

    Raises ConfigError for a space that has no distribution, naming who wants one.
    """
    each = tuple(_parts(space, who))
    return each[0] if len(each) == 1 else Together(each)


def _parts(space: spaces.Space[Any], who: str) -> Iterator[Options | NormalBox]:
    match space:
        case spaces.Discrete():
            yield Options(Categorical((int(space.n),)))
        case spaces.MultiDiscrete():
            yield Options(Categorical(tuple(int(n) for n in space.nvec.flatten())))
        case spaces.MultiBinary():
            yield Options(Bernoulli(math.prod(space.shape)))
        case spaces.Dict() | spaces.Tuple():
            inside = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
            for one in inside:
                yield from _parts(one, who)
        case spaces.Box() if space.dtype.kind == "f" and not space.is_bounded():
            known = np.isfinite(space.low) & np.isfinite(space.high)
            bounds = (np.where(known, *pair).flatten() for pair in ((space.low, -1.0), (space.high, 1.0)))
            low, high = (tuple(map(float, bound)) for bound in bounds)
            yield EndlessBox(low, high)
        case _:
            yield NormalBox(*box_bounds(space, who))
