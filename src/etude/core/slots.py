"""The vocabulary: one abstract part per slot, with the signature that a loop calls.

The slots of control are in `step_slots.py`, those of stages in `stage_slots.py`, of several players in
`player_slots.py`.

A concrete part subclasses one of these, in its slot's folder or in the one method file that uses it.
Shapes are those of `core/batches.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.episodes import Episode, Problem
from etude.core.part import Need, Part
from etude.core.player_slots import Seat
from etude.core.streams import Stream
from etude.core.worlds import World

if TYPE_CHECKING:
    from torch import Tensor

    from etude.core.task import Task


@dataclass
class Context:
    """What a run lends to its parts while they work.

    Args:
        task: what is being learned.
        policy: the language model being trained (an `etude.policies.language.LanguagePolicy`).
        stream: random numbers for this step and round; episodes draw at addresses below it (`Stream.draw`).
        step: training steps finished so far; `steps` in total.
        max_tokens: length limit of one completion.
        record: what the sampler may note of every token on the way ('entropy', 'hidden'), since parts need it.
        samplers: who plays episodes (an `etude.experience.samplers.Samplers`); None: this process.
        seats: of several players, by name; a player that has none speaks with `policy`.
    """

    task: Any
    policy: Any
    stream: Stream
    step: int = 0
    steps: int = 1
    max_tokens: int = 64
    record: frozenset[Need] = frozenset()
    samplers: Any = None
    seats: Mapping[str, Seat] = field(default_factory=dict)

    def seat(self, player: str) -> Seat:
        """Where a player sits."""
        return self.seats.get(player) or Seat(self.policy)

    def at(self, player: str) -> Context:
        """What is lent to a part that works for this player: the policy is its own."""
        return replace(self, policy=self.seat(player).policy)


class Curriculum(Part, abstract=True):
    """Which problems next."""

    slot = "curriculum"
    chooses_ahead: ClassVar[bool] = False
    """Whether it may choose for later steps before it was told of the last one: nothing that it keeps of a choice is
    what it needs to understand that choice's outcomes."""

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        """`count` problems from the pool (which may be endless: index it, never iterate)."""
        raise NotImplementedError

    def counts(self) -> Mapping[str, int]:
        """What it counted since this was last asked, by the name of a metric: why it refused problems, say."""
        return {}


class TokenExperience(Part, abstract=True):
    """How completions come about."""

    slot = "experience"
    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    samples: ClassVar[bool] = True
    """Whether the policy samples; if not, rows come from data and have no behaviour policy."""
    probes: ClassVar[bool] = False
    """Whether it also samples what texts are worth (`Episode.probe`, `TokenBatch.sampled_values`)."""
    pauses: ClassVar[bool] = False
    """Whether some of its rows go on in a later step, and have no reward yet (`Episode.unfinished`)."""
    reads_policy: ClassVar[bool] = False
    """Whether it asks the policy itself how likely tokens are that it has not sampled, and has them trained."""

    def __init_subclass__(cls, abstract: bool = False, **options: object) -> None:
        if "collect" in cls.__dict__ and "worlds" not in cls.__dict__:
            cls.worlds = frozenset({World.LANGUAGE})  # an enumerable policy is sampled in plain groups
        super().__init_subclass__(abstract, **options)

    @property
    def size(self) -> int | None:
        """Completions of each problem, where they are so many of all; fields of this name take its place."""
        return None

    @property
    def max_tokens(self) -> int | None:
        """Limit of one completion; None: the task's."""
        return None

    @property
    def temperature(self) -> float:
        """What logits are divided by, in sampling and in training alike."""
        return 1.0

    @property
    def retempers(self) -> bool:
        """Whether recorded log-probabilities are another distribution's than the policy's at any one temperature."""
        return False

    @property
    def rows_per_problem(self) -> int:
        """How many rows one problem makes, as far as that is known beforehand."""
        return 1

    @property
    def players(self) -> tuple[str, ...]:
        """Who plays its episodes, where it has several players play one after another; (): as the task says."""
        return ()

    def lacks(self, task: Task) -> str | None:
        return task.needs_reward() if self.samples else None

    @property
    def knows_behaviour(self) -> bool:
        """Whether its rows have the log-probabilities of the policy that wrote them, where that is known."""
        return self.samples

    @property
    def truncates_distribution(self) -> bool:
        """Whether `behaviour_logp` belongs to a truncated distribution (top-p, top-k), not to the policy's own."""
        return False

    def asks(self, problems: int) -> int:
        """How many new problems it takes in a step of `problems`; fewer where it still works on older ones."""
        return problems

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        """Episodes for the problems; `episode.group` indexes the problem in the list."""
        raise NotImplementedError


class SecondLook(Part, abstract=True):
    """Which problems are tried again within the step, what is shown then, and what becomes of it.

    It acts before anything is scored, so filters, and rounds of resampling, see what came of it.
    """

    slot = "second_look"
    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})

    @property
    def stages(self) -> int:
        """How often at most a problem is looked at again; `Episode.info["look"]` says at which a row was made."""
        return 1

    def again(self, episodes: Sequence[Episode], experience: TokenExperience, context: Context) -> list[Episode]:
        """The episodes of a step after it, from those that `experience` collected; groups keep their numbers."""
        raise NotImplementedError


class Reward(Part, abstract=True):
    """How an outcome is scored: one number per episode, added over the slot's parts."""

    slot = "rewards"
    judges: ClassVar[bool] = True
    """Whether it says how good an outcome is. A part that only adds to what others say gives no episode a reward."""

    def score(self, episodes: Sequence[Episode], context: Context) -> Sequence[float | None]:
        """One reward per episode, to be placed on its last action token; None where it does not apply."""
        raise NotImplementedError


class TokenReward(Part, abstract=True):
    """A reward per token. `batch.rewards` and `batch.scores` are what the slot's parts before it paid."""

    slot = "rewards"
    judges: ClassVar[bool] = True
    """As of `Reward`."""

    def marked(self, batch: TokenBatch, context: Context) -> TokenBatch:
        """The rows with what it finds out about them before it pays, for other parts: `step`, `verdicts`, `final`."""
        return batch

    def shape(self, batch: TokenBatch) -> Tensor:
        """What to add to `batch.rewards`. Returns [B, T]."""
        raise NotImplementedError

    def shape_in(self, batch: TokenBatch, context: Context) -> Tensor:
        """The same, for parts that need the task or the tokenizer as well."""
        return self.shape(batch)


class GroupReward(Part, abstract=True):
    """What a completion is worth in the light of the others of its problem, or of what the policy says about it."""

    slot = "rewards"

    def rescore(self, batch: TokenBatch) -> Tensor:
        """The scores [B] to use instead of `batch.scores`, the sum of the parts before; may use what it `needs`."""
        raise NotImplementedError

    def rescore_in(self, batch: TokenBatch, context: Context) -> Tensor:
        """The same, for parts that need the task or the policy as well."""
        return self.rescore(batch)


class Filter(Part, abstract=True):
    """Which samples count, and how much. Runs on scored rows, before advantages unless it is `late`."""

    slot = "filters"
    resample: ClassVar[bool] = False
    late: ClassVar[bool] = False
    """Whether it runs on rows that have their advantages, so that those which it drops count in the others'."""

    @property
    def rounds(self) -> int:
        """How often at most problems are drawn for one step, where it resamples; fields of this name take its place."""
        return 1

    @property
    def extra(self) -> int:
        """Groups that are begun beyond those that a step needs, of which the first that hold are kept (`ended`)."""
        return 0

    def weigh(self, batch: TokenBatch) -> Tensor:
        """Returns [B] weights; 0 removes the row."""
        raise NotImplementedError

    def ended(self, batch: TokenBatch) -> Tensor:
        """When each row's group is whole, counted from its beginning. Asked of a filter that begins `extra` groups.

        Returns [B], the same on all rows of a group, in a unit of its own: of what was recorded, never of the clock of
        a machine, so that a run can be repeated.
        """
        raise NotImplementedError

    def counts(self) -> Mapping[str, int]:
        """What it counted since this was last asked, by the name of a metric: why it drops rows of language, say."""
        return {}


class TokenAdvantages(Part, abstract=True):
    """How credit reaches tokens."""

    slot = "advantages"
    of_unfinished: ClassVar[bool] = False
    """Whether it has credit for rows that go on in a later step, of which no reward is known."""

    def __call__(self, batch: TokenBatch) -> Tensor:
        """Returns [B, T]; entries outside the action mask are ignored."""
        raise NotImplementedError

    def returns(self, batch: TokenBatch) -> Tensor | None:
        """What the critic learns [B, T], `batch.returns` from then on; None where nothing is said of values."""
        return None


class Objective(Part, abstract=True):
    """What is minimised: of tokens, of steps, or, where the formula is the same, of both."""

    slot = "objective"
    vanishes_with_advantage: ClassVar[bool] = False
    """Whether a row with zero advantage has zero loss and gradient, so that its forward can be skipped."""
    zero_without_advantage: ClassVar[frozenset[str]] = frozenset()
    """Which of its `metrics` are 0 where nothing has an advantage, so that skipped rows are known to have 0."""

    def __call__(self, batch: Any, policy: Any) -> Tensor:
        """The loss, shaped as the batch's log-probabilities."""
        raise NotImplementedError

    def metrics(self, batch: Any, policy: Any) -> dict[str, Tensor]:
        """Quantities to report, shaped as the loss (averaged over what was acted) or one for each row.

        Where rows are skipped, those that are not `zero_without_advantage` are called NAME/learned: of the other rows.
        """
        return {}


class TokenObjective(Objective, abstract=True):
    """What is minimised over tokens: `__call__` of a TokenBatch and TokenLogProbs.

    It returns the loss per token [B, T], or [B] for objectives that are `per_row`.
    """

    per_row: ClassVar[bool] = False
    """Whether its loss is one number per row, of which no part belongs to a token."""
    couples: ClassVar[Literal["row", "group"]] = "row"
    """Which rows its loss compares, so that they stay in one micro-batch."""
    generates: ClassVar[bool] = True
    """False if what is trained is a scorer, so that sampling from it means nothing."""

    @property
    def fresh_rows(self) -> bool:
        """Whether it is right on rows of the present policy only: nothing in it makes up for another that sampled.

        So it is where neither the objective nor a part inside it has the behaviour policy in it (`uses_behaviour`); one
        that knows better says `fresh_rows = False` in the class. Such a method is refused where rows may be older.
        """
        inside = [value for value in self.fields().values() if isinstance(value, Part)]
        known = [not p.fresh_rows if isinstance(p, TokenObjective) else p.uses_behaviour for p in inside]
        return not (self.uses_behaviour or any(known))


class TokenWeights(Part, abstract=True):
    """Which tokens take part: a detached factor on the objective, seen over the whole minibatch."""

    slot = "token_weights"
    everywhere: ClassVar[bool] = False
    """Whether its factors multiply regularizers and critic as well."""

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """Returns [B, T] factors. `policy` is the current policy on the minibatch, without gradient.

        With 'hidden' among its `needs`, `policy.head` is there too; `policy.learning_rate` is the coming step's.
        """
        raise NotImplementedError


class TokenRegularizer(Part, abstract=True):
    """What holds the policy back: a term added to the objective of tokens."""

    slot = "regularizers"

    @property
    def where(self) -> TokenWeights | None:
        """Which tokens it holds back, if it takes the whole minibatch to say; fields of this name take its place."""
        return None

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """Returns [B, T], coefficient included."""
        raise NotImplementedError


class Reference(Part, abstract=True):
    """The policy that 'reference_logp' comes from, and when it is refreshed."""

    slot = "reference"

    @property
    def moves(self) -> bool:
        """Whether it is ever anything else than the policy as it was at first."""
        kind = type(self)
        return kind.begin is not Reference.begin or kind.refresh is not Reference.refresh

    def begin(self, policy: Any) -> None:
        """Where it begins: `policy` (an `etude.policies.language.LanguagePolicy`) has just kept a copy of itself."""

    def refresh(self, step: int) -> float:
        """How far to move the reference towards the policy after this step: 0 not at all, 1 all the way."""
        return 0.0
