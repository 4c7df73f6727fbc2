"""What learns beside the policy: critics, judges, discriminators, models of rewards or of the world.

A learner is trained in one of two ways: `Joint`, by the policy's own step, of whose loss its loss is a term (a value
head, a shared trunk); or by steps of its own, when and how its `Learning` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol

from etude.core.batches import TokenBatch
from etude.core.fields import Count, Interval, WholeNumber
from etude.core.optimizer_slots import TokenOptimizer
from etude.core.part import Need, Part
from etude.core.step_slots import StepOptimizer
from etude.core.transitions import Transitions

if TYPE_CHECKING:
    from gymnasium import Space
    from torch import Tensor, nn

    from etude.core.method import Method
    from etude.core.population import Population


class Target(Part):
    """A copy of a learner's network that follows it slowly, for losses whose targets must not chase themselves.

    copy <- copy + rate (network - copy), after every `every` passes of the network over its data, from a replay after
    every `every` times that it has learned; a rate of 1 copies.

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
        epochs, minibatches: passes over the data of one time, and steps in each. From a replay a pass is an update on
            rows that are drawn for it.
        warmup: training steps before the first time.
        order: before or after the policy's own update.
        target: a slow copy, for losses that read one.

    >>> [Learning(optimizer=StepOptimizer(), every=2, warmup=1).turn(n) for n in range(5)]
    [None, 0, None, 1, None]
    """

    slot = "learning"
    optimizer: StepOptimizer | TokenOptimizer
    every: Count = 1
    epochs: Count = 1
    minibatches: Count = 1
    warmup: WholeNumber = 0
    order: Literal["before", "after"] = "after"
    target: Target | None = None

    def lasting(self) -> Learning:
        """What of it goes on from stage to stage: what takes the steps and what follows them, not when."""
        return self.replace(every=1, epochs=1, minibatches=1, warmup=0, order="after")

    def turn(self, number: int) -> int | None:
        """The how-manieth time training step `number` is, from 0; None if the learner rests."""
        since = number - self.warmup
        return since // self.every if since >= 0 and since % self.every == 0 else None


class Networks(Protocol):
    """The networks that a learner may read."""

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
        """All learners' networks: 'critic' in control, and the others by the names of their parts."""
        ...

    @property
    def targets(self) -> Mapping[str, nn.Module]:
        """Slow copies, of those learners that have one."""
        ...


class Reading(Networks, Protocol):
    """What a learner of control may read of some rows, each quantity computed once; after a step it is read anew."""

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


class TokenReading(Networks, Protocol):
    """What a learner of tokens may read of some rows, as `Reading`."""

    @property
    def batch(self) -> TokenBatch:
        """The rows [B, T]; for a learner that needs 'hidden' with the states that their tokens were sampled from."""
        ...

    @property
    def says(self) -> Tensor:
        """What the learner's network says of `batch.hidden` [B, T, H], with gradient."""
        ...


class ValueNetwork(Protocol):
    """A network that says values of tokens, as a loop trains it."""

    policy: Any
    """What rows are cut into micro-batches for."""

    def values(self, batch: TokenBatch) -> Tensor:
        """[B, T] of the text before each action token, with gradient."""
        ...

    def parameters(self) -> list[nn.Parameter]:
        """What is trained."""
        ...

    def updated(self) -> None:
        """Say that a step changed the parameters."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """All that is trained, by name."""
        ...

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Undo `tensors`."""
        ...


class Learner(Part, abstract=True):
    """A network that learns beside the policy."""

    slot = "learners"
    joint: ClassVar[bool] = False
    """Whether the policy's own step trains it."""
    shared: ClassVar[bool] = False
    """Whether its network reads what the policy's body says [P, N, width] instead of what the policy sees."""

    @property
    def label(self) -> str:
        """What its metrics begin with."""
        return self.name.replace("-", "_")


# Trained by the policy's own step


class Joint(Learner, abstract=True):
    """A learner whose loss is a term of the policy's, and which the policy's own step trains."""

    joint: ClassVar[bool] = True

    def loss(self, batch: Any, policy: Any) -> Tensor:
        """Shaped as log-probabilities, coefficient included: of TokenBatch and TokenLogProbs, [B, T]; or of
        Transitions and ActionLogProbs, [P, N].

        A critic finds what it says in `policy.values`; `batch.values` are the old values, `batch.returns` the targets.
        A head finds it in `policy.said[self.name]`.
        """
        raise NotImplementedError


class TokenHead(Joint, abstract=True):
    """An auxiliary head on the last states of a model of tokens, which it helps to shape."""

    slot = "learners"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.HIDDEN})

    def build(self, width: int) -> nn.Module:
        """The network for states [B, T, width]; random numbers of torch's generator are the run's own meanwhile."""
        raise NotImplementedError


class StepHead(Joint, abstract=True):
    """An auxiliary head of control, on what the policy's body says if it is `shared`."""

    slot = "learners"
    shared: ClassVar[bool] = True

    def build(self, shape: tuple[int, ...], actions: Space[Any], population: Population) -> nn.Module:
        """The network for what the policy's body says, `shape` (width,), or for what the policy sees."""
        raise NotImplementedError


# Trained by steps of their own


class Apart(Learner, abstract=True):
    """A learner that takes steps of its own."""

    reads_target: ClassVar[bool] = False
    """Whether its loss reads its slow copy."""
    learning: Learning

    def about_target(self) -> str | None:
        """The objection to a slow copy that nobody reads, or to a reader without one."""
        if self.reads_target != (self.learning.target is not None):
            wants = "reads a slow copy of its network: set" if self.reads_target else "reads no slow copy: leave out"
            return f"{wants} learning.target."
        return None


class StepLearner(Apart, abstract=True):
    """A learner of control: a network of every member's own."""

    def objection(self, method: Method) -> str | None:
        optimizer = self.learning.optimizer
        if not isinstance(optimizer, StepOptimizer):
            return f"learns for all members of a population at once, which {type(optimizer).__name__} cannot step."
        if Need.KL in optimizer.needs:
            return f"has no divergence from what acted, which {type(optimizer).__name__} goes by."
        experience = method.slots()["experience"]
        size = experience.steps * experience.environments if experience is not None else None
        if size is not None and size < self.learning.minibatches:
            return f"cannot divide a rollout of {size} steps into {self.learning.minibatches} minibatches."
        return self.about_target()

    @property
    def count(self) -> int:
        """How many networks each member has: rows of its tensors are the members' networks one after another."""
        return 1

    def build(self, shape: tuple[int, ...], actions: Space[Any], population: Population) -> nn.Module:
        """The network for what is seen [P, N, *shape] and a Gymnasium space of actions."""
        raise NotImplementedError

    def loss(self, read: Reading) -> Tensor:
        """What it minimises on the rows of `read`: [P]."""
        raise NotImplementedError

    def offers(self, read: Reading) -> Mapping[str, Tensor]:
        """What it says of a new rollout before it is rewarded, [P, N, ...] by name: `batch.offers` for rewards."""
        return {}


class TokenLearner(Apart, abstract=True):
    """A learner of tokens: a judge, a discriminator, a model of rewards.

    One that reads the policy's states says so with 'hidden' among its `needs`. Minibatches are of whole groups.
    """

    per_token: ClassVar[bool] = False
    """Whether its loss is a sum over tokens, each times its share of the minibatch (`batch.shares`), by a network that
    reads rows itself and has a `policy` to cut them for: then memory decides how many rows it reads at a time."""
    tilts: ClassVar[bool] = False
    """Whether the policy is to be sampled from with what it says added to the logits (`tilt`)."""

    def objection(self, method: Method) -> str | None:
        optimizer = self.learning.optimizer
        if not isinstance(optimizer, TokenOptimizer):
            return f"is one network, which {type(optimizer).__name__} cannot step: it is for populations."
        if optimizer.halves:
            return f"computes no gradients of halves, which {type(optimizer).__name__} goes by."
        return self.about_target()

    def build(self, width: int) -> nn.Module:
        """The network, for a policy whose states are [B, T, width]; random numbers as for `TokenHead`."""
        raise NotImplementedError

    def build_beside(self, policy: Any) -> nn.Module:
        """The network beside this policy (an `etude.policies.language.LanguagePolicy`), as it begins."""
        return self.build(policy.width)

    def tilt(self, network: nn.Module) -> Any:
        """What is added to the policy's logits where tokens are drawn (an `etude.policies.protocols.Tilt`), as the
        network is now. Asked of learners that tilt."""
        raise NotImplementedError

    def loss(self, read: TokenReading) -> Tensor:
        """What it minimises on the rows of `read`: a number."""
        raise NotImplementedError

    def offers(self, read: TokenReading) -> Mapping[str, Tensor]:
        """What it says of new rows before they are rewarded, [B] or [B, T] by name: `batch.offers` for rewards."""
        return {}


def learning_objection(learning: Learning | None, estimates: bool = False) -> str | None:
    """What the loop of stored rows cannot do of a `Learning`, as the rest of a sentence."""
    if learning is None:
        return None
    if Need.ESTIMATE in learning.optimizer.needs:
        optimizer = type(learning.optimizer).__name__
        if not estimates:
            return f"minimises a loss, and {optimizer} asks for an estimate and its error: set learning.optimizer=adam."
        if learning.every != 1 or learning.epochs != 1:
            return f"has traces by {optimizer}, which are of every step once: leave out learning.every and .epochs."
    if not isinstance(learning.optimizer, StepOptimizer):
        return f"learns for all members of a population at once, which {type(learning.optimizer).__name__} cannot step."
    if learning.minibatches != 1 or learning.order != "after":
        return (
            "learns from the batches of `sampling` in its place of `order`: leave out learning.minibatches and .order."
        )
    return None


# Critics


class Critic(Joint, abstract=True):
    """How the values of tokens are learned."""

    slot = "critic"


class OwnCritic(Apart, abstract=True):
    """A critic of tokens that is a network of its own beside the policy, and takes steps of its own.

    Its loss is a mean over the tokens that it is `taught` of each minibatch, which are of whole groups.
    """

    slot = "critic"
    lead: WholeNumber = 0
    """Training steps at its beginning in which it learns alone, and the policy waits."""

    def objection(self, method: Method) -> str | None:
        optimizer = self.learning.optimizer
        if not isinstance(optimizer, TokenOptimizer):
            return f"is one network, which {type(optimizer).__name__} cannot step: it is for populations."
        if optimizer.halves:
            return f"computes no gradients of halves, which {type(optimizer).__name__} goes by."
        return self.about_target()

    def build(self, policy: Any) -> ValueNetwork:
        """The network beside this policy (an `etude.policies.language.LanguagePolicy`), as it begins."""
        raise NotImplementedError

    def taught(self, batch: TokenBatch) -> Tensor:
        """[B, T] True on tokens that it learns from."""
        return batch.action_mask

    def loss(self, batch: TokenBatch, values: Tensor) -> Tensor:
        """[B, T] of what it says of the rows, `values` [B, T], with gradient; `batch.returns` are its targets."""
        raise NotImplementedError


class StateCritic(Learner, abstract=True):
    """A critic of control: from what the policy sees, or its features, to values."""

    slot = "critic"

    def build(self, shape: tuple[int, ...], actions: Space[Any], population: Population) -> nn.Module:
        """The network that maps what is seen [P, N, *shape] to values [P, N]."""
        raise NotImplementedError
