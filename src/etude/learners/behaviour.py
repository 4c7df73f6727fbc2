"""How likely each choice was in the logs, as a network beside the critic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from etude.core.encoder_slots import encoder_of
from etude.core.learners import Learning
from etude.core.population import Population
from etude.core.replay_slots import ReplayLearner, ReplayReading
from etude.core.step_slots import Initializer, Network
from etude.optimizers.adam import Adam
from etude.policies.control.initializers import FanIn
from etude.policies.control.networks import MLP, Linear, Plain
from etude.policies.control.units import choice_count

if TYPE_CHECKING:
    from gymnasium import Space

    from etude.core.method import Method


class Logits(Plain):
    """What is seen [P, N, D] to a logit of each of A choices, [P, N, A]."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, seen: Tensor) -> Tensor:
        said: Tensor = self.head(self.body(seen))
        return said


class BehaviourModel(ReplayLearner):
    """G(a|s), how likely a choice was at an observation in the logs: cloned by a network of its own.

        loss = -mean log G(a|s),    G = softmax(i(s))

    Shapes: observations [P, N, D] -> logits [P, N, A].

    >>> from etude.core.population import Member
    >>> from gymnasium.spaces import Discrete
    >>> two = Population([Member(0), Member(1)])
    >>> BehaviourModel(network=MLP(hidden=(8,))).build((3,), Discrete(4), two)(torch.zeros(2, 5, 3)).shape
    torch.Size([2, 5, 4])
    """

    network: Network = MLP(hidden=(256, 256), activation="relu", initializer=FanIn())
    last: Initializer = FanIn()
    learning: Learning = Learning(Adam(lr=1e-3))

    def objection(self, method: Method) -> str | None:
        encoder, policy = encoder_of(method), method.slots()["policy"]
        if encoder is not None:
            return f"reads what is seen, and {encoder.name} stands before it: leave it out."
        if policy is not None and not policy.of_choices:
            return f"knows how likely choices were, and {type(policy).__name__} makes numbers: leave it out."
        return super().objection(method)

    def about_target(self) -> str | None:
        return None

    def build(self, shape: tuple[int, ...], actions: Space[Any], population: Population) -> Logits:
        body, width = self.network.build(shape, population, self.name)
        count = choice_count(actions, "BehaviourModel")
        return Logits(body, Linear(population, f"{self.name}.head", width, count, start=self.last))

    def loss(self, read: ReplayReading) -> Tensor:
        logs: Tensor = read.network(read.seen("here")).log_softmax(-1)
        return -logs.gather(-1, read.batch.actions.long())[..., 0].mean(1)


def behaviour(read: ReplayReading, at: Any = "here") -> Tensor:
    """log G, [P, N, A], of a method's `BehaviourModel`, without gradient."""
    with torch.no_grad():
        logs: Tensor = read.beside(BehaviourModel.name)(read.seen(at)).log_softmax(-1)
    return logs


def without_behaviour(method: Method) -> str | None:
    """Why nobody knows how likely choices were; None: a `BehaviourModel` does."""
    if not any(isinstance(part, BehaviourModel) for part in method.slots()["learners"]):
        return "asks how likely choices were in the logs, which nobody says: set learners=behaviour-model."
    return None
