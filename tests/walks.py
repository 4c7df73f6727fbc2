"""Logs of somebody who walks back to 0, and policies in their states: on these estimates are tested."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from etude.evaluation.off_policy.episodes import Episodes, Numbers
from etude.evaluation.off_policy.q_rows import Acts

EACH, STEPS, GAMMA = 30, 40, 0.99


def walks(policy: Callable[[Numbers], Numbers]) -> tuple[Episodes, Acts]:
    """Logs of somebody who goes back to 0, where every step costs how far off he is; the policy in their states."""
    rng = np.random.default_rng(0)
    state, rows = rng.normal(size=EACH), []
    for _ in range(STEPS):
        action = (-0.3 * state + 0.05 * rng.normal(size=EACH)).clip(-1, 1)
        following = 0.9 * state + 0.5 * action + 0.1 * rng.normal(size=EACH)
        rows.append((state, action, following, -np.abs(state)))
        state = following
    seen, done, led, rewards = (np.stack(x, 1) for x in zip(*rows, strict=True))

    def column(x: Numbers) -> Tensor:
        return torch.as_tensor(x.reshape(-1, 1)).float()

    now, then = (column(policy(x))[:, None] for x in (seen, led))
    one = torch.ones(EACH * STEPS, 1)
    place, there = np.arange(EACH * STEPS).reshape(EACH, STEPS), np.ones((EACH, STEPS), bool)
    episodes = Episodes(place, there, np.zeros(EACH, bool), rewards)
    return episodes, Acts(column(seen), column(done), now, one, column(led), then, one)
