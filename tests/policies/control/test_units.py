"""What replay policies do in units: densities that carry gradient, also far out, and spaces that they cannot act in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from etude.core.errors import ConfigError
from etude.core.population import Member, Population
from etude.core.registry import get_method
from etude.policies.control.units import SquashedBox


@pytest.mark.parametrize("mean", [0.0, 0.5, 2.0, 4.0, 6.0, 8.0, 10.0, -6.0, -10.0])
def test_a_squashed_density_and_its_gradient_are_right_far_out(mean: float) -> None:
    """In float32, against float64: u = m + exp(l) n, log p = -n^2 / 2 - l - log sqrt(2 pi) - log(1 - tanh(u)^2).

    So d log p / d m = 2 tanh u and d log p / d l = 2 tanh(u) exp(l) n - 1. Taken back from the rounded action the
    density is 3.8 nats off at a mean of 6, and its slope 1.65 with the wrong sign at 8.
    """
    spread = SquashedBox((-2.0,), (2.0,), -20.0, 2.0)
    noise = torch.linspace(-1.5, 1.5, 7)[:, None]
    said = torch.tensor([mean, -1.0]).repeat(7, 1).requires_grad_()
    choice = spread.chosen(said, noise)
    assert choice.logp is not None
    (slopes,) = torch.autograd.grad(choice.logp.sum(), said)
    n, log_std = noise.double()[:, 0], torch.tensor(-1.0, dtype=torch.float64)
    u = mean + log_std.exp() * n
    stretch = -2 * u.cosh().log()  # log(1 - tanh(u)^2)
    logp = -0.5 * n**2 - log_std - 0.5 * torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64)) - stretch
    wanted = torch.stack([2 * u.tanh(), 2 * u.tanh() * log_std.exp() * n - 1], -1)
    torch.testing.assert_close(choice.logp.double(), logp, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(slopes.double(), wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(choice.actions.double()[:, 0], u.tanh(), atol=1e-6, rtol=0)


ENDLESS = spaces.Box(-np.inf, np.inf, (2,), np.float32)
SEVERAL = spaces.MultiDiscrete([3, 2])
NAMED = spaces.Dict({"turn": spaces.Discrete(3), "push": spaces.Box(-1, 1, (1,), np.float32)})


@pytest.mark.parametrize(
    ("name", "actions", "sentence"),
    [
        ("sac", ENDLESS, "SquashedPolicy keeps actions within bounds, and .* has none: give the environment bounds"),
        ("td3", ENDLESS, "DeterministicPolicy keeps actions within bounds, and .* has none"),
        ("dqn", SEVERAL, r"chooses among Discrete actions, and they are MultiDiscrete.* and ppo takes every space"),
        ("sac-discrete", NAMED, r"SoftmaxPolicy chooses among Discrete actions, .* and ppo takes every space"),
        ("td3", SEVERAL, r"acts in a Box of floats, and the actions are MultiDiscrete.* and ppo takes every space"),
        ("sac", NAMED, r"acts in a Box of floats, and the actions are Dict.* and ppo takes every space"),
    ],
)
def test_spaces_that_nobody_can_act_in_are_refused_with_who_can(name: str, actions: Any, sentence: str) -> None:
    method: Any = get_method(name, "control")
    with pytest.raises(ConfigError, match=sentence):
        method.policy.actor(method, (4,), actions, Population([Member(0)]))
