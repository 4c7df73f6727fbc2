"""Members of a population against runs of their own: what tests of several rooms share.

Bit for bit where the probe says that this machine can, to 1e-5 elsewhere; the end of every test session says which.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from etude.core.control import ControlTask
from etude.core.edit import set_values
from etude.core.method import Method
from etude.core.population import Member
from etude.core.registry import get_method
from etude.loops.on_policy import OnPolicyLoop
from etude.loops.probe import members_are_exact
from etude.policies.control.networks import MLP
from etude.tasks.control.cartpole import cartpole

torch.set_num_threads(1)
TOLERANCE = 1e-5
Results = tuple[dict[str, Tensor], list[dict[str, list[float]]]]


@functools.cache
def exact_here() -> bool:
    """What the probe says of populations of several sizes, networks and minibatches."""
    ppo: Any = get_method("ppo", "control")
    for members, hidden, environments, steps in ((3, (16, 16), 3, 17), (5, (33, 5), 5, 13), (10, (64, 64), 8, 64)):
        sized = ppo.replace(
            policy=ppo.policy.replace(network=MLP(hidden=hidden)),
            experience=ppo.experience.replace(environments=environments, steps=steps),
        )
        if not members_are_exact(OnPolicyLoop(sized, cartpole, [Member(s) for s in range(members)], 1)):
            return False
    return True


def alike(one: Any, other: Any) -> bool:
    """Whether two tensors or numbers are the same: bit for bit, or to rounding where the machine gives no more."""
    one, other = torch.as_tensor(one), torch.as_tensor(other)
    if exact_here():
        return torch.equal(one, other)
    return one.shape == other.shape and torch.allclose(one, other, atol=TOLERANCE, rtol=TOLERANCE)


def results(method: Method, task: ControlTask, members: Sequence[Member], steps: int) -> Results:
    """All tensors [P, ...] after training, and every step's metrics of every member."""
    loop = OnPolicyLoop(method, task, members, steps)
    metrics = [loop.step().members for _ in range(steps)]
    tensors = {k: v for k, v in {**loop.policy_tensors(), **loop.updater.tensors()}.items() if v.dim()}
    return tensors, metrics


def member(found: Results, k: int) -> dict[str, Any]:
    """What is member k's. (A return is there only when every member has finished an episode: it is left out.)"""
    tensors, metrics = found
    size = len(next(iter(metrics[0].values())))  # a learner may have several networks for each member, side by side
    kept = [{f"{key} {t}": v[k] for key, v in each.items()} for t, each in enumerate(metrics)]
    numbers = {k: v for each in kept for k, v in each.items() if not k.startswith(("return", "episode_length"))}
    return {**{name: v.unflatten(0, (size, -1))[k] for name, v in tensors.items()}, **numbers}


def assert_same(one: dict[str, Any], other: dict[str, Any], who: str) -> None:
    """Every tensor and number is the other's."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert alike(value, other[name]), f"{who}: {name} is {value}, and {other[name]} alone"


def assert_members_are_alone(
    method: Method, task: ControlTask, members: Sequence[Member], sizes: Sequence[int], steps: int = 2
) -> None:
    """In populations of the first members, for each of `sizes`, everybody has the numbers of a run of their own.

    That run is of the method with the member's settings as plain numbers.
    """
    alone = []
    for one in members[: max(sizes)]:
        own = set_values(method, dict(one.settings))
        alone.append(member(results(own, task, [dataclasses.replace(one, settings={})], steps), 0))
    for size in sizes:
        found = results(method, task, members[:size], steps)
        assert all(bool(v.isfinite().all()) for v in found[0].values())
        for k in range(size):
            assert_same(member(found, k), alone[k], f"member {k} of {size}")
