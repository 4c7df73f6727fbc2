"""Who acts while data is recorded: chance, a trained policy, who knows the way; and how likely what they do is.

Log-probabilities are natural logarithms of the chance of a choice, or of the density of the action that the environment
is given, in its own units.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from etude.core.control import Ways
from etude.evaluation.restored import RestoredPolicies
from etude.policies.control.actor import Player
from etude.policies.control.units import Best, Point, in_units

Floats = NDArray[np.float64]
NEAR = 0.1
"""Blur of policies in numbers that leave nothing to chance: as much as TD3 acts with while it learns (1802.09477)."""


class Behaviour(Protocol):
    """Who acts in E environments."""

    label: str
    """What they are called in the data."""

    def begin(self, count: int) -> None:
        """Act in `count` environments, from the beginnings of their episodes."""

    def act(self, seen: NDArray[np.float32], generator: torch.Generator) -> tuple[NDArray[np.float32], Floats]:
        """Actions [E, A] as the environment takes them, and how likely they were, [E], at observations [E, D]."""

    def ended(self, done: NDArray[np.bool_]) -> None:
        """Forget the episodes that ended, [E]."""


class _WithoutMemory:
    """What all have in common that forget nothing."""

    label: str

    def begin(self, count: int) -> None:
        """Nothing to remember."""

    def ended(self, done: NDArray[np.bool_]) -> None:
        """Nothing to forget."""


class AnyAction(_WithoutMemory):
    """Every action as likely as another.

    >>> AnyAction(spaces.Box(-2.0, 2.0, (2,))).density == 1 / 16
    True
    """

    def __init__(self, space: Any) -> None:
        self.space, self.label = space, "random"
        self.choices = int(space.n) if isinstance(space, spaces.Discrete) else 0
        self.density = 1 / self.choices if self.choices else 1 / float(np.prod(_range(space)))

    def act(self, seen: NDArray[np.float32], generator: torch.Generator) -> tuple[NDArray[np.float32], Floats]:
        return self.drawn(len(seen), generator), np.full(len(seen), math.log(self.density))

    def drawn(self, count: int, generator: torch.Generator) -> NDArray[np.float32]:
        """[count, A] actions."""
        if self.choices:
            return torch.randint(self.choices, (count, 1), generator=generator).float().numpy()
        uniform = torch.rand(count, *self.space.shape, generator=generator, dtype=torch.float64).numpy()
        found: NDArray[np.float32] = (self.space.low + _range(self.space) * uniform).astype(np.float32)
        return found.clip(self.space.low, self.space.high)


class TrainedSampling(_WithoutMemory):
    """A trained policy: what it does by chance; without any, now and then another choice, or numbers near its own.

        p(a) = (1 - epsilon) 1[a is the best] + epsilon / A      of a policy that is made of a critic
        p(a) = N(a | mu(s), (0.1 half)^2), cut off at the bounds    of one that says numbers mu(s)

    Args:
        policies: of one member. epsilon: how often any choice is made.
    """

    def __init__(self, policies: RestoredPolicies, label: str, epsilon: float) -> None:
        self.policies, self.label, self.epsilon = policies, label, epsilon
        self.spread, self.space = in_units(policies.actor), policies.environment.action_space
        self.anything = AnyAction(self.space)
        self.greedy = isinstance(self.spread, Best)
        self.blurred = NoisyController(self._mode, self.space, 0.0, NEAR) if isinstance(self.spread, Point) else None

    def begin(self, count: int) -> None:
        self.player = Player(self.policies.actor, 1, count)

    def ended(self, done: NDArray[np.bool_]) -> None:
        self.player.ended(torch.from_numpy(done)[None])

    @torch.no_grad()
    def act(self, seen: NDArray[np.float32], generator: torch.Generator) -> tuple[NDArray[np.float32], Floats]:
        if self.blurred is not None:
            return self.blurred.act(seen, generator)
        said = self.player.act(torch.from_numpy(seen)[None])
        if self.greedy:
            return self._mixed(self.spread.middle(said)[0].numpy(), generator)
        choice = self.spread.chosen(said, self.spread.noise((1, len(seen)), generator))
        actions: Tensor = self.spread.outside(choice.actions)[0]
        if choice.chances is not None:
            logp = self.spread.logp(said, choice.actions)[0].double().numpy()
            return actions.numpy(), logp
        assert choice.logp is not None, "a Point is blurred"
        return actions.numpy(), choice.logp[0].double().numpy() - np.log(_range(self.space) / 2).sum()

    def _mode(self, seen: NDArray[np.float32]) -> Floats:
        """[E, A] what is done without chance."""
        found: Floats = self.spread.mode(self.player.act(torch.from_numpy(seen)[None]))[0].double().numpy()
        return found

    def _mixed(self, best: NDArray[np.float32], generator: torch.Generator) -> tuple[NDArray[np.float32], Floats]:
        """The best choices [E, 1], or any."""
        other = self.anything.drawn(len(best), generator)
        rarely = torch.rand(len(best), 1, generator=generator).numpy() < self.epsilon
        actions = np.where(rarely, other, best).astype(np.float32)
        chance = (1 - self.epsilon) * (actions == best)[:, 0] + self.epsilon * self.anything.density
        return actions, np.log(chance)


class NoisyController(_WithoutMemory):
    """What a controller does, blurred, and now and then anything.

        p(a) = (1 - epsilon) N(a | u, (blur half)^2), cut off at the bounds, + epsilon / volume

    Args:
        controller: observations [E, D] -> actions u [E, A] as the environment takes them.
        space: a Box with bounds. epsilon: how often any action is taken. blur: deviation, in units of half the range.
    """

    def __init__(
        self, controller: Callable[[NDArray[np.float32]], Floats], space: Any, epsilon: float, blur: float = 0.3
    ) -> None:
        self.controller, self.epsilon, self.anything = controller, epsilon, AnyAction(space)
        self.space, self.deviation = space, blur * _range(space) / 2
        self.label = f"controller epsilon={epsilon:g}"

    def act(self, seen: NDArray[np.float32], generator: torch.Generator) -> tuple[NDArray[np.float32], Floats]:
        from scipy.special import ndtr, ndtri

        middle, deviation = self.controller(seen), self.deviation
        low, high = ((x - middle) / deviation for x in (self.space.low, self.space.high))
        uniform = torch.rand(middle.shape, generator=generator, dtype=torch.float64).numpy()
        drawn = middle + deviation * ndtri(ndtr(low) + uniform * (ndtr(high) - ndtr(low)))
        rarely = torch.rand(len(seen), 1, generator=generator).numpy() < self.epsilon
        other = self.anything.drawn(len(seen), generator)
        actions = np.where(rarely, other, drawn).astype(np.float32).clip(self.space.low, self.space.high)
        return actions, self._logp(middle, actions)

    def logp(self, seen: NDArray[np.float32], actions: NDArray[np.float32]) -> Floats:
        """[E] how likely actions [E, A] are at observations [E, D]."""
        return self._logp(self.controller(seen), actions)

    def _logp(self, middle: Floats, actions: NDArray[np.float32]) -> Floats:
        from scipy.special import logsumexp, ndtr

        low, high = ((x - middle) / self.deviation for x in (self.space.low, self.space.high))
        room = ndtr(high) - ndtr(low)  # a half at least, about
        apart = (actions - middle) / self.deviation
        own = (-(apart**2) / 2 - np.log(math.sqrt(2 * math.pi) * self.deviation * room)).sum(-1)
        weights = np.array([[1 - self.epsilon], [self.epsilon * self.anything.density]])
        found: Floats = logsumexp(np.stack([own, np.zeros_like(own)]), 0, weights)
        return found


class Wanderer:
    """Who goes to one place after another, each as likely as another, whatever the task pays for (arXiv:2004.07219).

    What it does depends on where it is going, which no observation says: it is no policy of what is seen. How likely an
    action was is said for where it was going.

    Args:
        ways: of the task. space, epsilon, blur: as of `NoisyController`.
    """

    def __init__(self, ways: Ways, space: Any, epsilon: float, blur: float = 0.3) -> None:
        self.ways, self.label = ways, f"wanderer epsilon={epsilon:g}"
        self.acts = NoisyController(lambda seen: ways.towards(seen, self.goals), space, epsilon, blur)

    def begin(self, count: int) -> None:
        """Go nowhere yet."""
        self.goals, self.settled = np.zeros((count, self.ways.places.shape[1])), np.zeros(count, bool)

    def ended(self, done: NDArray[np.bool_]) -> None:
        """Go somewhere else in the next episode."""
        self.settled &= ~done

    def act(self, seen: NDArray[np.float32], generator: torch.Generator) -> tuple[NDArray[np.float32], Floats]:
        """As of `Behaviour`; who has arrived goes on to another place."""
        self.settled &= ~self.ways.arrived(seen, self.goals)
        drawn = torch.randint(len(self.ways.places), (len(seen),), generator=generator).numpy()
        self.goals = np.where(self.settled[:, None], self.goals, self.ways.places[drawn])
        self.settled[:] = True
        return self.acts.act(seen, generator)


def _range(space: Any) -> Floats:
    """[A] from the lowest to the highest of every number of an action."""
    found: Floats = space.high.astype(np.float64) - space.low.astype(np.float64)
    return found
