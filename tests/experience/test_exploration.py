"""Noise that remembers: every member's and environment's own, and from 0 again where an episode ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etude.core.population import Member
from etude.experience.exploration import OrnsteinUhlenbeck
from etude.loops.off_policy import OffPolicyLoop
from etude.policies.control.units import Point
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY, small


def test_noise_begins_anew_in_the_environment_whose_episode_ended() -> None:
    """x <- x - x / 2 + n of two members in two environments; then it ends in the second of the first alone."""
    part: Any = OrnsteinUhlenbeck(rate=0.5, scale=1.0).bind()
    actor: Any = SimpleNamespace(distribution=Point((-1.0,), (1.0,)))
    numbers = torch.tensor([[[0.1], [0.2]], [[0.3], [-0.4]]])
    said = torch.zeros(2, 2, 1)

    def act() -> torch.Tensor:
        found: torch.Tensor = part.act(actor, said, lambda name, of: numbers, 0)
        return found

    torch.testing.assert_close(act(), numbers)
    torch.testing.assert_close(act(), 1.5 * numbers)
    part.ended(torch.tensor([[False, True], [False, False]]))
    torch.testing.assert_close(act(), torch.tensor([[[0.175], [0.2]], [[0.525], [-0.7]]]))


@pytest.mark.slow
def test_the_loop_tells_it_of_every_end() -> None:
    """Episodes of the pendulum end after 200 steps, of all members at once."""
    loop = OffPolicyLoop(small(REPLAY["ddpg"], capacity=600, warmup=500), pendulum, [Member(0), Member(1)], 2, 200)
    loop.step()
    assert loop.method.exploration.state["noise"].abs().max() == 0
    loop.collector.step()
    assert loop.method.exploration.state["noise"].abs().min() > 0
