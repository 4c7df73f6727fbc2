"""The vocabulary of learning from what is stored: one abstract part per slot, with the signature that a loop calls.

Actions of a Box are in units here, scaled to [-1, 1] by its bounds; choices are indices. Q values lead with the
members and have the critics next, [P, M, N]; what a critic's head says of them has a last axis of its size, [P, M, N,
K], of every choice [P, M, N, A, K]. The legend of shapes is in `core/batches.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from etude.core.fields import Count
from etude.core.learners import Apart, Learning, learning_objection
from etude.core.part import Part
from etude.core.sampling_slots import Horizon, Sampling, gives_windows
from etude.core.step_slots import Policy
from etude.core.transitions import Transitions

if TYPE_CHECKING:
    from gymnasium import Space
    from torch import Tensor, nn

    from etude.core.method import Method
    from etude.core.population import Number, Population

At = Literal["here", "next"]
"""Where a quantity is asked for: at a row's observation, or at the one that it led to."""


class Choice(NamedTuple):
    """What a policy does at N observations, with gradient: actions [P, N, A] in units, log-probabilities [P, N].

    A policy that does one thing has no log-probabilities. One over A choices says the chance of each, [P, N, A]; its
    `logp` is then the mean over them, minus the entropy.
    """

    actions: Tensor
    logp: Tensor | None
    chances: Tensor | None = None


class Estimate(NamedTuple):
    """What a learner estimates of steps, for optimizers that keep traces; all [P, N], of one row of each member [P].

    value: with gradient. error: how far its target lies above it. carry: what the gradients so far count at the next
    step, before they decay: its discount, 0 where what went before has no part in what follows.
    """

    value: Tensor
    error: Tensor
    carry: Tensor


class Traced(NamedTuple):
    """What a critic says of what was done, [P, M, N, K], without a graph.

    slopes: of a loss's gradient in these numbers, [P, M, N, K], makes those in the network's parameters, in order.
    """

    outputs: Tensor
    slopes: Callable[[Tensor], Sequence[Tensor]]


class Differentiated(NamedTuple):
    """A loss [P] and its gradients in the parameters of the network that learns, in order."""

    loss: Tensor
    gradients: Sequence[Tensor]


class ReplayReading(Protocol):
    """What formulas may ask about some rows; each thing is computed once, until a learner stepped that it rests on."""

    @property
    def batch(self) -> Transitions:
        """The rows [P, N, ...]: `rewards` are the sums over the horizon, `discounts` what a value after it counts."""
        ...

    def seen(self, at: At) -> Tensor:
        """The observations as networks see them, normalised, say: [P, N, ...], of windows [P, N, T, ...]."""
        ...

    def look(self, shown: Tensor) -> Tensor:
        """Any observations [P, N, ...] as networks see them."""
        ...

    @property
    def stored(self) -> Any:
        """All that the rows were drawn of: a store, `size` rows that `read` gives."""
        ...

    def policy(self, at: At = "here", copy: bool = False) -> Choice:
        """What the policy does, or its slow copy where it has one."""
        ...

    def several(self, count: int, at: At = "here", copy: bool = False) -> Choice:
        """What the policy does in so many tries at each row, without gradient: [P, N, C, A], log-probabilities
        [P, N, C]. Or its slow copy, where it has one."""
        ...

    def before_tanh(self, count: int) -> Tensor:
        """What a policy squashes that does so, in so many tries at each row here, with gradient: [P, N, C, A]."""
        ...

    def anything(self, count: int) -> Choice:
        """So many uniform actions at each row, [P, N, C, A], and the logarithms of their density, [P, N, C]."""
        ...

    def parameters(self, at: At = "here", copy: bool = False) -> Tensor:
        """What the policy's network says, [P, N, K], of which its distribution makes actions."""
        ...

    @property
    def terms(self) -> tuple[ActorTerm, ...]:
        """Of what the policy minimises."""
        ...

    def after_step(self, loss: Tensor, rate: Number, seen: Tensor) -> Tensor:
        """What the policy would do without chance, [P, K, A] in units, at what is `seen` [P, K, ...], once it has taken
        one plain step of this rate along the gradient of a loss [P]; with gradient to what the loss rests on.
        """
        ...

    def logp(self, actions: Tensor) -> Tensor:
        """Log-probabilities [P, N] of actions [P, N, A] in units, as the policy is here, with gradient."""
        ...

    def entropy(self) -> Tensor:
        """Entropies [P, N] of the policy here, of actions in units, with gradient."""
        ...

    def moved(self, actions: Tensor, noise: Tensor) -> Tensor:
        """Actions [P, N, A] with noise added to them, brought back among those that there are."""
        ...

    def outputs(
        self, at: At = "here", actions: Tensor | None = None, copy: bool = False, frozen: bool = False,
        first: bool = False,
    ) -> Tensor:  # fmt: skip
        """What the critic says of actions [P, M, N, K], or of every choice [P, M, N, A, K] where none are given.

        Of C actions at each row, [P, N, C, A], it says [P, M, N, C, K], as rows of the same product.

        Args:
            copy: its slow copy. frozen: its weights without gradient, for those who learn from it through the actions.
            first: the first of its M alone; M is 1 then.
        """
        ...

    def passes(self, count: int, at: At) -> Tensor:
        """What the critic's slow copy says of every choice in so many passes, each with noise of its own in its
        weights, without gradient: [P, C M, N, A, K]."""
        ...

    def slopes(self) -> Tensor:
        """d Q_m / d a of every critic at what was done, [P, M, N, A], with gradient to the critics."""
        ...

    def traced(self, actions: Tensor) -> Traced | None:
        """What the critic that learns says of these actions [P, N, A], and its gradient in closed form, to the bits of
        autograd; None where there is none.
        """
        ...

    def state_outputs(self, at: At = "here", copy: bool = False) -> Tensor:
        """What is said of states, whatever is done there, [P, M, N, K], by the method's `value`, else its critic."""
        ...

    def worth(self, at: At = "here") -> Tensor:
        """[P, N] what the method's `value` says that states are worth."""
        ...

    def values(self, outputs: Tensor) -> Tensor:
        """Means of what the critic said, without the last axis."""
        ...

    def critic_loss(self) -> Tensor:
        """What the critic minimises on these rows, [P], with gradient to an encoder that learns by it too."""
        ...

    def estimate(self) -> Estimate:
        """What the critic estimates of these rows, [P, N] each: its error is what policies go by that climb no Q."""
        ...

    def offered(self, name: str) -> Tensor:
        """What a learner offers under this name, without gradient."""
        ...

    def normal(self, purpose: str, like: Tensor) -> Tensor:
        """Standard normal numbers of each member's own, shaped as `like` [P, ...]."""
        ...

    @property
    def wants_errors(self) -> bool:
        """Whether the rows were drawn by how far the critic was off, so that it says it again."""
        ...

    def tell(self, errors: Tensor) -> None:
        """Say how far the critic was off on each row, [P, N]."""
        ...

    def note(self, name: str, values: Tensor) -> None:
        """Have [P] reported under this name beside the loss of who reads."""
        ...

    def beside(self, name: str) -> nn.Module:
        """The network of the learner of this name, its weights without gradient."""
        ...

    def copied(self, name: str) -> nn.Module:
        """The slow copy of the network of the learner of this name, or of the policy's."""
        ...

    @property
    def network(self) -> nn.Module:
        """Of the learner that reads."""
        ...

    @property
    def slow(self) -> nn.Module:
        """The slow copy of that network."""
        ...


class ReplayExperience(Part, abstract=True):
    """How steps come about that are stored: in how many environments, how much is kept, how often is learned.

    Args:
        environments: E, side by side for each member.
    """

    slot = "experience"
    acts: ClassVar[bool] = True  # while it is learned from; else its steps come from logs
    reads_logs: ClassVar[bool] = False
    """Whether it is given logs."""
    environments: Count = 1

    @property
    def keeps_logs(self) -> bool:
        """Whether there are rows of logs among those that are learned from."""
        return self.reads_logs


class ReplayLearner(Apart, abstract=True):
    """A network of every member's own that learns from stored rows, in its place of the method's `order`.

    Args:
        sampling: which rows it reads, if not those of the method's `sampling`; a horizon alone: rows that are drawn as
            that says, seen so.
    """

    reads_windows: ClassVar[bool] = False
    """Whether it reads several steps of each row."""
    estimates: ClassVar[bool] = False
    """Whether it can say what it estimates and the error apart (`estimate`), for optimizers that need it."""
    sampling: Sampling | Horizon | None = None

    def __init_subclass__(cls, abstract: bool = False, **options: object) -> None:
        super().__init_subclass__(abstract, **options)
        if "loss" in cls.__dict__ and "differentiated" not in cls.__dict__:
            cls.differentiated = ReplayLearner.differentiated  # type: ignore[method-assign]  # of another loss

    def build(self, shape: tuple[int, ...], actions: Space[Any], population: Population) -> nn.Module:
        """The network for what is seen [P, N, *shape] and a Gymnasium space of actions."""
        raise NotImplementedError

    def loss(self, read: ReplayReading) -> Tensor:
        """What it minimises on the rows of `read`: [P]."""
        raise NotImplementedError

    def differentiated(self, read: ReplayReading) -> Differentiated | None:
        """`loss` and its gradient in closed form, both to the bits of autograd; None where there is none."""
        return None

    def estimate(self, read: ReplayReading) -> Estimate:
        """What it estimates of the rows, [P, N], and how far off that is, in place of a loss."""
        raise NotImplementedError

    def offers(self, network: nn.Module) -> Mapping[str, Tensor]:
        """What others may read of it under `ReplayReading.offered`, with P as the first axis."""
        return {}

    def followed(self, store: Any) -> None:
        """See all that is stored: the slow copy of its network has just moved."""

    @property
    def count(self) -> int:
        """How many networks each member has: rows of its tensors are the members' networks one after another."""
        return 1

    def lasting(self) -> ReplayLearner:
        """The part with all at its default that a stage may change: which rows it reads, when it learns from them."""
        return self.replace(sampling=None, learning=self.learning and self.learning.lasting())

    def objection(self, method: Method) -> str | None:
        windows = gives_windows(self.sampling or method.slots()["sampling"])
        if windows and not self.reads_windows:
            return "reads steps one by one, and gets windows of them: set sampling.horizon to one-step or n-step."
        if self.reads_windows and not windows:
            return "reads windows of steps, and gets them one by one: set its sampling=window."
        objection = learning_objection(self.learning, self.estimates)
        return objection or (self.about_target() if self.learning is not None else None)


class ReplayCritic(ReplayLearner, abstract=True):
    """A critic of actions, or of states."""

    slot = "critic"
    of_states: ClassVar[bool] = False
    """Whether it says what states are worth, whatever is done there."""

    def counts(self, largest: Tensor, read: ReplayReading) -> Tensor:
        """The most that a step counts in what it learns, [P], where rewards were `largest` at most."""
        return largest

    def build_joined(self, width: int, population: Population) -> nn.Module:
        """The network for what an encoder makes of an observation and an action, [P, N, width]."""
        raise NotImplementedError


class ReplayPolicy(Policy, abstract=True):
    """What acts and, unless it is made of the critic, learns by the terms of `actor`."""

    learning: Learning | None = None
    made_of_critic: ClassVar[bool] = False
    """Whether it has no numbers of its own: it does what the critic says is best."""
    reads_features: ClassVar[bool] = False
    """Whether it can stand behind an encoder."""
    scores: ClassVar[bool] = False
    """Whether it has log-probabilities of what was done (`ReplayReading.logp`)."""
    of_choices: ClassVar[bool] = False
    """Whether it makes choices alone."""

    def lasting(self) -> ReplayPolicy:
        """The part with all at its default that a stage may change: when it learns."""
        return self.replace(learning=self.learning and self.learning.lasting())

    def objection(self, method: Method) -> str | None:
        if "actor" not in method.slot_names():
            kind = type(method).__name__
            return f"learns by the terms of the slot actor, which a {kind} does not have: set policy=actor-policy."
        from etude.core.encoder_slots import encoder_of

        encoder = encoder_of(method)
        if encoder is not None and not self.reads_features:
            return f"reads what is seen, and {encoder.name} stands before it: leave it out, or take another policy."
        if gives_windows(method.slots()["sampling"]):
            return "reads steps one by one, and gets windows of them: set sampling.horizon to one-step or n-step."
        return learning_objection(self.learning, all(term.traced for term in method.slots()["actor"]))


class ActorTerm(Part, abstract=True):
    """A term of what the policy minimises."""

    slot = "actor"
    traced: ClassVar[bool] = False
    """Whether optimizers that keep traces can step by it: along what it says, by how far the critic was off."""

    def __call__(self, read: ReplayReading) -> Tensor:
        """[P, N], coefficient included."""
        raise NotImplementedError

    def along(self, read: ReplayReading) -> Tensor:
        """[P, N] whose gradients traces add up; times the critic's error and -1 it is what is minimised."""
        raise NotImplementedError


class ReplayPlanner(Part, abstract=True):
    """What acts instead of the policy's mode, by what the critic says of several actions; it learns nothing.

    What the policy does by chance, and so exploration, does not ask it.
    """

    slot = "planner"

    def objection(self, method: Method) -> str | None:
        from etude.core.encoder_slots import encoder_of

        critic, encoder = method.slots()["critic"], encoder_of(method)
        if critic is None or critic.of_states or critic.head.size > 1:
            return "acts by what a critic says of actions: set critic=q-functions with critic.head=scalar."
        if encoder is not None:
            return f"reads what is seen, and {encoder.name} stands before it: leave it out."
        return None

    def build(self, actor: nn.Module, population: Population) -> nn.Module:
        """A module that takes the actor, which holds the critic (`held`), what is seen [P, N, ...] and what the policy
        says of it [P, N, K], and makes actions [P, N, A] in units.
        """
        raise NotImplementedError
