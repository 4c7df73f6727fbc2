"""What learns beside the policy: critics, judges, discriminators, models of rewards or of the world.

A learner is trained in one of two ways: `Joint`, by the policy's own step, of whose loss its loss is a term (a value
head, a shared trunk); or by steps of its own, when and how its `Learning` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol

from etude.core.fields import Count, Interval, WholeNumber
from etude.core.part import Need, Part
from etude.core.step_slots import StepOptimizer
from etude.core.transitions import Transitions

if TYPE_CHECKING:
    from torch import Tensor, nn

    from etude.core.population import Population


class Target(Part):
    """A copy of a learner's network that follows it slowly, for losses whose targets must not chase themselves.

    copy <- copy + rate (network - copy), after every `every` times that the network has learned; a rate of 1 copies.

    Shapes: parameters [P, D]. A copy at 0 goes a quarter of the way to a network at 2:

    >>> 0.0 + Target(rate=0.25).rate * (2.0 - 0.0)
    0.5
    """

    slot = "target"
    rate: Annotated[float, Interval(gt=0, le=1)] = 1.0
    every: Count = 1


class Learning(Part):
    """When and how a learner takes steps of its own.

    Args:
        optimizer: takes the steps; its schedule is the learner's, over all steps of the run.
        every: training steps of the policy between two times.
        epochs, minibatches: passes over the data of one time, and steps in each.
        warmup: training steps before the first time.
        order: before or after the policy's own update.
        target: a slow copy, for losses that read one.

    >>> [Learning(optimizer=StepOptimizer(), every=2, warmup=1).turn(n) for n in range(5)]
    [None, 0, None, 1, None]
    """

    slot = "learning"
    optimizer: StepOptimizer
    every: Count = 1
    epochs: Count = 1
    minibatches: Count = 1
    warmup: WholeNumber = 0
    order: Literal["before", "after"] = "after"
    target: Target | None = None

    def turn(self, number: int) -> int | None:
        """The how-manieth time training step `number` is, from 0; None if the learner rests."""
        since = number - self.warmup
        return since // self.every if since >= 0 and since % self.every == 0 else None


class Reading(Protocol):
    """What a learner may read of some rows, each quantity computed once; after a step it is read anew."""

    @property
    def batch(self) -> Transitions:
        """The rows [P, N, ...]."""
        ...

    @property
    def seen(self) -> Tensor:
        """What the policy sees of their observations."""
        ...

    @property
    def says(self) -> Tensor:
        """What the learner's network says of `seen`, with gradient."""
        ...

    @property
    def network(self) -> nn.Module:
        """The learner's network."""
        ...

    @property
    def target(self) -> nn.Module:
        """Its slow copy."""
        ...

    @property
    def networks(self) -> Mapping[str, nn.Module]:
        """All learners' networks: 'critic', and the others by the names of their parts."""
        ...

    @property
    def targets(self) -> Mapping[str, nn.Module]:
        """Slow copies, of those learners that have one."""
        ...


class Learner(Part, abstract=True):
    """A network that learns beside the policy."""

    slot = "learners"
    joint: ClassVar[bool] = False
    """Whether the policy's own step trains it."""
    shared: ClassVar[bool] = False
    """Whether its network reads what the policy's body says [P, N, width] instead of what the policy sees."""


class Joint(Learner, abstract=True):
    """A learner whose loss is a term of the policy's, and which the policy's own step trains."""

    joint: ClassVar[bool] = True

    def loss(self, batch: Any, policy: Any) -> Tensor:
        """Shaped as log-probabilities, coefficient included: of TokenBatch and TokenLogProbs, [B, T]; or of
        Transitions and ActionLogProbs, [P, N]. `batch.values` are the old values, `batch.returns` the targets."""
        raise NotImplementedError


class StepLearner(Learner, abstract=True):
    """A learner of control: a network of every member's own, trained by steps of its own."""

    reads_target: ClassVar[bool] = False
    """Whether its loss reads its slow copy."""
    learning: Learning

    @property
    def label(self) -> str:
        """What its metrics begin with."""
        return self.name.replace("-", "_")

    def objection(self, method: Any) -> str | None:
        if Need.KL in self.learning.optimizer.needs:
            return f"has no divergence from what acted, which {type(self.learning.optimizer).__name__} goes by."
        if self.reads_target != (self.learning.target is not None):
            wants = "reads a slow copy of its network: set" if self.reads_target else "reads no slow copy: leave out"
            return f"{wants} learning.target."
        size = method.experience.steps * method.experience.environments if method.experience is not None else None
        if size is not None and size < self.learning.minibatches:
            return f"cannot divide a rollout of {size} steps into {self.learning.minibatches} minibatches."
        return None

    def build(self, shape: tuple[int, ...], actions: Any, population: Population) -> nn.Module:
        """The network for what is seen [P, N, *shape] and a Gymnasium space of actions."""
        raise NotImplementedError

    def loss(self, read: Reading) -> Tensor:
        """What it minimises on the rows of `read`: [P]."""
        raise NotImplementedError

    def offers(self, read: Reading) -> Mapping[str, Tensor]:
        """What it says of a new rollout before it is rewarded, [P, N, ...] by name: `batch.offers` for rewards."""
        return {}


# Critics


class Critic(Joint, abstract=True):
    """How the values of tokens are learned."""

    slot = "critic"


class StateCritic(Learner, abstract=True):
    """A critic of control: from what the policy sees, or its features, to values."""

    slot = "critic"

    def build(self, shape: tuple[int, ...], actions: Any, population: Population) -> nn.Module:
        """The network that maps what is seen [P, N, *shape] to values [P, N]."""
        raise NotImplementedError
