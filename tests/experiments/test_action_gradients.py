"""The experiment of HypeRL's claim: the known gradient, arms of one size, and what is measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from etude.core.population import Member
from etude.core.registry import get_method
from etude.experiments.value import hyperl
from etude.experiments.value.hyperl import (
    GAMMA,
    LINEAR,
    SHARE,
    LinearPolicy,
    arms,
    cosines,
    exact_gradient,
    fixed,
    watch,
)
from etude.loops.off_policy import OffPolicyLoop

pytestmark = pytest.mark.usefixtures("one_thread")
GAIN = SHARE * LINEAR.gain(GAMMA)


def value(state: np.ndarray, action: np.ndarray) -> float:
    """Q of one state and action by going on for 500 steps."""
    total, drift = 0.0, LINEAR.drift()
    for t in range(500):
        total -= GAMMA**t * float(state @ state + LINEAR.effort * action @ action)
        state = drift @ state + 0.5 * action
        action = -GAIN @ state
    return total


def test_the_exact_gradient_is_that_of_returns() -> None:
    state, h = np.array([0.3, -0.8, 0.5, 0.1, -0.6, 0.4]), 1e-5
    action = -GAIN @ state
    each = [
        (value(state, action + h * e) - value(state, action - h * e)) / (2 * h) for e in np.eye(6)
    ]  # by central differences
    found = exact_gradient(LINEAR, state[None], action[None])[0]
    assert found.tolist() == pytest.approx(each, abs=1e-6) and max(map(abs, each)) > 0.05


def loop_of(label: str) -> tuple[OffPolicyLoop, LinearPolicy]:
    method: Any = fixed(arms(LINEAR, (8, 8), {})[label], LINEAR)
    return OffPolicyLoop(method, LINEAR, [Member(0), Member(1)], 1), method.critic.backup.rule


def test_both_arms_have_as_many_numbers() -> None:
    for task, sizes in ((LINEAR, (32, 64, 128)), (hyperl.SWINGS, (16, 32, 64))):
        found, seen = arms(task, sizes, {}), task.make([0], 1)
        shape, actions = seen.observation_space.shape, seen.action_space
        mine, theirs = (
            hyperl.numbers(found[label].critic, shape, actions)
            for label in ("hyperl", "td3")  # type: ignore[arg-type]
        )
        assert theirs <= mine < 1.02 * theirs


def test_what_is_watched_is_the_linear_policy_with_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hyperl, "ROWS", 1_000)
    loop, rule = loop_of("td3")
    watch(loop, rule)
    rows = loop.collector.store.read(torch.arange(1_000).expand(2, -1))
    assert loop.collector.store.size == 1_000 and not torch.equal(rows.observations[0], rows.observations[1])
    states, actions = (x.double().numpy() for x in (rows.observations, rows.actions))
    off = actions - np.clip(-states @ GAIN.T / 2, -1, 1)
    assert 0.17 < off.std() < 0.21 and np.abs(off.mean((0, 1))).max() < 0.03
    led = states @ LINEAR.drift().T + 0.5 * 2 * actions
    assert np.abs(rows.next_observations.numpy() - led).max() < 1e-5
    assert np.abs(rows.rewards.numpy() + (states**2).sum(-1) + 0.25 * 4 * (actions**2).sum(-1)).max() < 1e-4
    assert int(rows.end.sum()) == 2 * 50 and float(rows.live.min()) == 1.0
    loop.close()


def test_a_critic_that_knows_the_values_has_a_cosine_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """r + gamma V(s') of the policy as the critic."""
    loop, rule = loop_of("hyperl")
    worth, drift = torch.from_numpy(LINEAR.worth(GAIN, GAMMA)), torch.from_numpy(LINEAR.drift())

    def knows(seen: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        u = 2 * actions.double()
        led = seen.double() @ drift.T + 0.5 * u
        q = -0.25 * u.square().sum(-1) - GAMMA * (led @ worth * led).sum(-1)
        return q[:, None, :, None]

    for sign in (1.0, -1.0):
        monkeypatch.setattr(OffPolicyLoop, "critic", lambda *inputs, sign=sign: sign * knows(*inputs[-2:]))
        found = cosines(loop, LINEAR, rule)
        assert found.shape == (2, hyperl.STATES)
        assert float((found * sign).min()) > 0.999
    loop.close()


@pytest.mark.slow
def test_the_experiment_has_what_the_claim_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"ROWS": 100, "UPDATES": 2, "STATES": 10, "STEPS": 50, "BLOCK": 50, "EPISODES": 1}
    for name, number in {**small, "LINEAR_SIZES": (8,), "SWING_SIZES": (8,)}.items():
        monkeypatch.setattr(hyperl, name, number)
    monkeypatch.setattr(hyperl, "spread", lambda function, jobs: [function(job) for job in jobs])
    monkeypatch.setattr(
        hyperl, "arms", lambda task, sizes, own, of=arms: {k: soon(m) for k, m in of(task, sizes, own).items()}
    )
    claim, found = get_method("hyperl").claim, hyperl.experiment([3, 4])
    assert claim is not None
    for pair in found:
        assert set(pair.arm) == set(pair.baseline) == {measure.name for measure in claim.measures}
        assert set(claim.equal) <= set(pair.budgets) and set(pair.start) == {"return"}
    assert found[0].arm != found[1].arm


def soon(method: Any) -> Any:
    return method.replace(
        experience=method.experience.replace(random=20, warmup=40), sampling=method.sampling.replace(batch=20)
    )
