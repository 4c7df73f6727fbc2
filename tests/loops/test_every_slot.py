"""Every slot of every kind is read, in each of its worlds: a part there is called, a value there changes the run.

What a world has no use for is refused instead. A slot that is added needs a line in one of the two tables.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from control_toys import control_loop
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.kind_names import KINDS as ALL_KINDS
from etude.core.kinds import ReplayMethod, RolloutMethod, TokenMethod
from etude.core.learners import Learning, StepHead, StepLearner, TokenHead, TokenLearner
from etude.core.method import Method
from etude.core.part import Need, Part
from etude.core.population import Member, Population
from etude.core.recipe import Recipe
from etude.core.registry import get_method
from etude.core.worlds import World
from etude.curricula.prioritised import Prioritised
from etude.curricula.uniform import Uniform
from etude.experience.groups import Groups
from etude.experience.roles import Plays
from etude.experience.second_look import AllProblems, LookAgain
from etude.experience.shown import AttemptAndCritique
from etude.experience.transforms import StandardizeObservations
from etude.experience.vector import Rollouts
from etude.filters.first import FirstGroups
from etude.filters.informative import InformativeGroups
from etude.learners.fitted import FittedValue, squared_error
from etude.learners.state import StateValue
from etude.learners.token import TokenCritic
from etude.loops.enumerable import EnumerableLoop
from etude.loops.off_policy import OffPolicyLoop
from etude.methods.rlvr.max_at_k import BestOfGroup
from etude.objectives.actor import Entropy, MaximizeQ
from etude.objectives.policy_gradient import ClippedSurrogate, PolicyGradient
from etude.objectives.reductions import Min
from etude.optimizers.adam import AdamW
from etude.policies.control.actor import ActorPolicy
from etude.policies.control.networks import MLP, Linear
from etude.references.frozen import Frozen, MovingAverage
from etude.regularizers.entropy import EntropyBonus
from etude.regularizers.kl import KLToReference
from etude.rewards.entropy import EntropyReward
from etude.rewards.outcome import OverlongPenalty, TaskReward
from etude.rewards.running import NormalizeRewards
from etude.stages.phases import Phase
from etude.tasks.control.pendulum import pendulum
from etude.tasks.tabular.enumerable import Enumerable
from etude.token_weights.entropy import HighEntropyTokens
from language_toys import Toy, make_loop
from log_toys import logged_task, small_logged
from replay_toys import small as small_replay

pytestmark = pytest.mark.usefixtures("one_thread")


KINDS = {name: kind for name, kind in ALL_KINDS.items() if kind is not Recipe}
"""What a loop trains; the slots of a recipe are those of its runs: `runs/test_recipe_runs.py`."""


class Uneven(Toy):
    """Completions of all lengths, so that it matters how tokens are averaged."""

    stop: ClassVar[tuple[str, ...]] = tuple("abcdefghijklm")


TASKS: dict[World, Any] = {
    World.LANGUAGE: Uneven(),
    World.ENUMERABLE: Enumerable(prompts=3, vocabulary=3, length=2, ends=True, graded=True),
}
GRPO: Any = get_method("grpo").replace(experience=Groups(size=4), problems=3)
WITH_REFERENCE = GRPO.replace(regularizers=(KLToReference(),))
TOKEN_PPO: Any = get_method("ppo").replace(experience=Groups(size=4), problems=3)
SMALL: Any = {
    "policy": ActorPolicy(network=MLP(hidden=(8,))),
    "experience": Rollouts(environments=2, steps=8),
    "critic": StateValue(network=MLP(hidden=(8,))),
    "epochs": 1,
    "minibatches": 1,
}
PPO: Any = get_method("ppo", "control").replace(**SMALL)
SAC: Any = small_replay(get_method("sac"), warmup=200, random=200, capacity=300)
"""Learns from the end of the first episode on."""
IQL: Any = small_logged("iql")
CFPI: Any = small_logged("cfpi")
TD3_BC: Any = small_logged("td3-bc").replace(transforms=())
COUNTED: Any = SAC.replace(learners=(), order=("critic", ("policy", "counting-temperature")))
"""Without the learner whose place it has."""
WHOLE: dict[type[Method], Any] = {TokenMethod: GRPO, RolloutMethod: PPO, ReplayMethod: SAC}
FITTED = FittedValue(network=MLP(hidden=(8,)))
ONCE_MORE = LookAgain(which=AllProblems(), shows=AttemptAndCritique())


class Guess(StepLearner):
    """Values learned beside the critic, for nobody."""

    slot = "learners"
    learning: Learning = Learning(optimizer=AdamW(lr=1e-3))

    def build(self, shape: tuple[int, ...], actions: Any, population: Population) -> nn.Module:
        return FITTED.build(shape, actions, population)

    def loss(self, read: Any) -> torch.Tensor:
        return squared_error(read.says, read.batch)


class StepGuess(StepHead):
    """Rewards predicted from the features of the policy."""

    def build(self, shape: tuple[int, ...], actions: Any, population: Population) -> nn.Module:
        return Linear(population, "guess", shape[0], 1, gain=1.0)

    def loss(self, batch: Any, policy: Any) -> torch.Tensor:
        return (policy.said[self.name].squeeze(-1) - batch.rewards) ** 2


class TokenGuess(TokenHead):
    """Scores predicted from the states of the policy."""

    def build(self, width: int) -> nn.Module:
        return nn.Linear(width, 1)

    def loss(self, batch: Any, policy: Any) -> torch.Tensor:
        return (policy.said[self.name][..., 0] - batch.scores[:, None]) ** 2


class TokenJudge(TokenLearner):
    """Scores learned from the states of the policy, for nobody."""

    needs = frozenset({Need.HIDDEN})
    learning: Learning = Learning(optimizer=AdamW(lr=1e-3))

    def build(self, width: int) -> nn.Module:
        return nn.Linear(width, 1)

    def loss(self, read: Any) -> torch.Tensor:
        return ((read.says[..., 0] - read.batch.scores[:, None]) ** 2).mean()


GAE_CONTROL: Any = get_method("gae", "control").replace(**{k: v for k, v in SMALL.items() if k != "critic"})


@dataclass(frozen=True)
class Filling:
    """A shipped part in a slot of a method, and the function of it that its loop has to call."""

    method: Method
    part: Part
    verb: str
    worlds: tuple[World, ...] = ()


ONLY_LANGUAGE = (World.LANGUAGE,)
CALLED: dict[str, dict[str, list[Filling]]] = {
    "TokenMethod": {
        "stages": [Filling(GRPO, Phase(), "apply")],
        "curriculum": [Filling(GRPO, Uniform(), "choose"), Filling(GRPO, Prioritised(), "choose")],
        "experience": [Filling(GRPO, GRPO.experience, "collect", ONLY_LANGUAGE)],
        "second_look": [Filling(GRPO, ONCE_MORE, "again")],
        "roles": [Filling(GRPO, Plays(), verb) for verb in ("follows", "seat")],
        "rewards": [
            Filling(GRPO, TaskReward(), "shape_in", ONLY_LANGUAGE),
            *(Filling(GRPO, EntropyReward(), verb) for verb in ("marked", "shape_in")),
            Filling(GRPO, OverlongPenalty(), "score"),
            Filling(GRPO, BestOfGroup(), "rescore"),
        ],
        "filters": [
            Filling(GRPO, InformativeGroups(), "weigh"),
            Filling(GRPO, FirstGroups(), "ended", ONLY_LANGUAGE),
        ],
        "advantages": [Filling(GRPO, GRPO.advantages, verb) for verb in ("__call__", "returns")],
        "objective": [Filling(GRPO, ClippedSurrogate(), "__call__"), Filling(GRPO, PolicyGradient(), "__call__")],
        "token_weights": [Filling(GRPO, HighEntropyTokens(), "__call__")],
        "regularizers": [Filling(GRPO, EntropyBonus(), "__call__")],
        "reference": [
            Filling(WITH_REFERENCE, Frozen(), "refresh"),
            Filling(WITH_REFERENCE, MovingAverage(), "refresh"),
        ],
        "critic": [Filling(TOKEN_PPO, TokenCritic(), "loss")],
        "learners": [
            *(Filling(GRPO, TokenJudge(), verb) for verb in ("build", "loss", "offers")),
            *(Filling(GRPO, TokenGuess(), verb) for verb in ("build", "loss")),
        ],
        "optimizer": [Filling(GRPO, AdamW(), verb) for verb in ("build", "rate", "clip", "restarts")],
    },
    "RolloutMethod": {
        "policy": [Filling(PPO, PPO.policy, verb) for verb in ("build", "watch")],
        "rewards": [Filling(PPO, NormalizeRewards(), "shape")],
        "advantages": [
            Filling(PPO, PPO.advantages, verb) for verb in ("of_transitions", "returns_of_transitions", "of_minibatch")
        ],
        "objective": [Filling(PPO, ClippedSurrogate(), verb) for verb in ("__call__", "metrics")],
        "regularizers": [Filling(PPO, EntropyBonus(), verb) for verb in ("__call__", "observe")],
        "critic": [
            *(Filling(PPO, PPO.critic, verb) for verb in ("build", "loss")),
            *(Filling(GAE_CONTROL, FITTED, verb) for verb in ("build", "loss")),
        ],
        "learners": [
            *(Filling(PPO, Guess(), verb) for verb in ("build", "loss", "offers")),
            *(Filling(PPO, StepGuess(), verb) for verb in ("build", "loss")),
        ],
        "stages": [Filling(PPO, Phase(), "apply")],
        "optimizer": [Filling(PPO, AdamW(), verb) for verb in ("population", "rate")],
    },
    "ReplayMethod": {
        "policy": [Filling(SAC, SAC.policy, verb) for verb in ("build", "actor", "watch")],
        "experience": [Filling(SAC, SAC.experience, verb) for verb in ("collector", "due")],
        "exploration": [Filling(SAC, SAC.exploration, verb) for verb in ("act", "ended")],
        "sampling": [Filling(SAC, SAC.sampling, "draw")],
        "rewards": [Filling(SAC, NormalizeRewards(), "shape")],
        "critic": [Filling(SAC, SAC.critic, verb) for verb in ("build", "loss")],
        "actor": [Filling(SAC, Entropy(), "__call__"), Filling(SAC, MaximizeQ(over=Min()), "__call__")],
        "learners": [Filling(COUNTED, SAC.learners[0], verb) for verb in ("build", "loss", "offers")],
        "stages": [Filling(SAC, Phase(), "apply")],
        "transforms": [Filling(TD3_BC, StandardizeObservations(), verb) for verb in ("__call__", "fit", "sentence")],
        "planner": [Filling(CFPI, CFPI.planner, "build")],
        "value": [Filling(IQL, IQL.value, verb) for verb in ("build", "loss", "worth")],
    },
}
"""For each kind what is called; without worlds: in all in which the slot is not refused."""
CHANGED: dict[str, dict[str, Any]] = {
    "TokenMethod": {
        "experience": Groups(size=5), "problems": 2, "epochs": 2, "minibatches": 2, "aggregation": "token-mean",
        "bound": 1, "renew_after": 1,
    },
    "RolloutMethod": {"experience": Rollouts(environments=4, steps=8), "epochs": 2, "minibatches": 2},
    "ReplayMethod": {"order": (("policy", "temperature"), "critic"), "rate": 0.5},
}  # fmt: skip
"""For each kind the values that change a run."""
BESIDE: dict[str, dict[str, Any]] = {"renew_after": {"bound": 2}}
"""What else is set where a value means nothing by itself: compared is with and without the value, after four steps."""


def counting(part: Part, *verbs: str) -> tuple[Part, list[str]]:
    """A part of a class below the shipped one's that does the same, and the list that notes each call of `verbs`."""
    cls, calls = type(part), list[str]()

    def noted(verb: str) -> Callable[..., Any]:
        def note(self: Any, *args: Any, **options: Any) -> Any:
            calls.append(verb)
            return getattr(super(counts, self), verb)(*args, **options)

        return note

    about = {**{verb: noted(verb) for verb in verbs}, "__module__": __name__, "worlds": cls.worlds}
    counts: Any = type(cls)(f"Counting{cls.__name__}", (cls,), about)
    return counts(**part.fields()), calls


def with_part(method: Method, slot: str, part: Part) -> Method:
    """The method with the part in the slot, or as the last in a slot of several."""
    held = getattr(method, slot)
    return method.replace(**{slot: (*held, part) if isinstance(held, tuple) else part})


@cache
def swings() -> Any:
    """Logs of a pendulum."""
    return logged_task(Path(tempfile.mkdtemp()))


def run(method: Method, world: World, steps: int = 2) -> torch.Tensor:
    """All weights after some steps, flat."""
    if world is World.LANGUAGE:
        loop = make_loop(method, TASKS[world], steps=steps)
    elif world is World.ENUMERABLE:
        check(method, TASKS[world])
        loop = EnumerableLoop(method, TASKS[world], seeds=[5], steps=steps)
    elif isinstance(method, ReplayMethod):
        acts = method.experience is not None and method.experience.acts
        task = pendulum if acts else swings()
        check(method, task)
        loop = OffPolicyLoop(method, task, [Member(5), Member(6)], steps, block=210 if acts else 4)
    else:
        loop = control_loop(method, [5, 6], steps)
    for _ in range(steps):
        loop.step()
    if world is World.LANGUAGE:
        return torch.cat([p.detach().flatten() for p in loop.policy.parameters()])
    if isinstance(method, ReplayMethod):
        return torch.cat([v.flatten() for v in loop.policy_tensors().values()])
    return loop.policy.logits[0].detach() if world is World.ENUMERABLE else loop.parameters.values.detach()


def calls() -> list[Any]:
    return [
        pytest.param(filling, slot, world, id=f"{kind}-{world}-{slot}-{type(filling.part).__name__}.{filling.verb}")
        for kind, slots in CALLED.items()
        for slot, fillings in slots.items()
        for filling in fillings
        for world in sorted(filling.worlds or KINDS[kind].worlds)
        if slot not in KINDS[kind].absent.get(world, ())
    ]


@cache
def noted_in_a_run(method: int, slot: str, kind: type[Part], world: World) -> list[str]:
    """What of a part was called in a run: all that the table has of it is looked for in the same one."""
    found = [f for slots in CALLED.values() for f in slots.get(slot, ()) if id(f.method) == method]
    fillings = [f for f in found if type(f.part) is kind]
    assert all(f.part == fillings[0].part for f in fillings)
    part, noted = counting(fillings[0].part, *(f.verb for f in fillings))
    run(with_part(fillings[0].method, slot, part), world)
    return noted


@pytest.mark.slow
@pytest.mark.parametrize(("filling", "slot", "world"), calls())
def test_a_part_in_the_slot_is_called(filling: Filling, slot: str, world: World) -> None:
    assert filling.verb in noted_in_a_run(id(filling.method), slot, type(filling.part), world)


def values() -> list[Any]:
    return [
        pytest.param(KINDS[kind], slot, value, world, id=f"{kind}-{world}-{slot}")
        for kind, slots in CHANGED.items()
        for slot, value in slots.items()
        for world in sorted(KINDS[kind].worlds)
        if slot not in KINDS[kind].absent.get(world, ())
    ]


@cache
def untouched(kind: type[Method], world: World) -> torch.Tensor:
    """All weights after some steps of the method as it is, whenever it runs."""
    method = WHOLE[kind]
    found = run(method, world)
    assert torch.equal(found, run(method, world))
    return found


@pytest.mark.first
@pytest.mark.parametrize(("kind", "slot", "value", "world"), values())
def test_another_value_is_another_run(kind: type[Method], slot: str, value: Any, world: World) -> None:
    method, steps = WHOLE[kind].replace(**BESIDE.get(slot, {})), 4 if slot in BESIDE else 2
    before = run(method, world, steps) if slot in BESIDE else untouched(kind, world)
    after = run(method.replace(**{slot: value}), world, steps)
    assert before.shape == after.shape
    assert not torch.equal(before, after)


@pytest.mark.parametrize(
    ("kind", "world", "slot"),
    [
        pytest.param(kind, world, slot, id=f"{name}-{world}-{slot}")
        for name, kind in KINDS.items()
        for world in sorted(kind.worlds)
        for slot in kind.slot_names()
    ],
)
def test_every_slot_is_called_changes_the_run_or_is_refused(kind: type[Method], world: World, slot: str) -> None:
    called = [p.values for p in calls() if p.values[1:] == (slot, world) and isinstance(p.values[0].method, kind)]
    changed = [p.values for p in values() if (p.values[0], p.values[1], p.values[3]) == (kind, slot, world)]
    refused = slot in kind.absent.get(world, ())
    assert (called or changed) if not refused else not (called or changed), f"Add {slot} to a table of this test."


@pytest.mark.parametrize(
    ("filling", "slot"),
    [
        pytest.param(fillings[0], slot, id=f"{kind}-{world}-{slot}")
        for kind, slots in CALLED.items()
        for world, absent in KINDS[kind].absent.items()
        for slot, fillings in slots.items()
        if slot in absent
    ],
)
def test_a_slot_without_a_use_is_refused(filling: Filling, slot: str) -> None:
    part, _ = counting(filling.part, filling.verb)
    with pytest.raises(ConfigError, match=f"whose loop has no use for the slot {slot}"):
        check(with_part(filling.method, slot, part), TASKS[World.ENUMERABLE])
