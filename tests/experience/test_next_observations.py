"""What a step led to, and what the value of that counts: the same in every backend, however it resets."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from corridor import LENGTH, CorridorTask
from etude.core.control import ControlTask
from etude.core.part import Need
from etude.core.population import Member
from etude.core.registry import get_method
from etude.core.step_slots import StepReward
from etude.core.transitions import Transitions
from etude.loops.on_policy import OnPolicyLoop
from etude.policies.control.memory import GRU
from etude.policies.control.networks import MLP
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.environment import EnvironmentTask

torch.set_num_threads(1)
BACKENDS = ("auto", "gymnasium", "envpool")  # auto: the built-in arrays
GAMMA = 0.9


class Follows(StepReward):
    """Changes nothing, and needs next observations."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.NEXT_OBSERVATIONS})

    def shape(self, batch: Transitions) -> Tensor:
        return batch.rewards


def loop(task: ControlTask, steps: int, rewards: tuple[StepReward, ...] = (Follows(),), **policy: Any) -> OnPolicyLoop:
    method: Any = get_method("ppo", "control")
    method = method.replace(
        policy=method.policy.replace(network=MLP(hidden=(8,)), **policy), rewards=rewards, minibatches=1,
        experience=method.experience.replace(environments=2, steps=steps),
    )  # fmt: skip
    return OnPolicyLoop(method, task, [Member(0), Member(3)], 2)


def collected(task: ControlTask, steps: int, **policy: Any) -> Transitions:
    made = loop(task, steps, **policy)
    try:
        return made.collector.collect(0, made.critic)
    finally:
        made.close()


def pushed(observations: Tensor, actions: Tensor) -> Tensor:
    """Cart-pole after one step (Barto, Sutton and Anderson, 1983), in the form of its equations of motion."""
    _, speed, angle, spin = observations.double().unbind(-1)
    force = 20 * actions[..., 0].double() - 10
    whole, pole, half = 1.1, 0.1, 0.5
    temp = (force + pole * half * spin**2 * angle.sin()) / whole
    turned = (9.8 * angle.sin() - angle.cos() * temp) / (half * (4 / 3 - pole * angle.cos() ** 2 / whole))
    moved = temp - pole * half * turned * angle.cos() / whole
    rates = torch.stack([speed, moved, spin, turned], -1)
    return observations.double() + 0.02 * rates


def swung(observations: Tensor, actions: Tensor) -> Tensor:
    """Pendulum after one step: l = m = 1, g = 10, 0.05 s, speed within 8, torque within 2."""
    cos, sin, spin = observations.double().unbind(-1)
    torque = actions[..., 0].double().clamp(-2, 2)
    spin = (spin + (15 * sin + 3 * torque) * 0.05).clamp(-8, 8)
    angle = torch.atan2(sin, cos) + 0.05 * spin
    return torch.stack([angle.cos(), angle.sin(), spin], -1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_fall_ended_with(backend: Any) -> None:
    if backend == "envpool":
        pytest.importorskip("envpool")
    batch = collected(EnvironmentTask("CartPole-v1", backend=backend), 60)
    assert batch.next_observations is not None and batch.discounts is not None
    assert int(batch.terminated.sum()) >= 4 and not batch.truncated.any()
    found = batch.next_observations.double()
    torch.testing.assert_close(found, pushed(batch.observations, batch.actions), atol=1e-4, rtol=1e-4)
    assert torch.equal(batch.discounts, 1 - batch.terminated.float())
    assert bool((batch.next_values[batch.terminated] == 0).all())  # and no value of the next episode
    fallen = found[batch.terminated]
    assert bool(((fallen[:, 0].abs() > 2.4) | (fallen[:, 2].abs() > 0.209)).all())
    first = batch.observations[:, 1:][batch.terminated[:, :-1]]
    assert bool((first.abs() <= 0.05).all())  # and what acts next is the first of another episode


@pytest.mark.first
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_time_limit_cut(backend: Any) -> None:
    if backend == "envpool":
        pytest.importorskip("envpool")
    batch = collected(EnvironmentTask("Pendulum-v1", backend=backend), 203)
    assert batch.next_observations is not None and batch.discounts is not None
    assert batch.truncated.sum((1, 2)).tolist() == [2, 2] and not batch.terminated.any()
    found = batch.next_observations.double()
    free = found[..., 2].abs() < 7.99  # at the limit EnvPool turns by the speed before it was limited
    assert int((free & batch.truncated).sum()) == int(batch.truncated.sum())
    torch.testing.assert_close(found[free], swung(batch.observations, batch.actions)[free], atol=1e-3, rtol=1e-3)
    assert bool((batch.discounts == 1).all())  # the value goes on there


# A corridor whose value is known


@pytest.mark.parametrize("memory", (None, GRU(width=4)), ids=("reacts", "remembers"))
@pytest.mark.parametrize("arrays", (True, False), ids=("arrays", "gymnasium"))
def test_the_known_value_satisfies_bellmans_equation_in_every_row(arrays: bool, memory: Any) -> None:
    """V = 1 + gamma d V', V(s) = (1 - gamma^(5 - s)) / (1 - gamma), also where the limit cut and where it ended."""
    batch = collected(CorridorTask(arrays=arrays), 40, memory=memory)
    assert batch.next_observations is not None and batch.discounts is not None
    assert batch.terminated.any() and batch.truncated.any()
    value = (1 - GAMMA ** (LENGTH - batch.observations[..., 0])) / (1 - GAMMA)
    after = torch.where(batch.terminated, 77.0, (1 - GAMMA ** (LENGTH - batch.next_observations[..., 0])) / (1 - GAMMA))
    torch.testing.assert_close(value, batch.rewards + GAMMA * batch.discounts * after, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(batch.next_observations, batch.observations + 1, atol=0, rtol=0)


def test_they_are_kept_only_where_somebody_needs_them() -> None:
    """And change no other number."""
    without, needed = loop(cartpole, 30, rewards=()), loop(cartpole, 30)
    plain, more = (each.collector.collect(0, each.critic) for each in (without, needed))
    assert plain.next_observations is None and plain.discounts is None and plain.costs is None and more.costs is None
    assert more.next_observations is not None
    for name in ("observations", "actions", "rewards", "behaviour_logp", "values", "next_values"):
        assert torch.equal(getattr(plain, name), getattr(more, name)), name
