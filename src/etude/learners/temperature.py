"""The temperature of maximum entropy: a number of every member's own, learned so that the entropy meets a target."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from etude.core.critic_slots import EntropyTarget, unscored
from etude.core.fields import Positive, PositiveProbability
from etude.core.learners import Learning
from etude.core.population import Numbers, Population
from etude.core.replay_slots import ReplayLearner, ReplayReading
from etude.learners.q import action_sizes
from etude.optimizers.adam import Adam
from etude.policies.control.units import choice_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium import Space

    from etude.core.method import Method


class PerAction(EntropyTarget):
    """So many nats for every number of an action in units (arXiv:1812.05905 takes -1).

    >>> from gymnasium.spaces import Box
    >>> PerAction(-1.0).of(Box(-2.0, 2.0, (3,)))
    -3.0
    """

    nats: float = -1.0

    def of(self, actions: Space[Any]) -> float:
        return self.nats * action_sizes(actions)[1]


class OfUniform(EntropyTarget):
    """A share of the largest entropy that there is, log A of A choices (arXiv:1910.07207 takes 0.98).

    >>> from gymnasium.spaces import Discrete
    >>> OfUniform(share=0.5).of(Discrete(4)) == math.log(2)
    True
    """

    share: PositiveProbability = 0.98

    def of(self, actions: Space[Any]) -> float:
        return self.share * math.log(choice_count(actions, "OfUniform"))


class Heat(Numbers):
    """The logarithm of the temperature [P, 1], and the entropy that it holds the policy to."""

    def __init__(self, start: float, members: int, target: float) -> None:
        super().__init__({"log": (torch.ones(members) * start).log()})
        self.target = target


class Temperature(ReplayLearner):
    """alpha, learned downhill on log alpha (entropy - target), or a number that stays (arXiv:1812.05905, eq. 18).

        loss = -log alpha mean(log pi(a|s) + target)

    Args:
        start: where it starts.
        entropy: the target.
        learning: None: it stays at `start`.

    Shapes: log-probabilities [P, N] -> [P].

    >>> from types import SimpleNamespace as Rows
    >>> from etude.core.replay_slots import Choice
    >>> read = Rows(network=Heat(math.e, 1, target=-1.0), policy=lambda: Choice(None, torch.tensor([[3.0, 0.0]])))
    >>> Temperature().loss(read)  # the entropy is too low: minus log alpha times 0.5
    tensor([-0.5000], grad_fn=<NegBackward0>)
    """

    offers_temperature: ClassVar[bool] = True
    start: Positive = 1.0
    entropy: EntropyTarget = PerAction()
    learning: Learning | None = Learning(Adam(lr=3e-4))  # type: ignore[assignment]  # none: it does not learn

    def objection(self, method: Method) -> str | None:
        return super().objection(method) or unscored(method)

    def about_target(self) -> str | None:
        return None

    def build(self, shape: tuple[int, ...], actions: Space[Any], population: Population) -> Heat:
        return Heat(self.start, population.size, self.entropy.of(actions))

    def loss(self, read: ReplayReading) -> Tensor:
        logp, heat = read.policy().logp, read.network
        assert logp is not None and isinstance(heat, Heat)
        return -(heat.numbers[:, 0] * (logp.detach() + heat.target).mean(1))

    def offers(self, network: nn.Module) -> Mapping[str, Tensor]:
        return {"temperature": network()[:, 0].exp()}
