"""Members of a population against runs of their own, bit for bit: what tests of several rooms share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from etude.core.control import ControlTask
from etude.core.edit import set_values
from etude.core.method import Method
from etude.loops.on_policy import OnPolicyLoop
from etude.policies.control.population import Member

torch.set_num_threads(1)
Results = tuple[dict[str, Tensor], list[dict[str, list[float]]]]


def results(method: Method, task: ControlTask, members: Sequence[Member], steps: int) -> Results:
    """All tensors [P, ...] after training, and every step's metrics of every member."""
    loop = OnPolicyLoop(method, task, members, steps)
    metrics = [loop.step().members for _ in range(steps)]
    tensors = {k: v for k, v in {**loop.policy_tensors(), **loop.updater.tensors()}.items() if v.dim()}
    return tensors, metrics


def member(found: Results, k: int) -> dict[str, Any]:
    """What is member k's. (A return is there only when every member has finished an episode: it is left out.)"""
    tensors, metrics = found
    kept = [{f"{key} {t}": v[k] for key, v in each.items()} for t, each in enumerate(metrics)]
    numbers = {k: v for each in kept for k, v in each.items() if not k.startswith(("return", "episode_length"))}
    return {**{name: v[k] for name, v in tensors.items()}, **numbers}


def assert_same(one: dict[str, Any], other: dict[str, Any], who: str) -> None:
    """Every tensor and number is the other's, bit for bit."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        same = torch.equal(value, other[name]) if isinstance(value, Tensor) else value == other[name]
        assert same, f"{who}: {name} is {value}, and {other[name]} alone"


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
