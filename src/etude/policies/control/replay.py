"""Policies that learn from what is stored: one action, a distribution, or whatever the critic says is best."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from gymnasium.spaces import Discrete
from torch import Tensor, nn

from etude.core.control import VectorEnvironment
from etude.core.encoder_slots import Encoding, ReplayEncoder, encoder_of
from etude.core.errors import ConfigError
from etude.core.learners import Learning
from etude.core.population import Population
from etude.core.replay_slots import ReplayPolicy
from etude.core.step_slots import Initializer, Network, Observations
from etude.optimizers.adam import Adam
from etude.policies.control.actor import Actor
from etude.policies.control.any_units import any_space
from etude.policies.control.initializers import FanIn
from etude.policies.control.leaves import Leaves
from etude.policies.control.networks import MLP, Chain, Linear, Plain
from etude.policies.control.units import Best, MeanBox, Point, Softmax, SquashedBox, Units, box_bounds, choice_count

if TYPE_CHECKING:
    from gymnasium import spaces

    from etude.core.method import Method

WIDE = MLP(hidden=(256, 256), activation="relu", initializer=FanIn())
"""Two layers of 256, as torch starts them: what TD3 and SAC are published with."""


class NetworkPolicy(ReplayPolicy, abstract=True):
    """What policies with a network of their own share.

    Args:
        observations: what happens to observations first, in this order; the critic sees them so too.
        last: where the last layer starts.
    """

    reads_features: ClassVar[bool] = True
    network: Network = WIDE
    observations: tuple[Observations, ...] = ()
    last: Initializer = FanIn()
    learning: Learning | None = Learning(Adam(lr=3e-4))

    def distribution(self, actions: spaces.Space[Any]) -> Units:
        """What is done with the network's outputs."""
        raise NotImplementedError

    def build(
        self, shape: tuple[int, ...], actions: spaces.Space[Any], population: Population,
        encoder: ReplayEncoder | None = None,
    ) -> Actor:  # fmt: skip
        spread, taken, encoding = self.distribution(actions), shape, None
        transforms, shape = transformed(self.observations, shape, population)
        if encoder is not None:
            encoding = encoder.build(shape, actions, population)
            shape = (cast(Encoding, encoding).width,)
        body, width = self.network.build(shape, population, "policy")
        head = Linear(population, "policy.head", width, spread.parameters - spread.free, start=self.last)
        free = torch.zeros(population.size, 1, spread.free)
        return Actor(transforms, body, None, head, spread, free, taken, shape, width, encoding)

    def actor(
        self, method: Method, shape: tuple[int, ...], actions: spaces.Space[Any], population: Population
    ) -> Actor:
        own = copy(self)
        own.settle("observations", (*seen_through(method), *self.observations))  # members may have numbers of their own
        return own.build(shape, actions, population, encoder_of(method))

    def watch(self, environment: VectorEnvironment) -> VectorEnvironment:
        for part in self.observations:
            environment = part.watch(environment)
        return environment


def seen_through(method: Method) -> tuple[Observations, ...]:
    """What a method does to logs and to what the policy sees alike: it comes first."""
    return tuple(part for part in method.slots().get("transforms", ()) if isinstance(part, Observations))


def transformed(
    parts: tuple[Observations, ...], shape: tuple[int, ...], population: Population
) -> tuple[list[nn.Module], tuple[int, ...]]:
    """The modules of `observations`, and the shape that they make. Raises ConfigError for masks, which nobody reads."""
    if isinstance(shape, Leaves):
        if shape.masked:
            raise ConfigError(
                "The environment says which actions are allowed (action_mask), and methods that learn from a replay do "
                "not ask: take ppo, or leave the mask out."
            )
        shape = shape.seen
    modules = []
    for part in parts:
        module, shape = part.build(shape, population)
        modules.append(module)
    return modules, shape


def acting(method: Method, shape: tuple[int, ...], actions: spaces.Space[Any], population: Population) -> Actor:
    """Who acts: the policy's module, with the method's planner in it and the critic that this asks."""
    slots = method.slots()
    actor = cast(Actor, slots["policy"].actor(method, shape, actions, population))  # as the slot says
    planner = slots.get("planner")
    if planner is not None:
        if "critic" not in actor.held:
            actor.held["critic"] = slots["critic"].build(actor.shape, actions, population)
        actor.planner = planner.build(actor, population)
    return actor


class DeterministicPolicy(NetworkPolicy):
    """One action at every observation, tanh of the network's outputs scaled to the bounds (arXiv:1509.02971).

    Shapes: observations [P, N, ...] -> actions [P, N, A].

    >>> from etude.core.population import Member
    >>> from gymnasium.spaces import Box
    >>> actor = DeterministicPolicy().build((3,), Box(-2.0, 2.0, (1,)), Population([Member(0), Member(1)]))
    >>> actor.distribution.mode(torch.tensor([0.0, 100.0])[:, None]).flatten().tolist()
    [0.0, 2.0]
    """

    def distribution(self, actions: spaces.Space[Any]) -> Units:
        return Point(*box_bounds(actions, "DeterministicPolicy"))


class SquashedPolicy(NetworkPolicy):
    """tanh of a normal whose mean and deviation the network says, scaled to the bounds (arXiv:1812.05905).

    Args:
        least, most: between which the logarithm of the deviation is kept.

    Shapes: observations [P, N, ...] -> actions [P, N, A], log-probabilities [P, N] of actions in units.

    >>> from gymnasium.spaces import Box
    >>> normal = SquashedPolicy().distribution(Box(-2.0, 2.0, (1,)))
    >>> choice = normal.chosen(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0]]))
    >>> round(choice.logp.item(), 4)  # of a standard normal at its mean: tanh has slope 1 there
    -0.9189
    """

    scores: ClassVar[bool] = True
    least: float = -20.0
    most: float = 2.0

    def check(self) -> None:
        if not self.least < self.most:
            raise ConfigError(f"SquashedPolicy.least must be below most, got {self.least} and {self.most}.")

    def distribution(self, actions: spaces.Space[Any]) -> Units:
        return SquashedBox(*box_bounds(actions, "SquashedPolicy"), self.least, self.most)


class SquashedMeanPolicy(NetworkPolicy):
    """A normal whose mean is tanh of the network's outputs, and whose deviations no observation moves.

    As in the author's code of IQL (arXiv:2110.06169): actions are cut at the bounds where it acts, densities are the
    normal's.

    Args:
        least, most: between which the logarithm of the deviation is kept; it starts at 0.

    Shapes: observations [P, N, ...] -> actions [P, N, A], log-probabilities [P, N] of actions in units.

    >>> from gymnasium.spaces import Box
    >>> normal = SquashedMeanPolicy().distribution(Box(-2.0, 2.0, (1,)))
    >>> choice = normal.chosen(torch.tensor([[100.0, 0.0]]), torch.tensor([[-0.5]]))
    >>> [round(x, 4) for x in (choice.actions.item(), choice.logp.item())]
    [0.5, -1.0439]
    """

    scores: ClassVar[bool] = True
    least: float = -5.0
    most: float = 2.0

    def check(self) -> None:
        if not self.least < self.most:
            raise ConfigError(f"SquashedMeanPolicy.least must be below most, got {self.least} and {self.most}.")

    def distribution(self, actions: spaces.Space[Any]) -> Units:
        return MeanBox(*box_bounds(actions, "SquashedMeanPolicy"), self.least, self.most)


class SoftmaxPolicy(NetworkPolicy):
    """A chance of every choice, of which formulas see all (arXiv:1910.07207).

    Shapes: observations [P, N, ...] -> choices [P, N, 1], chances [P, N, A].

    >>> from gymnasium.spaces import Discrete
    >>> softmax = SoftmaxPolicy().distribution(Discrete(2))
    >>> choice = softmax.chosen(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
    >>> choice.actions.tolist(), choice.chances.tolist(), round(choice.logp.item(), 4)
    ([[0.0]], [[0.5, 0.5]], -0.6931)
    """

    scores: ClassVar[bool] = True
    of_choices: ClassVar[bool] = True

    def distribution(self, actions: spaces.Space[Any]) -> Units:
        return Softmax(choice_count(actions, "SoftmaxPolicy"))


class StochasticPolicy(NetworkPolicy):
    """A chance of every choice, or of a Box a normal whose mean and deviation the network says (arXiv:2410.14606).

        choices: softmax(x),   numbers: N(m, log(1 + exp s)^2) for the outputs m, s, cut at the bounds where it acts

    Of several choices, and of Dict and Tuple, each is drawn by itself, and their log-probabilities add up. Numbers
    without bounds are in the environment's own units.

    Shapes: observations [P, N, ...] -> choices [P, N, 1], or actions [P, N, A] in units; log-probabilities [P, N].

    >>> from gymnasium.spaces import Box, Discrete
    >>> normal = StochasticPolicy().distribution(Box(-2.0, 2.0, (1,)))
    >>> choice = normal.chosen(torch.tensor([[1.5, 0.0]]), torch.tensor([[1.0]]))
    >>> [round(x, 4) for x in (choice.actions.item(), choice.logp.item())]  # the deviation is log 2
    [2.1931, -1.0524]
    >>> type(StochasticPolicy().distribution(Discrete(2))).__name__
    'Softmax'
    >>> from gymnasium.spaces import MultiDiscrete
    >>> StochasticPolicy().distribution(MultiDiscrete([3, 2])).parameters
    5
    """

    scores: ClassVar[bool] = True

    def distribution(self, actions: spaces.Space[Any]) -> Units:
        return Softmax(int(actions.n)) if isinstance(actions, Discrete) else any_space(actions, self.name)


class FromCritic(ReplayPolicy):
    """The choice that the critic says is worth most: what is evaluated and exported is the critic.

    Args:
        observations: what happens to observations first; the critic sees them so.

    Shapes: values [P, N, A] -> choices [P, N, 1].

    >>> Best(3).mode(torch.tensor([[[0.1, 0.7, 0.2]]])).tolist()
    [[[1.0]]]
    """

    observations: tuple[Observations, ...] = ()
    made_of_critic: ClassVar[bool] = True
    of_choices: ClassVar[bool] = True

    def objection(self, method: Method) -> str | None:
        if self.learning is not None:
            return "has nothing of its own to learn: leave out policy.learning."
        return super().objection(method)

    def actor(
        self, method: Method, shape: tuple[int, ...], actions: spaces.Space[Any], population: Population
    ) -> Actor:
        critic = method.slots()["critic"]
        transforms, seen = transformed((*seen_through(method), *self.observations), shape, population)
        spread = Best(choice_count(actions, "FromCritic"))
        network = critic.build(seen, actions, population)
        free = torch.zeros(population.size, 1, 0)
        return Actor(transforms, network, None, Said(critic.head), spread, free, shape, seen, spread.count)

    def watch(self, environment: VectorEnvironment) -> VectorEnvironment:
        for part in self.observations:
            environment = part.watch(environment)
        return environment


class Said(Plain):
    """What a critic's outputs [P, M, N, A, K] say of the choices, [P, N, A]: means over its head and its M."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head = head

    def chain(self) -> Chain | None:
        return () if self.head.says == "numbers" and self.head.size == 1 else None

    def forward(self, outputs: Tensor) -> Tensor:
        values: Tensor = self.head.mean(outputs)
        return values[:, 0] if values.shape[1] == 1 else values.mean(1)
