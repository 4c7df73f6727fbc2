"""The time of an episode, shown beside what the environment shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.population import Member
from etude.core.registry import get_method
from etude.loops.off_policy import OffPolicyLoop
from etude.policies.control.elapsed import Timed, TimeFeature
from etude.policies.control.frames import FrameStack
from etude.policies.control.observations import NormalizeObservations
from etude.tasks.control.four_rooms import FourRooms
from etude.tasks.control.pendulum import Pendulum

torch.set_num_threads(1)


def timed() -> Any:
    return Timed(Pendulum().make([0, 1], 2), 200)


@pytest.mark.slow
def test_the_time_begins_anew_with_every_episode_and_the_last_observation_has_its_own() -> None:
    """Pendulum cuts every episode after 200 steps."""
    plain, environment = Pendulum().make([0, 1], 2), timed()
    np.testing.assert_array_equal(environment.reset()[..., :-1], plain.reset())
    assert environment.observation_space.contains(environment.reset()[0, 0])
    for t in range(1, 402):
        actions = np.full((2, 2, 1), 0.1, np.float32)
        one, other = environment.step(actions), plain.step(actions)
        passed = t % 200
        np.testing.assert_allclose(one.observations[..., -1], passed / 200 - 0.5, atol=1e-6)
        assert (one.final is None) == (passed > 0)
        if one.final is not None and other.final is not None:
            np.testing.assert_array_equal(one.final[:, :-1], other.final)
            assert one.final[:, -1].tolist() == [0.5] * 4


def test_the_time_is_resumed() -> None:
    environment, again = timed(), timed()
    environment.reset()
    for _ in range(7):
        environment.step(np.zeros((2, 2, 1), np.float32))
    again.reset()
    again.restore(environment.state())
    one, other = (e.step(np.zeros((2, 2, 1), np.float32)) for e in (environment, again))
    np.testing.assert_array_equal(one.observations, other.observations)
    assert one.observations[0, 0, -1] == np.float32(8 / 200 - 0.5)


def test_what_is_no_vector_is_refused() -> None:
    """Four rooms are shown as a picture of whole numbers."""
    with pytest.raises(ConfigError, match=r"TimeFeature adds a number to vectors.*policy\.observations"):
        TimeFeature().watch(ImageRooms())


class ImageRooms:
    """As little of an environment with pictures as is looked at."""

    observation_space, action_space = spaces.Box(0, 255, (3, 8, 8), np.uint8), spaces.Discrete(2)


def test_a_stack_of_observations_has_no_one_time() -> None:
    method: Any = get_method("dqn")
    parts = (FrameStack(count=2), TimeFeature())
    with pytest.raises(ConfigError, match="FrameStack shows several"):
        method.replace(policy=method.policy.replace(observations=parts)).check()


@pytest.mark.slow
def test_stream_x_learns_with_it_and_resumes(tmp_path: Path) -> None:
    """The option that its authors take: the time is seen, and a limit is an end."""
    method: Any = get_method("stream-x")
    policy = method.policy.replace(observations=(TimeFeature(limit=200), NormalizeObservations()))
    method = set_values(method.replace(policy=policy), {"sampling.horizon": "time-aware"})
    task, members = FourRooms(), [Member(0), Member(1)]
    loop = OffPolicyLoop(method, task, members, 4, 50)
    loop.step()
    loop.save(tmp_path)
    again = OffPolicyLoop(method, task, members, 4, 50)
    again.load(tmp_path)
    for _ in range(2):
        assert loop.step().members.items() <= again.step().members.items()
