"""AVG: the action that it learns from is the one that it executed; its scale of errors, by enumeration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from etude.core.errors import ConfigError
from etude.core.population import Member
from etude.experience.replay import Replay
from etude.experience.sampling import UniformRows
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.replay_reading import StoredReading
from etude.methods.value.avg import ReturnScale, avg
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY, small

torch.set_num_threads(1)


def reading(loop: OffPolicyLoop) -> StoredReading:
    draw, sampling = loop.updater.stretches.at(loop.updater.updates), loop.method.sampling
    return StoredReading(loop.updater, sampling, sampling.draw(loop.collector.store, draw), draw)


@pytest.mark.slow
def test_the_policy_learns_by_the_action_that_was_executed() -> None:
    loop = OffPolicyLoop(small(avg), pendulum, [Member(3), Member(4)], 4, 10)
    for _ in range(3):
        loop.step()
        loop.collector.step()
        read = reading(loop)
        choice = read.policy()
        assert torch.equal(choice.actions, read.batch.actions) and choice.actions.requires_grad
    again: Any = small(REPLAY["sac"])
    plain = OffPolicyLoop(again, pendulum, [Member(3)], 1, 30)
    plain.step()
    assert reading(plain).batch.noise is None


def test_no_step_is_large_where_the_first_observation_is_its_own_mean() -> None:
    """Of one observation the normalised is 0, and so is the last hidden vector of a policy whose biases are 0: its
    direction must not be what Adam remembers for a thousand times as many steps as it took."""
    loop = OffPolicyLoop(small(avg), pendulum, [Member(3), Member(4)], 4, 1)
    norms = [loop.step().metrics["policy_gradient_norm"] for _ in range(3)]
    assert max(norms) < 10 and norms[0] > 0


def lesson(r: float, logp: float, gamma: float, terminated: bool, truncated: bool) -> Any:
    one = torch.ones(2, 1)
    batch = SimpleNamespace(
        rewards=r * torch.tensor([[1.0], [10.0]]), discounts=gamma * one, terminated=terminated * one > 0,
        truncated=truncated * one > 0,
    )  # fmt: skip
    return SimpleNamespace(
        batch=batch, policy=lambda: SimpleNamespace(logp=logp * one), offered=lambda name: torch.tensor([0.5, 0.0])
    )


def test_the_scale_is_that_of_lists_of_all_that_was() -> None:
    """Two members: rewards of 10 times the size, temperatures of 0.5 and 0; a cut episode is no return."""
    part = ReturnScale().bind()
    rng = np.random.default_rng(0)
    ends = [(t in (4, 11, 12), t == 7) for t in range(15)]
    steps = [(float(rng.normal()), float(rng.normal()), *end) for end in ends]
    worth: list[np.ndarray] = []
    gammas, squares, total = list[float](), list[np.ndarray](), np.zeros(2)
    for r, logp, terminated, truncated in steps:
        gamma = 0.0 if terminated else 0.9
        sigma = part(lesson(r, logp, gamma, terminated, truncated))
        worth.append(np.array([r - 0.5 * logp, 10 * r]))
        gammas.append(gamma)
        total = total + worth[-1]
        if terminated:
            squares.append(total**2)
        total = total * (0.0 if terminated or truncated else 1.0)
        square = np.mean(squares, axis=0) if squares else 0.0
        variance = np.maximum(np.var(worth, axis=0) + square * np.var(gammas), 1e-4)
        expected = np.where((len(squares) == 0) & (variance <= 0.01), 1.0, np.sqrt(variance))
        assert sigma.numpy() == pytest.approx(expected, rel=1e-5)


def test_before_an_end_rewards_that_hardly_differ_are_not_scaled() -> None:
    part = ReturnScale().bind()
    for r in (1.0, 1.05, 1.0):
        sigma = part(lesson(r, 0.0, 0.9, False, False))
    assert sigma[0] == 1.0 and float(sigma[1]) == pytest.approx(np.std([10.0, 10.5, 10.0]), rel=1e-5)
    for _ in range(3):
        sigma = part(lesson(1.0, 0.0, 0.9, True, False))  # the discount is the same: no variance there
    assert float(sigma[0]) == pytest.approx(np.std([1.0, 1.05, 1.0, 1.0, 1.0, 1.0]), rel=1e-4)


def test_the_scale_is_refused_without_a_stream_or_a_temperature() -> None:
    with pytest.raises(ConfigError, match="ReturnScale follows episodes step by step: set experience=latest"):
        avg.replace(experience=Replay(), sampling=UniformRows()).check()
    with pytest.raises(ConfigError, match="no learner offers a temperature"):
        avg.replace(learners=()).check()
