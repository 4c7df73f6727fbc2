"""What is learned from a replay converges to values that are known, with every horizon, through time limits.

Eight places in a ring, one further in every step whatever is done, and a reward at place 0: with gamma 0.7 the value of
place x is 0.7^((8 - x) mod 8) / (1 - 0.7^8). Nothing ever ends; a time limit cuts each episode after four steps and the
next begins at place 0 or 4. Who takes the limit for an end, or the first place of the next episode for the last of this
one, finds other values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from gymnasium import spaces

from etude.core.control import ControlTask, Step, VectorEnvironment
from etude.core.edit import set_values
from etude.core.population import Member
from etude.core.replay_slots import ReplayReading
from etude.experience.sampling import NStep, OneStep, Quintuple, TimeAware
from etude.learners.heads import Atoms, Quantiles
from etude.loops.off_policy import OffPolicyLoop
from etude.methods.preference.rlhf_survey.stored import Payment
from etude.tasks.control._batched import ArrayEnvironment
from replay_toys import REPLAY, acts_in_boxes, narrow, sooner

GAMMA, PLACES, UPDATES = 0.7, 8, 250
VALUES = torch.tensor([GAMMA ** ((PLACES - x) % PLACES) / (1 - GAMMA**PLACES) for x in range(PLACES)])
BOUND = 0.1
"""How far from its value no place may be."""
STREAMED = 500
"""Steps of those that learn from each once."""
torch.set_num_threads(1)


class Ring(ArrayEnvironment):
    """The places, as one-hot vectors."""

    draws, limit = 1, 4
    observation_space: ClassVar[Any] = spaces.Box(0.0, 1.0, (PLACES,))
    action_space: ClassVar[Any] = spaces.Discrete(2)

    def start(self, uniform: np.ndarray) -> np.ndarray:
        return np.floor(uniform * 2) * 4

    def advance(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rewards = (states[..., 0] == 0).astype(float)
        return (states + 1) % PLACES, rewards, np.zeros(rewards.shape, bool)

    def observe(self, states: np.ndarray) -> np.ndarray:
        return np.eye(PLACES, dtype=np.float32)[states[..., 0].astype(int)]


class RingOfBoxes(Ring):
    action_space: ClassVar[Any] = spaces.Box(-1.0, 1.0, (1,))


def faulty(kind: str, found: Step) -> Step:
    """What a step would say with the fault."""
    if kind == "limits are ends":
        return dataclasses.replace(
            found, terminated=found.terminated | found.truncated, truncated=np.zeros_like(found.truncated)
        )
    if kind == "the next episode" and found.final is not None:
        return dataclasses.replace(found, final=found.observations[found.terminated | found.truncated])
    return found


class RingTask(ControlTask):
    id: ClassVar[str] = "ring"
    boxes: bool = False
    fault: str = ""

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        made, fault = (RingOfBoxes if self.boxes else Ring)(seeds, count, purpose), self.fault
        step = made.step
        made.step = lambda actions: faulty(fault, step(actions))  # type: ignore[method-assign]
        return made


class AsTold(Payment):
    """What the environment paid."""

    def __call__(self, read: ReplayReading) -> torch.Tensor:
        return read.batch.rewards

    def most(self, largest: torch.Tensor) -> torch.Tensor:
        return largest


def stored(method: Any, horizon: Any) -> tuple[Any, dict[str, Any], int]:
    """A method with a small replay that learns fast, what else to set, and how many steps it takes."""
    small = {"random": 50, "warmup": 50, "every": 1, "updates": 1.0, "environments": 1, "capacity": 500}
    method = method.replace(
        experience=method.experience.replace(**small), sampling=method.sampling.replace(batch=32, horizon=horizon)
    )
    every, rate = (5, 1.0) if method.policy.made_of_critic else (1, 0.2)
    copies = {"critic.learning.target.every": every, "critic.learning.target.rate": rate}
    return method, {"optimizer.lr": 2e-2, **copies}, UPDATES + 50


def streamed(method: Any, horizon: Any) -> tuple[Any, dict[str, Any], int]:
    """The same of one that learns from each step once, in rewards and places as they are."""
    policy = method.policy.replace(observations=())
    if method.sampling.horizon.beyond:
        horizon = Quintuple(gamma=horizon.gamma)
    method = method.replace(policy=policy, rewards=(), sampling=method.sampling.replace(horizon=horizon))
    if method.critic.learning.target is None:
        return method, {}, STREAMED
    return method, {"optimizer.lr": 1e-2, "critic.learning.target.every": 5, "exploration.over": 10}, 8 * STREAMED


def learned(name: str, horizon: Any, wanted: torch.Tensor, fault: str = "") -> torch.Tensor:
    """[8] how far from what is wanted the critics are after training, or as soon as they are within half of `BOUND`."""
    method: Any = REPLAY[name]
    boxes = acts_in_boxes(method)
    learners = tuple(narrow(part, 16) for part in method.learners)
    method = method.replace(policy=narrow(method.policy, 16), critic=narrow(method.critic, 16), learners=learners)
    method, changes, steps = (streamed if method.sampling.newest else stored)(method, horizon)
    for path in ("critic.head", "critic.head.head"):
        if isinstance(method.parts().get(path), Atoms):
            changes |= {f"{path}.low": 0.0, f"{path}.high": 2.0, f"{path}.count": 21}
    if isinstance(method.critic.head, Quantiles):
        changes["critic.head.count"] = 10
    if "share" in method.critic.backup.fields():  # nothing is random, and errors are in logarithms
        changes, steps = changes | {"critic.backup.share": 1.0, "optimizer.lr": 5e-3}, 1_000
    if "kl" in method.critic.backup.rule.fields():
        changes |= {"critic.backup.rule.kl": 0.0, "critic.backup.rule.entropy": 0.0}
    if any(part.name == "temperature" for part in method.learners):  # the temperature stays, at next to nothing
        changes |= {"learners.temperature.start": 1e-6, "learners.temperature.learning": "none"}
        method = method.replace(order=("critic", "policy"))
    if "sigma" in method.critic.learning.optimizer.fields():  # noise in its steps, which are as long as gradients are
        changes, steps = changes | {"critic.learning.optimizer.sigma": 0.0, "optimizer.lr": 5e-3}, 2 * steps
    if "payment" in method.critic.backup.fields():
        changes["critic.backup.payment"] = AsTold
    method = sooner(set_values(method, changes), every=5)
    blocks = steps // 50
    loop = OffPolicyLoop(method, RingTask(boxes=boxes, fault=fault), [Member(0)], blocks, 50)
    for _ in range(blocks):
        loop.step()
        error = (said(loop, boxes) - wanted).abs().mean((0, 1))
        if float(error.max()) < BOUND / 2:
            break
    return error


def said(loop: OffPolicyLoop, boxes: bool) -> torch.Tensor:
    """[P, M, 8] what the critics say of the places."""
    seen = torch.eye(PLACES)[None]
    with torch.no_grad():
        if encoder := cast(Any, loop.updater.networks.get("encoder")):
            found = loop.critic(encoder.join(encoder(seen), torch.zeros(1, PLACES, 1)))
        else:
            found = loop.critic(seen, torch.zeros(1, PLACES, 1)) if boxes else loop.critic(seen)
    part: Any = loop.method.critic
    values = part.head.mean(found) * part.backup.state.get("now", 1.0)  # in units of which they may be
    return values if boxes else values.mean(-1)


ONE, THREE = OneStep(gamma=GAMMA), NStep(gamma=GAMMA, n=3)


def holds(name: str, horizon: Any) -> bool:
    """Whether a method's rows may reach so far: those that keep one step alone, or read what was done next, do not."""
    method: Any = REPLAY[name]
    if not method.sampling.newest:
        return True
    return bool(method.experience.steps >= horizon.length and method.experience.ahead == horizon.beyond)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "horizon"),
    [
        *((name, ONE) for name in REPLAY),
        *((name, THREE) for name in REPLAY if holds(name, THREE)),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_values_bootstrap_through_a_time_limit(name: str, horizon: Any) -> None:
    assert float(learned(name, horizon, VALUES).max()) < BOUND


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "sac", "stream-x", "stream-ac"])
def test_a_time_aware_horizon_ends_at_the_limit(name: str) -> None:
    """Of the four steps from place 0 only the first pays, of those from place 4 none."""
    assert float(learned(name, TimeAware(gamma=GAMMA), torch.eye(PLACES)[0]).max()) < BOUND


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["limits are ends", "the next episode"])
@pytest.mark.parametrize(
    ("name", "horizon"),
    [*((name, ONE) for name in ("dqn", "td3", "stream-x")), *((name, THREE) for name in ("dqn", "td3", "rainbow"))],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_faults_are_found(name: str, horizon: Any, fault: str) -> None:
    assert float(learned(name, horizon, VALUES, fault).max()) > 1.2 * BOUND
