"""What MR.Q does: one action of a Box, or of choices a relaxed one-hot vector; and noise on both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import spaces
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from etude.core.fields import NonNegative, Positive
from etude.core.replay_slots import Choice
from etude.core.sampling_slots import Drawing, Exploration
from etude.policies.control.replay import NetworkPolicy
from etude.policies.control.units import Point, Units, box_bounds, gumbel, in_units

if TYPE_CHECKING:
    from etude.policies.control.actor import Actor


@dataclass(frozen=True)
class OneHots(Units):
    """One of `count` choices as a vector of 0 and a 1, chosen softly: softmax((logits + Gumbel noise) / tau)."""

    count: int
    tau: float

    @property
    def parameters(self) -> int:
        return self.count

    @property
    def actions(self) -> int:
        return self.count

    def _largest(self, numbers: Tensor) -> Tensor:
        return one_hot(numbers.argmax(-1), self.count).to(numbers.dtype)

    def outside(self, actions: Tensor) -> Tensor:
        return actions.argmax(-1, keepdim=True).to(actions.dtype)

    def noise(self, shape: tuple[int, ...], generator: Generator) -> Tensor:
        return gumbel((*shape, self.count), generator)

    def middle(self, parameters: Tensor) -> Tensor:
        return self._largest(parameters)

    def chosen(self, parameters: Tensor, noise: Tensor) -> Choice:
        return Choice(((parameters + noise) / self.tau).softmax(-1), None)

    def anything(self, shape: tuple[int, ...], generator: Generator) -> Tensor:
        return one_hot(torch.randint(self.count, shape, generator=generator), self.count).to(torch.get_default_dtype())

    def moved(self, actions: Tensor, noise: Tensor) -> Tensor:
        """Half of the noise, since these are between 0 and 1 where a Box is between -1 and 1; then the largest."""
        return self._largest(actions + 0.5 * noise)


def relaxed(space: spaces.Space[Any], tau: float) -> Units:
    """One-hot choices of Discrete actions, one action of a Box. Raises ConfigError for another space."""
    if isinstance(space, spaces.Discrete):
        return OneHots(int(space.n), tau)
    return Point(*box_bounds(space, "RelaxedPolicy"))


class RelaxedPolicy(NetworkPolicy):
    """One action of a Box, tanh of what the network says; of choices a relaxed one-hot vector (arXiv:1611.01144).

        a = softmax((u + g) / tau),   g Gumbel noise

    What is evaluated and exported is the choice with the largest u.

    Args:
        tau: a large one keeps gradients alive, and all but sure policies acting by chance.

    Shapes: observations [P, N, ...] -> actions [P, N, A], A the number of choices.

    >>> choices = RelaxedPolicy(tau=10.0).distribution(spaces.Discrete(2))
    >>> soft = choices.chosen(torch.tensor([[10.0, 0.0]]), torch.zeros(1, 2)).actions
    >>> [round(x, 3) for x in soft[0].tolist()], choices.moved(soft, torch.tensor([[0.0, 1.0]])).tolist()
    ([0.731, 0.269], [[0.0, 1.0]])
    """

    tau: Positive = 10.0

    def distribution(self, actions: spaces.Space[Any]) -> Units:
        return relaxed(actions, self.tau)


class NoisySample(Exploration):
    """What the policy does by chance, and a normal of deviation `scale`, brought back among the actions that there are.

    Shapes: actions [P, E, A].

    >>> from types import SimpleNamespace as Rows
    >>> actor, said = Rows(distribution=OneHots(2, tau=1.0)), torch.tensor([[[2.0, 0.0]]])
    >>> noises = {"actions": torch.zeros(1, 1, 2), "noise": torch.tensor([[[0.0, 3.0]]])}
    >>> [NoisySample(s).act(actor, said, lambda name, of: noises[name], 0).tolist() for s in (0.1, 1.0)]
    [[[[1.0, 0.0]]], [[[0.0, 1.0]]]]
    """

    scale: NonNegative = 0.2

    def act(self, actor: Actor, said: Tensor, draw: Drawing, acted: int) -> Tensor:
        spread, count = in_units(actor), said.shape[1]
        chance = draw("actions", lambda generator, n: spread.noise((n, count), generator))
        chosen = spread.chosen(said, chance).actions
        shape = chosen.shape[1:]
        noise = draw("noise", lambda generator, n: torch.randn(n, *shape, generator=generator))
        return spread.moved(chosen, noise * self.scale)
