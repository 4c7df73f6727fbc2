"""Advantages and targets that go on into another episode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from etude_museum.tiny import control
from torch import Tensor

from etude.advantages.returns import StepGAE
from etude.core.edit import set_values
from etude.core.registry import get_method
from etude.core.transitions import Transitions
from etude.evaluation.exhibits import Exhibit, Report
from etude.experience.store import Store

ANSWER = "true ends of episodes the critic learns another return than the last reward"


def rolled() -> Iterator[Mapping[str, float]]:
    """PPO on cart-pole, 64 steps in 4 environments at a time."""
    ppo = get_method("ppo", world="control")
    return control(set_values(ppo, {"experience.environments": 4, "experience.steps": 64}))


def estimated(change: Callable[[Transitions], Transitions]) -> AbstractContextManager[Any]:
    """Advantages of a rollout that is read in another way."""
    original = StepGAE.estimate

    def estimate(self: StepGAE, batch: Transitions, lam: float) -> Tensor:
        return original(self, change(batch), lam)

    return mock.patch.object(StepGAE, "estimate", estimate)


def _never_ends(batch: Transitions) -> Transitions:
    nowhere = torch.zeros_like(batch.terminated)
    return batch.replace(terminated=nowhere, truncated=nowhere)


def _one_step_late(batch: Transitions) -> Transitions:
    later = batch.terminated.roll(-1, 1)
    following = torch.where(later, 0.0, batch.values.roll(-1, 1))
    return batch.replace(terminated=later, next_values=following)


def _value_after_the_end(batch: Transitions) -> Transitions:
    following = torch.where(batch.terminated, batch.values.roll(-1, 1), batch.next_values)
    return batch.replace(
        next_values=following, terminated=torch.zeros_like(batch.terminated), truncated=batch.terminated
    )


LITTLE: dict[str, Any] = {
    "critic.network.hidden": "16", "sampling.batch": 6, "experience.capacity": 64, "experience.random": 8,
    "experience.warmup": 12, "experience.every": 1, "experience.updates": 1.0,
}  # fmt: skip
"""A critic of 16, a replay of 64 steps, an update for each of them."""


def stored() -> Iterator[Mapping[str, float]]:
    """DQN on cart-pole, three times sixteen steps."""
    return control(set_values(get_method("dqn"), LITTLE), block=16)


ranges: dict[str, float] = {}
"""The least and the largest return that the critic can say, where they are not those of cart-pole."""


def distributed() -> Iterator[Mapping[str, float]]:
    """C51 on cart-pole, three times sixteen steps."""
    bounds = {f"critic.head.{name}": value for name, value in ranges.items()}
    return control(set_values(get_method("c51"), LITTLE | bounds), block=16)


_push = Store.push


def _all_go_on(self: Store, seen: Any, actions: Any, following: Any, rewards: Any, live: Any, end: Any) -> None:
    _push(self, seen, actions, following, rewards, live | True, end)


exhibits = (
    Exhibit(
        id="trace-over-the-end",
        kind="targets",
        report=Report(thread="vietnh1009/Super-mario-bros-PPO-pytorch#21", title="Fatal bug in implementation of GAE"),
        says="The running sum of advantages was not set back where the game was over: what the next game earned was "
        "credited to the action that lost this one.",
        mechanism="the estimate of advantages sees no ends.",
        inject=lambda: estimated(_never_ends),
        run=rolled,
        expect=ANSWER,
    ),
    Exhibit(
        id="ends-one-step-late",
        kind="targets",
        report=Report(
            thread="hill-a/stable-baselines#385",
            title="Bug computing the Generalized Advantage Estimation (TRPO, PPO1, GAIL)",
        ),
        says="One file meant by new the first step of an episode and the other the last: advantages were wrong at "
        "every boundary in three algorithms.",
        mechanism="the estimate looks up the end of the next step instead of this one's.",
        inject=lambda: estimated(_one_step_late),
        run=rolled,
        expect=ANSWER,
    ),
    Exhibit(
        id="value-after-the-end",
        kind="targets",
        report=Report(
            thread="RoboVerseOrg/RoboVerse#814",
            title="fix(rl): stop PPO from bootstrapping across the episode boundary",
            pull=True,
        ),
        says="Where an episode had ended the value of the next one's first state was added: falling over paid +95 "
        "instead of -4.",
        mechanism="at a true end the value of the next episode's first observation follows.",
        inject=lambda: estimated(_value_after_the_end),
        run=rolled,
        expect=ANSWER,
    ),
    Exhibit(
        id="ends-not-in-the-targets",
        kind="targets",
        report=Report(thread="navneet-nmk/pytorch-rl#2", title="'Done' not used in calculating Q-value targets"),
        says="The target of the last step was the reward and the value of what followed, though nothing did: losing "
        "cost nothing.",
        mechanism="every step is stored as one that goes on.",
        inject=lambda: mock.patch.object(Store, "push", _all_go_on),
        run=stored,
        miss="what is stored is taken for what happened; heads and backups put targets into other forms, so that they "
        "cannot be held against rewards where episodes end, as returns are on-policy.",
    ),
    Exhibit(
        id="returns-in-the-range-of-rewards",
        kind="targets",
        report=Report(thread="Curt-Park/rainbow-is-all-you-need#39", title="Categorical DQN parameters for Acrobot"),
        says="Who asked for the critic's range in Acrobot was told that of one reward, -1 to 0, where hundreds of them "
        "add up: whatever was learned would have been cut to -1.",
        mechanism="the critic can say returns from 0 to 1, and a step on cart-pole pays 1.",
        inject=lambda: mock.patch.dict(ranges, {"low": 0.0, "high": 1.0}),
        run=distributed,
        expect="had discounted returns that the critic cannot say",
    ),
)
