"""The vocabulary of control: one abstract part per slot of steps, with the signature that a loop calls.

What tokens and steps share, and the parts of tokens, are in `core/slots.py`. Shapes are those of `core/transitions.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from etude.core.fields import Count
from etude.core.optimizer_slots import Optimizer
from etude.core.part import Need, Part
from etude.core.slots import Objective
from etude.core.transitions import ActionLogProbs, Transitions

if TYPE_CHECKING:
    from gymnasium import Space
    from torch import Tensor, nn

    from etude.core.control import Collector, VectorEnvironment
    from etude.core.method import Method
    from etude.core.population import FlatParameters, Population


class StepExperience(Part, abstract=True):
    """How steps of control come about: `steps` in each of `environments` between two updates."""

    slot = "experience"
    updates: ClassVar[int] = 1
    """How often that happens in a training step of the run."""
    environments: Count = 4
    steps: Count = 128

    def collector(
        self, environment: VectorEnvironment, actor: Any, population: Population, needs: frozenset[Need], shared: bool
    ) -> Collector:
        """What acts in the environment and hands the loop its transitions.

        Args:
            actor: the policy's module (`policies/control/actor.py`).
            needs: of all parts: NEXT_OBSERVATIONS, COSTS and PROGRESS are kept only if they are among them.
            shared: whether the critic reads the policy's features instead of what the policy sees.
        """
        raise NotImplementedError


class StepReward(Part, abstract=True):
    """What the steps of a control rollout are worth to the learner: a new reward for each.

    With 'costs', 'progress' or 'next_observations' among its `needs` these stand in the batch. A rollout holds pieces
    of episodes: what a reward must know of the rest is state of its own for each environment, forgotten where an
    episode ends (`rewards/episodic.py` does that for its subclasses).
    """

    slot = "rewards"

    def shape(self, batch: Transitions) -> Tensor:
        """The rewards [P, T, E] to use instead of `batch.rewards`."""
        raise NotImplementedError

    def forget(self) -> None:
        """Forget the episodes that are running: the environments are new ones (a stage has begun)."""


class StepAdvantages(Part, abstract=True):
    """How credit reaches the steps of a rollout."""

    slot = "advantages"

    def of_transitions(self, batch: Transitions) -> Tensor:
        """Returns [P, T, E]."""
        raise NotImplementedError

    def returns_of_transitions(self, batch: Transitions) -> Tensor | None:
        """What the critic learns [P, T, E], `batch.returns` from then on; None where nothing is said of values."""
        return None

    def of_minibatch(self, advantages: Tensor, weights: Tensor | None = None) -> Tensor:
        """Advantages [P, N] of one minibatch as the objective sees them; `weights` are the batch's."""
        return advantages


class StepObjective(Objective, abstract=True):
    """What is minimised over steps: `__call__` of Transitions and ActionLogProbs returns [P, N].

    Where a chain of decisions makes an action, log-probabilities are [P, N, C] and so is the loss, with the step's
    advantage for every link (`core.transitions.along`); a step counts as the mean over its chain.
    """


class StepRegularizer(Part, abstract=True):
    """What holds a policy of control back: a term added to the objective of steps."""

    slot = "regularizers"

    def __call__(self, batch: Transitions, policy: ActionLogProbs) -> Tensor:
        """Returns [P, N], coefficient included."""
        raise NotImplementedError

    def observe(self, measured: Mapping[str, Tensor]) -> None:
        """Learn from what an update measured, [P] each ('kl' for a part that needs it)."""

    def enough(self, batch: Transitions, policy: ActionLogProbs) -> Tensor | None:
        """[P] which members take no more steps in this update, that on this minibatch included; None: never any."""
        return None


class Lagrangian(Part, abstract=True):
    """A term of the loss, an objective or a regularizer, with Lagrange multipliers of every member's own.

    The policy's step trains them with the weights, downhill; after each they are at least `LEAST`. The term finds them
    in `policy.said[self.name]` [P, K], in their order.
    """

    def objection(self, method: Method) -> str | None:
        optimizer = method.slots().get("optimizer")
        if optimizer is not None and Need.KL in optimizer.needs:
            return f"has multipliers to be trained, and {type(optimizer).__name__} moves the policy only."
        return None

    def multipliers(self, actions: Space[Any], population: Population) -> dict[str, Tensor]:
        """Where they start, [P] each by name, for a Gymnasium space of actions."""
        raise NotImplementedError


LEAST = 1e-8
"""What Lagrange multipliers are brought back to (arXiv:1909.12238)."""


class Initializer(Part, abstract=True):
    """Where the numbers of a linear layer start."""

    slot = "initializer"

    def weights(self, population: Population, name: str, inputs: int, outputs: int) -> Tensor:
        """[P, inputs, outputs], with random numbers of streams named `name`."""
        raise NotImplementedError

    def biases(self, population: Population, name: str, inputs: int, outputs: int) -> Tensor:
        """[P, 1, outputs]; 0 unless a class says otherwise."""
        raise NotImplementedError


class Network(Part, abstract=True):
    """Layers between what is seen and what is said. A `torch.nn.Module` of a user's own becomes an `own-module`."""

    slot, foreign = "network", "own-module"

    def build(self, shape: tuple[int, ...], population: Population, name: str) -> tuple[nn.Module, int]:
        """The module [P, N, *shape] -> [P, N, width], with random numbers of streams named `name`, and its width."""
        raise NotImplementedError

    def build_with_actions(
        self, inputs: int, size: int, population: Population, name: str
    ) -> tuple[nn.Module, int]:  # fmt: skip
        """As `build`, of what is seen and an action beside it, [P, N, inputs + size]."""
        return self.build((inputs + size,), population, name)


class Memory(Part, abstract=True):
    """What a policy keeps from step to step of an episode."""

    slot = "memory"

    def build(self, width: int, population: Population, name: str) -> tuple[nn.Module, int]:
        """The module that reads features [P, N, width] (`policies/control/memory.py`), and the width that it makes."""
        raise NotImplementedError


class Observations(Part, abstract=True):
    """What the policy sees of an observation; belongs to the policy, is saved and exported with it."""

    slot = "observations"

    def build(self, shape: tuple[int, ...], population: Population) -> tuple[nn.Module, tuple[int, ...]]:
        """The module that transforms [P, N, *shape], and the shape that it makes.

        A module with `observe(observations [P, N, *shape])` learns from every rollout, after its update.
        """
        raise NotImplementedError

    def watch(self, environment: VectorEnvironment) -> VectorEnvironment:
        """The environment, its observations as the module gets them where that takes more than the last one."""
        return environment


class Policy(Part, abstract=True):
    """What acts in control."""

    slot = "policy"

    def build(self, shape: tuple[int, ...], actions: Space[Any], population: Population) -> nn.Module:
        """The actor for observations of `shape` and a Gymnasium space of actions (`policies/control/actor.py`)."""
        raise NotImplementedError

    def actor(self, method: Method, shape: tuple[int, ...], actions: Space[Any], population: Population) -> nn.Module:
        """The actor of a method that holds this part, made of another part of it where a class says so."""
        return self.build(shape, actions, population)

    def watch(self, environment: VectorEnvironment) -> VectorEnvironment:
        """The environment with the observations that the actor is given."""
        return environment


class StepOptimizer(Optimizer, abstract=True):
    """Steps of all members of a population at once."""

    lock_free: ClassVar[bool] = False
    """Whether what takes its steps can `join` others that step on the same numbers at the same time."""

    def population(self, parameters: FlatParameters) -> Any:
        """What takes a population's steps (`optimizers/population.py`)."""
        raise NotImplementedError
