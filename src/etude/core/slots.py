"""The vocabulary: one abstract part per slot, with the signature that a loop calls.

A concrete part subclasses one of these, in its slot's folder or in the one method file that uses it.
Shapes are those of `core/batches.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from etude.core.batches import Episode, Problem, TokenBatch, TokenLogProbs, Transitions
from etude.core.fields import Positive
from etude.core.part import Part
from etude.core.streams import Stream

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from etude.core.control import VectorEnvironment
    from etude.policies.control.population import FlatParameters, Population


@dataclass
class Context:
    """What a run lends to its parts while they work.

    Args:
        task: what is being learned.
        policy: the language model being trained (an `etude.policies.language.LanguagePolicy`).
        stream: random numbers for this step and round; episodes draw at addresses below it (`Stream.draw`).
        step: training steps finished so far; `steps` in total.
        max_tokens: length limit of one completion.
    """

    task: Any
    policy: Any
    stream: Stream
    step: int = 0
    steps: int = 1
    max_tokens: int = 64
    extras: dict[str, Any] = field(default_factory=dict)


class Stage(Part):
    """What happens in which order: `changes` replace slots of the method until `until` of all steps are done."""

    slot = "stages"

    def until(self) -> float:
        """Fraction of the training steps at which this stage ends."""
        raise NotImplementedError

    def apply(self, method: Any) -> Any:
        """The method as it is during this stage."""
        raise NotImplementedError


class Curriculum(Part):
    """Which problems next."""

    slot = "curriculum"

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        """`count` problems from the pool (which may be endless: index it, never iterate)."""
        raise NotImplementedError


class Experience(Part):
    """How completions come about."""

    slot = "experience"
    samples: ClassVar[bool] = True
    """Whether the policy samples; if not, rows come from data and have no behaviour policy."""
    rows_per_problem: ClassVar[int] = 1

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        """Episodes for the problems; `episode.group` indexes the problem in the list."""
        raise NotImplementedError


class Reward(Part):
    """How an outcome is scored: one number per episode, added over the slot's parts."""

    slot = "rewards"

    def score(self, episodes: Sequence[Episode], context: Context) -> Sequence[float]:
        """One reward per episode, to be placed on its last action token."""
        raise NotImplementedError


class StepReward(Part):
    """What the steps of a control rollout are worth to the learner: a new reward for each."""

    slot = "rewards"
    serves: ClassVar[frozenset[str]] = frozenset({"control"})

    def shape(self, batch: Transitions) -> Tensor:
        """The rewards [P, T, E] to use instead of `batch.rewards`."""
        raise NotImplementedError


class TokenReward(Part):
    """A reward per token, computed from the batch after the episode rewards are placed."""

    slot = "rewards"

    def shape(self, batch: TokenBatch) -> Tensor:
        """What to add to `batch.rewards`. Returns [B, T]."""
        raise NotImplementedError

    def shape_in(self, batch: TokenBatch, context: Context) -> Tensor:
        """The same, for parts that need the task or the tokenizer as well."""
        return self.shape(batch)


class GroupReward(Part):
    """What a completion is worth in the light of the others of its problem, or of what the policy says about it."""

    slot = "rewards"

    def rescore(self, batch: TokenBatch) -> Tensor:
        """The scores [B] to use instead of `batch.scores`, the sum of the parts before; may use what it `needs`."""
        raise NotImplementedError


class Filter(Part):
    """Which samples count, and how much. Runs on scored rows, before advantages."""

    slot = "filters"
    resample: ClassVar[bool] = False

    def weigh(self, batch: TokenBatch) -> Tensor:
        """Returns [B] weights; 0 removes the row."""
        raise NotImplementedError


class Advantages(Part):
    """How credit reaches tokens."""

    slot = "advantages"

    def __call__(self, batch: TokenBatch) -> Tensor:
        """Returns [B, T]; entries outside the action mask are ignored."""
        raise NotImplementedError

    def of_transitions(self, batch: Transitions) -> Tensor:
        """Returns [P, T, E] for a rollout of control; may leave `batch.returns`, what the critic learns."""
        raise NotImplementedError

    def of_minibatch(self, advantages: Tensor) -> Tensor:
        """Advantages [P, N] of one minibatch as the objective sees them."""
        return advantages


class Objective(Part):
    """What is minimised."""

    slot = "objective"
    couples: ClassVar[Literal["row", "group"]] = "row"
    """Which rows its loss compares, so that they stay in one micro-batch."""
    vanishes_with_advantage: ClassVar[bool] = False
    """Whether a row with zero advantage has zero loss and gradient, so that its forward can be skipped."""
    generates: ClassVar[bool] = True
    """False if what is trained is a scorer, so that sampling from it means nothing."""
    uses_behaviour: ClassVar[bool] = False
    """Whether it forms importance ratios with `behaviour_logp`."""

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """Loss per token [B, T], or per row [B] for objectives over whole sequences."""
        raise NotImplementedError

    def metrics(self, batch: TokenBatch, policy: TokenLogProbs) -> dict[str, Tensor]:
        """Quantities to report, each [B, T] (averaged over action tokens) or [B]."""
        return {}


class TokenWeights(Part):
    """Which tokens take part: a detached factor on the objective, seen over the whole minibatch."""

    slot = "token_weights"

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """Returns [B, T] factors. `policy` is the current policy on the minibatch, without gradient.

        With 'hidden' among its `needs`, `policy.head` is there too; `policy.learning_rate` is the coming step's.
        """
        raise NotImplementedError


class Regularizer(Part):
    """What holds the policy back: a term added to the objective."""

    slot = "regularizers"

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """Returns [B, T], coefficient included."""
        raise NotImplementedError

    def observe(self, measured: Mapping[str, Tensor]) -> None:
        """Learn from what an update in control measured, [P] each ('kl' for a part that needs it)."""


class Reference(Part):
    """The policy that 'reference_logp' comes from, and when it is refreshed."""

    slot = "reference"

    def refresh(self, step: int) -> float:
        """How far to move the reference towards the policy after this step: 0 not at all, 1 all the way."""
        return 0.0


class Critic(Part):
    """How values are learned."""

    slot = "critic"

    def loss(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """Returns [B, T], coefficient included; `batch.values` are the old values, `batch.returns` the targets."""
        raise NotImplementedError


class StateCritic(Critic):
    """A critic of control: a network of its own, from what the policy sees to values."""

    serves: ClassVar[frozenset[str]] = frozenset({"control"})
    joint: ClassVar[bool] = True
    """Whether its loss joins the policy's; if not, `fit` learns after the policy's update."""
    shared: ClassVar[bool] = False
    """Whether its module reads what the policy's body says [P, N, width] instead of what the policy sees."""

    def build(self, shape: tuple[int, ...], population: Population) -> nn.Module:
        """The module that maps what is seen [P, N, *shape] to values [P, N]."""
        raise NotImplementedError

    def prepare(self, parameters: FlatParameters) -> None:
        """Make what `fit` needs, before the run starts."""

    def fit(self, fitting: Any) -> dict[str, Tensor]:
        """Learn from a rollout after the policy did; returns what to report, [P] each."""
        return {}


class Network(Part):
    """Layers between what is seen and what is said."""

    slot = "network"
    serves: ClassVar[frozenset[str]] = frozenset({"control"})

    def build(self, shape: tuple[int, ...], population: Population, name: str) -> tuple[nn.Module, int]:
        """The module [P, N, *shape] -> [P, N, width], with random numbers of streams named `name`, and its width."""
        raise NotImplementedError


class Memory(Part):
    """What a policy keeps from step to step of an episode."""

    slot = "memory"
    serves: ClassVar[frozenset[str]] = frozenset({"control"})

    def build(self, width: int, population: Population, name: str) -> tuple[nn.Module, int]:
        """The module that reads features [P, N, width] (`policies/control/memory.py`), and the width that it makes."""
        raise NotImplementedError


class Observations(Part):
    """What the policy sees of an observation; belongs to the policy, is saved and exported with it."""

    slot = "observations"
    serves: ClassVar[frozenset[str]] = frozenset({"control"})

    def build(self, shape: tuple[int, ...], population: Population) -> tuple[nn.Module, tuple[int, ...]]:
        """The module that transforms [P, N, *shape], and the shape that it makes.

        A module with `observe(observations [P, N, *shape])` learns from every rollout, after its update.
        """
        raise NotImplementedError

    def watch(self, environment: VectorEnvironment) -> VectorEnvironment:
        """The environment, its observations as the module gets them where that takes more than the last one."""
        return environment


class Policy(Part):
    """What acts in control."""

    slot = "policy"
    serves: ClassVar[frozenset[str]] = frozenset({"control"})

    def build(self, shape: tuple[int, ...], actions: Any, population: Population) -> nn.Module:
        """The actor for observations of `shape` and a Gymnasium space of actions (`policies/control/actor.py`)."""
        raise NotImplementedError

    def watch(self, environment: VectorEnvironment) -> VectorEnvironment:
        """The environment with the observations that the actor is given."""
        return environment


class Optimizer(Part):
    """How the step is taken."""

    slot = "optimizer"
    halves: ClassVar[bool] = False
    """Whether it wants to see the gradients of two halves of each minibatch (`pace`)."""
    lr: Positive | None = None

    def build(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """The torch optimizer for these parameters."""
        raise NotImplementedError

    def rate(self, step: int, steps: int) -> float:
        """Factor on `lr` at this step."""
        return 1.0

    def pace(self, first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
        """Factor on this step's rate, from the gradients of two halves of the minibatch, one tensor per parameter.

        Each is an estimate of its own of the gradient that their mean, the minibatch's, estimates.
        """
        return 1.0

    def restarts(self, step: int) -> bool:
        """Whether what it has averaged so far is forgotten before training step `step`."""
        return False

    def clip(self) -> float | None:
        """Largest gradient norm, or None."""
        return None

    def population(self, parameters: FlatParameters) -> Any:
        """What takes a population's steps (`optimizers/population.py`)."""
        raise NotImplementedError
