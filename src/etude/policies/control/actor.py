"""The policy of control: what it sees of an observation, a network, a memory, a distribution over actions."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from etude.core.control import VectorEnvironment
from etude.core.errors import ConfigError
from etude.core.fields import Positive
from etude.core.population import Population
from etude.core.step_slots import Memory, Network, Observations, Policy
from etude.policies.control.chains import is_one_row, narrow, of_one_row
from etude.policies.control.distributions import Categorical, Distribution, distribution
from etude.policies.control.leaves import Leaves
from etude.policies.control.memory import Past
from etude.policies.control.networks import MLP, Linear, Plain, chained

if TYPE_CHECKING:
    from gymnasium import spaces

    from etude.core.method import Method

FORBIDDEN = -1e8
"""Logit of what a mask does not allow (arXiv:2006.14171): exp of it is 0 beside any other, and 0 times it is 0."""


class ActorPolicy(Policy):
    """A network with one output per parameter of the action distribution.

    Args:
        observations: what happens to observations first, in this order (stack frames, normalise).
        memory: what is kept of earlier steps, read after the network; None: the policy reacts to what it sees now.
        gain: scale of the last layer's weights; small, so that all actions are about equally likely at first.
        log_std: of Gaussian actions, at the start; learned, the same in every state.
        squash: whether continuous actions pass through tanh onto their bounds, instead of being clipped there.

    Shapes: observations [P, N, ...] -> parameters [P, N, K].

    >>> from etude.core.population import Member
    >>> from gymnasium.spaces import Discrete
    >>> actor = ActorPolicy().build((4,), Discrete(2), Population([Member(0), Member(1), Member(2)]))
    >>> actor(torch.zeros(3, 5, 4)).shape
    torch.Size([3, 5, 2])
    """

    network: Network = MLP()
    observations: tuple[Observations, ...] = ()
    memory: Memory | None = None
    gain: Positive = 0.01
    log_std: float = 0.0
    squash: bool = False

    def objection(self, method: Method) -> str | None:
        slots = method.slots()
        experience, minibatches = slots.get("experience"), slots.get("minibatches", 1)
        if self.memory is None or experience is None or minibatches <= experience.environments:
            return None
        return (
            f"learns from whole sequences, since it has a memory: {experience.environments} environments cannot "
            f"be divided into {minibatches} minibatches."
        )

    def build(self, shape: tuple[int, ...], actions: spaces.Space[Any], population: Population) -> Actor:
        spread, taken = distribution(actions, self.squash), shape
        if isinstance(shape, Leaves):
            _check_mask(shape, spread, actions)
            shape = shape.seen
        transforms = []
        for part in self.observations:
            module, shape = part.build(shape, population)
            transforms.append(module)
        body, width = self.network.build(shape, population, "policy")
        memory = None
        if self.memory is not None:
            memory, width = self.memory.build(width, population, "policy.memory")
        head = Linear(population, "policy.head", width, spread.parameters - spread.free, self.gain)
        log_std = torch.zeros(population.size, 1, spread.free) + self.log_std
        return Actor(transforms, body, memory, head, spread, log_std, taken, shape, width)

    def watch(self, environment: VectorEnvironment) -> VectorEnvironment:
        for part in self.observations:
            environment = part.watch(environment)
        return environment


@runtime_checkable
class Observing(Protocol):
    """A transform that learns from observations."""

    def observe(self, observations: Tensor, weights: Tensor | None) -> None:
        """Learn from observations [P, N, ...] whose weight [P, N] is 1."""
        ...


class Actor(Plain):
    """Observations [P, N, ...] to parameters [P, N, K] of `distribution`, in three steps: `see`, `features`, `say`.

    Args:
        taken: the shape of one observation as the environment gives it.
        shape: of what the body (and a critic) sees of it.
        width: of the features, which a critic may share.
        encoder: what is seen goes through it last; its learning is another's.
        held: networks that it acts by besides, of learners by name, whose learning is theirs.
    """

    def __init__(
        self, transforms: list[nn.Module], body: nn.Module, memory: nn.Module | None, head: nn.Module,
        distribution: Distribution, log_std: Tensor, taken: tuple[int, ...], shape: tuple[int, ...], width: int,
        encoder: nn.Module | None = None, held: Mapping[str, nn.Module] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.encoder, self.held = encoder, nn.ModuleDict(dict(held or {}))
        self.planner: nn.Module | None = None  # acts instead of the mode (`core.replay_slots.ReplayPlanner`)
        self.transforms, self.body, self.memory, self.head = nn.ModuleList(transforms), body, memory, head
        self.distribution, self.shape, self.width = distribution, shape, width
        self.leaves = taken if isinstance(taken, Leaves) else None
        if distribution.free:
            self.log_std = nn.Parameter(log_std)
        chain = None if memory is not None or distribution.free else chained(body, head)
        self.chain = None if chain is None or any(narrow(chain)) else chain

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.parameters()).device

    def see(self, observations: Tensor) -> Tensor:
        """What the body gets: what is seen, and what the encoder makes of it."""
        x = self.look(observations)
        return x if self.encoder is None else self.encoder(x)

    def look(self, observations: Tensor) -> Tensor:
        """What is seen of observations: images in [0, 1], everything else as it is, then the transforms."""
        x = self._scaled(observations)
        for transform in self._modules["transforms"]._modules.values():  # type: ignore[union-attr]  # as in `Linear`
            x = transform(x)  # type: ignore[misc]
        return x

    def without_held(self) -> Actor:
        """The same modules but for those of other learners that it acts by."""
        own = copy.copy(self)
        own._modules = {**self._modules, "held": nn.ModuleDict()}
        own._modules.pop("planner", None)
        own.planner = None
        return own

    def without_others(self) -> Actor:
        """The same modules but for all that others learn: what learns as the policy."""
        own = self.without_held()
        own._modules = {k: m for k, m in own._modules.items() if k != "encoder"}
        own.encoder = None
        return own

    def features(self, seen: Tensor, past: Past | None = None) -> tuple[Tensor, Tensor | None]:
        """[P, N, width] for the head, and what a memory keeps after every step, [P, N, S]; it must know the past."""
        features = self.body(seen)
        if self.memory is None:
            return features, None
        if past is None:
            raise ValueError("This policy has a memory: act through a Player, which carries it from step to step.")
        outputs, states = self.memory(features, past)
        return outputs, states

    def allowed(self, observations: Tensor) -> Tensor | None:
        """[P, N, K] which options the environment allows after observations [P, N, ...]; None where it says nothing."""
        return None if self.leaves is None else self.leaves.allowed(observations)

    def say(self, features: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Parameters [P, N, K]; the logits of options that are not allowed are so low that their probability is 0."""
        parameters: Tensor = self.head(features)
        if allowed is not None:
            return torch.where(allowed, parameters, FORBIDDEN)
        if not self.distribution.free:
            return parameters
        return torch.cat([parameters, self.log_std.expand(-1, parameters.shape[1], -1)], -1)

    def likeliest(self, seen: Tensor, parameters: Tensor) -> Tensor:
        """[P, N, A] what is done without chance at what is seen, of which the policy says these parameters [P, N, K]:
        the distribution's mode, or what a planner does in its place.
        """
        if self.planner is None:
            return self.distribution.mode(parameters)
        spread: Any = self.distribution  # one in units, as planners act in
        found: Tensor = spread.outside(self.planner(self, seen, parameters))
        return found

    def forward(self, seen: Tensor, past: Past | None = None) -> Tensor:
        if self.memory is not None or self.distribution.free:
            return self.say(self.features(seen, past)[0])
        if self.chain is not None and is_one_row(self.chain, seen):
            return of_one_row(self.chain, seen)
        own = self._modules  # read directly, as in `Linear`
        said: Tensor = own["head"](own["body"](seen))  # type: ignore[misc]
        return said

    @torch.no_grad()
    def observe(self, observations: Tensor, weights: Tensor | None = None) -> None:
        """Let the transforms that learn from observations [P, N, ...] do so, from those whose weight [P, N] is 1."""
        x = self._scaled(observations)
        for transform in self.transforms:
            seen = transform(x)
            if isinstance(transform, Observing):
                transform.observe(x, weights)
            x = seen

    def _scaled(self, observations: Tensor) -> Tensor:
        if self.leaves is not None:
            return self.leaves.see(observations)
        return observations.float() / 255 if observations.dtype == torch.uint8 else observations


def _check_mask(shape: Leaves, spread: Distribution, actions: spaces.Space[Any]) -> None:
    """Raise ConfigError for a mask that does not say of each option of the actions whether it is allowed."""
    if not shape.masked:
        return
    if not isinstance(spread, Categorical):
        raise ConfigError(f"Masks say which choices are allowed, of Discrete and MultiDiscrete actions; got {actions}.")
    if shape.masked != spread.parameters:
        raise ConfigError(
            f"The action_mask has {shape.masked} numbers, and there are {spread.parameters} options in {actions}: it "
            "needs one for each."
        )


class Player:
    """An actor in E environments of every member; carries what it remembers from step to step.

    `memory` is [P, E, S] (S = 0 without a memory), `begins` [P, 1, E] says where an episode begins.
    """

    def __init__(self, actor: Actor, members: int, environments: int) -> None:
        self.actor = actor
        size = 0 if actor.memory is None else actor.memory.size
        assert isinstance(size, int)
        self.memory = torch.zeros(members, environments, size, device=actor.device)
        self.begins = torch.ones(members, 1, environments, dtype=torch.bool, device=actor.device)

    def features(self, seen: Tensor) -> Tensor:
        """Read one step, [P, E, ...], and remember it; returns what the actor's head reads."""
        features, states = self.actor.features(seen, Past(self.memory, self.begins))
        if states is not None:
            self.memory = states
            self.begins = torch.zeros_like(self.begins)
        return features

    def act(self, observations: Tensor) -> Tensor:
        """Parameters [P, E, K] of the next actions after observations [P, E, ...]."""
        return self.actor.say(self.features(self.actor.see(observations)), self.actor.allowed(observations))

    def likeliest(self, observations: Tensor) -> Tensor:
        """The next actions [P, E, A] without chance, as the environment takes them."""
        seen = self.actor.see(observations)
        return self.actor.likeliest(seen, self.actor.say(self.features(seen), self.actor.allowed(observations)))

    def ended(self, done: Tensor) -> None:
        """Forget where episodes ended, [P, E]: what is seen next begins another."""
        if self.actor.memory is not None or done.device == self.begins.device:
            self.begins = done[:, None].to(self.begins.device)
