"""The kinds of method: one for each loop, with exactly the slots that it reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Literal

from etude.core import players
from etude.core.encoder_slots import ReplayEncoder
from etude.core.fields import Count, Positive, WholeNumber
from etude.core.learners import Critic, Joint, OwnCritic, StateCritic, StepHead, StepLearner, TokenHead, TokenLearner
from etude.core.log_slots import LogTransform, ReplayValue
from etude.core.method import Method
from etude.core.optimizer_slots import TokenOptimizer
from etude.core.part import Need, Part
from etude.core.player_slots import Role
from etude.core.replay_slots import (
    ActorTerm,
    ReplayCritic,
    ReplayExperience,
    ReplayLearner,
    ReplayPlanner,
    ReplayPolicy,
)
from etude.core.sampling_slots import Exploration, Sampling
from etude.core.slots import (
    Curriculum,
    Filter,
    GroupReward,
    Reference,
    Reward,
    SecondLook,
    TokenAdvantages,
    TokenExperience,
    TokenObjective,
    TokenRegularizer,
    TokenReward,
    TokenWeights,
)
from etude.core.stage_slots import Stage
from etude.core.stages import applied, resets
from etude.core.step_slots import (
    Lagrangian,
    Policy,
    StepAdvantages,
    StepExperience,
    StepObjective,
    StepOptimizer,
    StepRegularizer,
    StepReward,
)
from etude.core.worlds import World

if TYPE_CHECKING:
    from etude.core.task import Task

Aggregation = Literal["token-mean", "sequence-mean", "fixed-length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMethod(Method):
    """What the token loop reads: completions of a language model, or responses of an enumerable policy.

    Sizes: `problems` per step; completions per problem are the experience's; memory decides the rest.
    `epochs` passes over each batch, each in `minibatches` optimizer steps.
    Rows are sampled by weights that are `bound` training steps older, so that the next can be sampled while a step is
    learned from; 0: by those that learn from them. A completion that has not ended after `renew_after` tokens goes on
    with the weights that one more step has made, as long as that is not the step before its own; 0: none does.
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE, World.ENUMERABLE})
    required: ClassVar[tuple[str, ...]] = ("curriculum", "experience", "objective", "optimizer")
    absent: ClassVar[Mapping[World, tuple[str, ...]]] = {
        World.ENUMERABLE: ("stages", "roles", "second_look", "learners", "bound", "renew_after")
    }
    stays: ClassVar[Mapping[str, str]] = {
        "optimizer": "optimizer", "reference": "reference", "learners": "optimizer", "roles": ""
    }  # fmt: skip
    computes: ClassVar[frozenset[Need]] = frozenset(
        {
            Need.ENTROPY, Need.VALUES, Need.HIDDEN, Need.LOGITS, Need.REFERENCE, Need.REFERENCE_LOGP,
            Need.REFERENCE_VALUES, Need.PROXIMAL_LOGP, Need.ROW_LOSS,
        }
    )  # fmt: skip

    stages: tuple[Stage, ...] = ()
    roles: tuple[Role, ...] = ()
    curriculum: Curriculum | None = None
    experience: TokenExperience | None = None
    second_look: SecondLook | None = None
    rewards: tuple[Reward | TokenReward | GroupReward, ...] = ()
    filters: tuple[Filter, ...] = ()
    advantages: TokenAdvantages | None = None
    objective: TokenObjective | None = None
    token_weights: tuple[TokenWeights, ...] = ()
    aggregation: Aggregation = "token-mean"
    regularizers: tuple[TokenRegularizer, ...] = ()
    reference: Reference | None = None
    critic: Critic | OwnCritic | None = None
    learners: tuple[TokenLearner | TokenHead, ...] = ()
    optimizer: TokenOptimizer | None = None
    problems: Count = 16
    epochs: Count = 1
    minibatches: Count = 1
    bound: WholeNumber = 0
    renew_after: WholeNumber = 0

    @property
    def completions(self) -> int | None:
        return None if self.experience is None else self.experience.size

    @property
    def oversampling(self) -> Filter | None:
        """The filter that has more groups begun than a step needs, if there is one."""
        return next((part for part in self.filters if part.extra), None)

    @property
    def begun(self) -> int:
        """How many problems a step begins at first."""
        asked = self.problems if self.experience is None else self.experience.asks(self.problems)
        return asked + (0 if self.oversampling is None else self.oversampling.extra)

    @property
    def own_critic(self) -> OwnCritic | None:
        """The critic, if it is a network of its own."""
        return self.critic if isinstance(self.critic, OwnCritic) else None

    @property
    def joint_critic(self) -> Critic | None:
        """The critic, if the policy's own step trains it."""
        return self.critic if isinstance(self.critic, Critic) else None

    @property
    def reads_value_head(self) -> bool:
        """Whether values come from a head on the policy."""
        return Need.VALUES in self.needs() and self.own_critic is None

    def contradictions(self) -> Iterator[str]:
        assert self.experience is not None and self.objective is not None
        objective, experience = type(self.objective).__name__, type(self.experience).__name__
        if (user := self.behaviour_user()) and not self.experience.knows_behaviour:
            yield (
                f"{type(user).__name__} needs the log-probabilities of the policy that sampled, and {experience} takes "
                "its rows from data: choose an objective for data (log-likelihood, dpo) and no other part that needs "
                "them, or an experience that samples (groups), or data that have them (scored-answers, behaviour=true)."
            )
        if self.token_weights and self.objective.per_row:
            yield (
                f"{type(self.token_weights[0]).__name__} weighs tokens, and {objective} has one loss per row, which "
                "belongs to none of them: choose an objective per token, or leave token_weights empty."
            )
        if self.objective.vanishes_with_advantage and self.advantages is None:
            yield f"{objective} learns from advantages, and the slot advantages is empty."
        if self.advantages is not None and not self.rewards:
            yield "there are advantages but no rewards to compute them from; set rewards=task-reward."
        if self.objective.couples == "group" and self.experience.rows_per_problem == 1:
            yield f"{objective} compares answers to one problem: set experience.size to 2 or more."
        own = [] if self.own_critic is None else ["critic"]
        yield from _same_names([*own, *(part.name for part in self.learners)])
        if self.own_critic is not None and Need.VALUES in self.needs("objective", "regularizers"):
            yield f"{objective} or a regularizer reads values of the policy's own head: choose critic=token-critic."
        if self.experience.pauses:
            yield from self._without_rewards(experience)
        yield from players.contradictions(self)

    def misfits(self, task: Task) -> Iterator[str]:
        yield from players.misfits(self, task)

    def _without_rewards(self, experience: str) -> Iterator[str]:
        """Parts that cannot do with rows which go on in a later step, and have no reward yet."""
        assert self.objective is not None
        rows = f"{experience} gives rows that go on in a later step and have no reward yet"
        if self.advantages is None or not self.advantages.of_unfinished:
            yield f"{rows}, for which only some advantages have credit: choose advantages=egae."
        if self.joint_critic is not None:
            yield f"{rows}, and {type(self.critic).__name__} learns from every row: choose critic=value-model."
        if not self.objective.vanishes_with_advantage:
            yield f"{rows}, and {type(self.objective).__name__} learns from more than advantages."
        others = (*(r for r in self.rewards if isinstance(r, GroupReward)), *self.filters, self.second_look)
        for part in (part for part in others if part is not None):
            yield f"{rows}, and {type(part).__name__} goes by the rewards of all: leave it out, or choose groups."


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMethod(Method):
    """What the on-policy loop reads: steps of a population in environments.

    `epochs` passes over each rollout, each in `minibatches` optimizer steps of every member.
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.CONTROL})
    required: ClassVar[tuple[str, ...]] = ("policy", "experience", "advantages", "objective", "optimizer")
    stays: ClassVar[Mapping[str, str]] = {
        "policy": "", "optimizer": "optimizer", "critic": "optimizer", "learners": "optimizer"
    }  # fmt: skip
    computes: ClassVar[frozenset[Need]] = frozenset(
        {Need.ENTROPY, Need.VALUES, Need.KL, Need.KL_PARTS, Need.NEXT_OBSERVATIONS, Need.COSTS, Need.PROGRESS}
    )

    stages: tuple[Stage, ...] = ()
    policy: Policy | None = None
    experience: StepExperience | None = None
    rewards: tuple[StepReward, ...] = ()
    advantages: StepAdvantages | None = None
    objective: StepObjective | None = None
    regularizers: tuple[StepRegularizer, ...] = ()
    critic: StateCritic | None = None
    learners: tuple[StepLearner | StepHead, ...] = ()
    optimizer: StepOptimizer | None = None
    epochs: Count = 1
    minibatches: Count = 1

    @property
    def lagrangians(self) -> tuple[Lagrangian, ...]:
        """The terms of its loss that have Lagrange multipliers."""
        terms: tuple[object, ...] = (self.objective, *self.regularizers)
        return tuple(part for part in terms if isinstance(part, Lagrangian))

    def contradictions(self) -> Iterator[str]:
        assert self.experience is not None
        if self.critic is not None and not isinstance(self.critic, (Joint, StepLearner)):
            yield f"{type(self.critic).__name__} is neither Joint nor a StepLearner, so nothing would train it."
        steps, environments = self.experience.steps, self.experience.environments
        if environments * steps < self.minibatches:
            yield (
                f"{steps} steps in {environments} environments cannot be divided into {self.minibatches} minibatches."
            )
        named = (*self.learners, *self.lagrangians)
        yield from _same_names(["policy", "critic", *(part.name for part in named)])
        yield from self._other_multipliers()
        yield from self._other_updates()

    def _other_multipliers(self) -> Iterator[str]:
        """Stages between which the numbers change that the optimizer trains."""
        each = [own.lagrangians for _, own in applied(self) if isinstance(own, RolloutMethod)]
        for number, (before, now) in enumerate(pairwise(each), 1):
            if before != now and "optimizer" not in resets(self, number):
                yield (
                    f"stage {number} changes what has Lagrange multipliers, which the optimizer trains: give the stage "
                    "optimizer=reset."
                )

    def _other_updates(self) -> Iterator[str]:
        """Stages between which the number of a rollout, by which its random numbers are addressed, would jump."""
        parts = [own.experience for _, own in applied(self) if isinstance(own, RolloutMethod)]
        if len({part.updates for part in parts if part is not None}) > 1:
            yield "stages have other numbers of updates in a training step: give all the same experience.updates."


Order = tuple[str | tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayMethod(Method):
    """What the off-policy loop reads: rows that a population stored, and how its networks learn from them.

    `rewards` say what a step is worth before it is stored; `transforms` change logs before they are learned from. An
    update draws what those learners read that are due, then goes through `order`: for each entry, a name or a group of
    names whose losses are all computed before any of them steps, loss, gradient, step. Slow copies follow last, unless
    'targets' stands in `order`. Every `every` and `warmup` counts updates from 1. `rate` is a factor on the learning
    rates of all of them; `optimizer.lr=...` sets them all.
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.CONTROL})
    required: ClassVar[tuple[str, ...]] = ("policy", "experience", "sampling")
    stays: ClassVar[Mapping[str, str]] = {
        "policy": "", "critic": "", "value": "", "planner": "", "learners": "", "experience": "experience",
        "transforms": "",
    }  # fmt: skip
    computes: ClassVar[frozenset[Need]] = frozenset({Need.NEXT_OBSERVATIONS, Need.ESTIMATE})

    stages: tuple[Stage, ...] = ()
    policy: ReplayPolicy | None = None
    experience: ReplayExperience | None = None
    exploration: Exploration | None = None
    transforms: tuple[LogTransform, ...] = ()
    sampling: Sampling | None = None
    rewards: tuple[StepReward, ...] = ()
    critic: ReplayCritic | None = None
    actor: tuple[ActorTerm, ...] = ()
    value: ReplayValue | None = None
    planner: ReplayPlanner | None = None
    learners: tuple[ReplayLearner, ...] = ()
    order: Order = ("critic", "policy")
    rate: Positive = 1.0

    @property
    def trained(self) -> dict[str, ReplayLearner | ReplayPolicy]:
        """What takes steps, by the name that `order` has for it."""
        named: dict[str, ReplayLearner | ReplayPolicy | None] = {"critic": self.critic, "policy": self.policy}
        named |= {"value": self.value, **{part.name: part for part in self.learners}}
        return {k: part for k, part in named.items() if part is not None and part.learning is not None}

    def groups(self) -> list[tuple[str, ...]]:
        """`order` as groups of names."""
        return [(entry,) if isinstance(entry, str) else entry for entry in self.order]

    def contradictions(self) -> Iterator[str]:
        assert self.policy is not None
        policy = type(self.policy).__name__
        yield from self._acting()
        if self.critic is None and self.policy.made_of_critic:
            yield f"{policy} does what the critic says is best, and there is none: set critic=q-functions."
        if self.policy.made_of_critic and self.actor:
            yield f"{policy} does what the critic says is best and learns nothing: leave the slot actor empty."
        if not self.policy.made_of_critic and not self.actor:
            yield f"{policy} learns by the terms of the slot actor, which is empty: set actor=maximize-q."
        for reward in self.rewards:
            cls = type(reward)
            if cls.before_update is not Part.before_update or cls.after_update is not Part.after_update:
                yield f"{cls.__name__} learns from whole rollouts, and here rewards are told one step at a time."
        yield from _same_names(["policy", "critic", "value", *(part.name for part in self.learners)])
        encoders = [part.name for part in self.learners if isinstance(part, ReplayEncoder)]
        if len(encoders) > 1:
            yield f"{' and '.join(encoders)} are encoders, and policy and critic read one: leave out the other."
        yield from self._misplaced()

    def _acting(self) -> Iterator[str]:
        """What is for those who act alone, and what for those who learn from logs."""
        assert self.experience is not None
        experience = type(self.experience).__name__
        if self.experience.acts:
            if self.exploration is None:
                yield f"{experience} acts, and nothing says how: set exploration=sampled, or experience=logged."
            if self.transforms and not self.experience.reads_logs:
                name = type(self.transforms[0]).__name__
                yield f"{name} changes logs, and {experience} acts: leave transforms empty."
            return
        for part in (self.exploration, *self.rewards):
            if part is not None:
                yield f"{experience} never acts, so nobody asks {type(part).__name__}: leave it out."

    def _misplaced(self) -> Iterator[str]:
        """Names in `order` that nobody has, that are there twice, or that are missing."""
        names, trained = [name for group in self.groups() for name in group], self.trained
        for name in dict.fromkeys(names):
            if name != "targets" and name not in trained:
                yield f"order names {name}, and what learns is called {', '.join(trained)}: leave it out."
            elif names.count(name) > 1:
                yield f"order names {name} twice: a learner has one place in an update."
        several = {name for name, part in trained.items() if part.learning is not None and part.learning.epochs > 1}
        for group in self.groups():
            bursts = [name for name in group if name in several]
            if bursts and len(group) > 1:
                yield (
                    f"order has {bursts[0]} in a group, whose losses are computed together, and it learns several "
                    "times in a row: give it a place of its own."
                )
        for name in trained:
            if name not in names:
                yield f"order leaves out {name}, which would never learn: order={','.join([*map(str, names), name])}."


def _same_names(names: Sequence[str]) -> Iterator[str]:
    for name in dict.fromkeys(n for n in names if names.count(n) > 1):
        yield f"two networks are called {name}, and are read by their names: give one learner another class name."
