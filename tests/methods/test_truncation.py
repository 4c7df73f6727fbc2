"""Truncated is not terminated: every method with a critic finds the known values of a task that is only ever cut.

Reward 1 at every step, no end, a time limit of 8 steps, gamma 0.9: V = 1 / (1 - 0.9) = 10 in every state, and every
advantage is 0. Who takes the time limit for an end finds the mean of what is left of 8 steps instead, about 3.5.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces

from etude.advantages.returns import transition_gae
from etude.core.control import ControlTask, Step, VectorEnvironment
from etude.core.learners import Learning
from etude.core.method import Method
from etude.core.population import Member
from etude.core.registry import get_method
from etude.core.transitions import Transitions
from etude.learners.fitted import FittedValue
from etude.learners.state import StateValue
from etude.loops.on_policy import OnPolicyLoop
from etude.methods.onpolicy.gae import GaussNewton, TrustRegionValue
from etude.optimizers.adam import AdamW
from etude.policies.control.networks import MLP
from etude.tasks.control._batched import ArrayEnvironment

GAMMA, LIMIT, VALUE = 0.9, 8, 10.0
METHODS = ("reinforce", "a2c", "ppo", "npg", "trpo", "gae", "ppo-continuous")

torch.set_num_threads(1)


class Forever(ArrayEnvironment):
    """A point that moves on a square; the action pushes it."""

    draws, limit = 2, LIMIT
    observation_space, action_space = spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2)

    def start(self, uniform: np.ndarray) -> np.ndarray:
        return 2 * uniform - 1

    def advance(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        moved = (states + 0.3 * (2 * actions[..., :1] - 1) + 1) % 2 - 1
        ones = np.ones(states.shape[:2])
        return moved, ones, ones < 0

    def observe(self, states: np.ndarray) -> np.ndarray:
        return states.astype(np.float32)


class Cut(Forever):
    """The same, with the planted fault: a time limit that claims to be an end."""

    def step(self, actions: np.ndarray) -> Step:
        found = super().step(actions)
        return dataclasses.replace(
            found, terminated=found.terminated | found.truncated, truncated=np.zeros_like(found.truncated)
        )


class Task(ControlTask):
    id: ClassVar[str] = "forever"
    cut: bool = False

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        return (Cut if self.cut else Forever)(seeds, count, purpose)


def quick(name: str) -> Method:
    """The method with its own parts, at a size and speed that fit a test."""
    method: Any = get_method(name, "control")
    critics = {
        StateValue: StateValue(network=MLP(hidden=(16,)), coefficient=1.0),
        FittedValue: FittedValue(
            network=MLP(hidden=(16,)),
            learning=Learning(optimizer=AdamW(lr=1e-2, epsilon=1e-5, clip_norm=None), epochs=8, minibatches=2),
        ),
        TrustRegionValue: TrustRegionValue(
            network=MLP(hidden=(16,)), learning=Learning(optimizer=GaussNewton(epsilon=0.2))
        ),
    }
    changes = {
        "experience": method.experience.replace(environments=4, steps=12),
        "advantages": method.advantages.replace(gamma=GAMMA),
        "rewards": (),  # their scale would move the value
        "critic": critics[type(method.critic)],
    }
    if method.critic.joint:
        changes |= {
            "optimizer": method.optimizer.replace(lr=3e-2, clip_norm=None),
            "minibatches": min(2, method.minibatches),
        }
    return method.replace(**changes)


def trained(name: str, cut: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and one-step advantages [P, T, E] after training."""
    method: Any = quick(name)
    steps = 150 // max(1, method.epochs * method.minibatches // 4) if method.critic.joint else 20
    steps = steps // 3 if cut else steps
    loop = OnPolicyLoop(method, Task(cut=cut), [Member(0), Member(1)], steps)
    for _ in range(steps):
        loop.step()
    batch: Transitions = loop.collector.collect(steps, loop.critic)
    assert batch.truncated.any() != cut
    found = transition_gae(
        batch.rewards, batch.values, batch.next_values, batch.terminated, batch.truncated, GAMMA, 0.95
    )
    return batch.values, found


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_values_bootstrap_through_a_time_limit(name: str) -> None:
    values, advantages = trained(name)
    torch.testing.assert_close(values, torch.full_like(values, VALUE), atol=0.3, rtol=0)
    torch.testing.assert_close(advantages, torch.zeros_like(advantages), atol=0.3, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "reinforce"])
def test_the_test_sees_a_truncation_that_is_taken_for_an_end(name: str) -> None:
    values, advantages = trained(name, cut=True)
    assert float(values.mean()) < 5.0
    assert float(advantages.abs().max()) > 1.0
