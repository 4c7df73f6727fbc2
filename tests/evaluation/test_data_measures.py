"""TQ and SACo by the identities of their paper, and how many episodes count."""

from __future__ import annotations

import numpy as np
import pytest

from etude.core.errors import ConfigError
from etude.evaluation.data_measures import (
    effective_episodes,
    histogram,
    limits,
    pairs,
    positive_sided_variance,
    trajectory_quality,
)  # fmt: skip


def test_quality_of_the_references_and_of_other_units() -> None:
    assert (trajectory_quality(-3.0, -3.0, 5.0), trajectory_quality(5.0, -3.0, 5.0)) == (0.0, 1.0)
    assert trajectory_quality(2.0 * 1 + 7, 2.0 * -3 + 7, 2.0 * 5 + 7) == trajectory_quality(1.0, -3.0, 5.0) == 0.5
    with pytest.raises(ConfigError, match="must earn more than the worst"):
        trajectory_quality(1.0, 2.0, 2.0)


def test_coverage() -> None:
    """More steps never lower it, the same steps again do not change it, and a union has at most the sum."""
    rng = np.random.default_rng(0)
    seen, done = rng.normal(size=(2, 400, 2)), rng.uniform(-1, 1, (2, 400, 1))
    low, high = limits(seen.reshape(-1, 2), done.reshape(-1, 1))

    def u(*which: int) -> int:
        return len(pairs(np.concatenate([seen[k] for k in which]), np.concatenate([done[k] for k in which]), low, high))

    assert u(0) == u(0, 0) <= u(0, 1) <= u(0) + u(1)
    cells = {tuple(row) for row in pairs(seen[0], done[0], low, high).tolist()}
    both = np.concatenate([seen[0], done[0]], 1)
    by_hand = {tuple(min(int(x), 99) for x in row) for row in (both - low) / (high - low) * 100}
    assert cells == by_hand
    choices = np.arange(3.0)[:, None]  # of a state that never changes: each its own
    assert len(pairs(np.ones((3, 1)), choices, *limits(np.ones((3, 1)), choices))) == 3
    assert len(pairs(np.array([[-9.0], [9.0]]), np.zeros((2, 1)), np.array([0.0, 0.0]), np.array([1.0, 0.0]))) == 2


def test_how_many_episodes_count() -> None:
    returns = np.array([1.0, 2.0, 3.0, 3.0])
    weights = np.exp(np.array([0.0, 0.5, 1.0, 1.0]) / 0.1)
    assert effective_episodes(returns) == pytest.approx(weights.sum() ** 2 / (weights**2).sum())
    assert effective_episodes(5 * returns - 2) == pytest.approx(effective_episodes(returns))
    assert positive_sided_variance(returns) == pytest.approx(2 * 0.375**2 / 4)
    assert histogram(np.ones(3)) == ([3], [0.5, 1.5]) and sum(histogram(returns)[0]) == 4
