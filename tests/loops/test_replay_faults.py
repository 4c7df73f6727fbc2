"""What an environment must not show never enters a store: the run stops at the step, and nothing of it is kept."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch

from environment_toys import Toy
from etude.core.control import ControlTask, VectorEnvironment
from etude.core.errors import ConfigError, EnvironmentFault
from etude.core.population import Member
from etude.experience.gymnasium_vector import GymnasiumVector
from etude.experience.sampling import NStep
from etude.loops.off_policy import OffPolicyLoop
from replay_toys import REPLAY, small

torch.set_num_threads(1)
AT = 6


class ToyTask(ControlTask):
    id: ClassVar[str] = "toy"
    fault: str = ""

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        return GymnasiumVector(functools.partial(Toy, fault=self.fault, at=AT), seeds, count, purpose, name="toy")


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("nan observation", r"the observation\[1\] is nan: observations must be finite numbers"),
        ("outside", r"the observation\[1\] is 2000000\.0, outside of its space"),
        ("shape", r"must be a numpy array of float32 \(3,\), got an array of float32 \(4,\)"),
        ("nan reward", "the reward is nan: rewards must be finite numbers"),
    ],
)
def test_what_must_not_be_shown_is_never_stored(fault: str, sentence: str) -> None:
    loop = OffPolicyLoop(small(REPLAY["dqn"]), ToyTask(fault=fault), [Member(0), Member(1)], 1)
    with pytest.raises(EnvironmentFault, match=sentence):
        loop.step()
    store = loop.collector.store
    assert store.pushed == store.size == store.cursor == AT - 1
    assert bool(torch.isfinite(store.grid[:, : store.size]).all())
    assert float(store.grid[:, : store.size].abs().max()) < 100
    loop.close()


def test_a_horizon_longer_than_what_is_kept_is_refused() -> None:
    method = small(REPLAY["dqn"], capacity=40, environments=4)
    longer = method.sampling.replace(horizon=NStep(gamma=0.99, n=11))
    with pytest.raises(ConfigError, match=r"keeps 10 steps of an environment, and the horizon is 11: raise"):
        method.replace(sampling=longer).check()
    method.replace(sampling=longer.replace(horizon=NStep(gamma=0.99, n=10))).check()
