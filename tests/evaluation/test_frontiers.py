"""What is earned at equal divergence from the start."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from etude.core.episodes import Episode
from etude.core.errors import DataError
from etude.evaluation.frontiers import Frontier, divergence, matched
from etude.evaluation.language import Evaluation
from language_toys import random_episodes, random_policy

numbers = st.floats(-5, 5)
divergences = st.floats(0.1, 9)


@given(st.lists(st.tuples(divergences, numbers), min_size=1, max_size=5), numbers, numbers)
def test_moved_up_everywhere_it_earns_so_much_more(runs: list[tuple[float, float]], start: float, more: float) -> None:
    kl, score = zip(*runs)
    one, other = Frontier(kl, score, start), Frontier(kl, [s + more for s in score], start + more)
    heights = matched(one, other)
    assert heights[1] - heights[0] == pytest.approx(more, abs=1e-9)
    assert matched(one, one)[0] == matched(one, one)[1]


@given(st.lists(st.tuples(divergences, numbers), min_size=1, max_size=5), numbers, st.floats(0.05, 9))
def test_the_height_is_the_mean_of_the_curve(runs: list[tuple[float, float]], start: float, limit: float) -> None:
    frontier = Frontier(*zip(*runs), start)
    at, score = frontier.corners()
    fine = (np.arange(20_000) + 0.5) / 20_000 * limit
    assert frontier.height(limit) == pytest.approx(np.interp(fine, at, score).mean(), abs=2e-2)


def test_only_what_both_reach_is_compared() -> None:
    """Beyond a divergence of 2, where the one has not been, the other may earn what it will."""
    one = Frontier([1.0, 2.0], [1.0, 3.0], 0.0)
    for far in (-50.0, 0.0, 50.0):
        other = Frontier([2.0, 2.0, 4.0], [2.0, 4.0, far], 0.0)  # two runs at 2: 3 on average
        assert matched(one, other) == pytest.approx([(0.5 + 2.0) / 2, 1.5])


@pytest.mark.parametrize(
    ("kl", "score"), [([], []), ([1.0], [1.0, 2.0]), ([-0.1], [1.0]), ([float("nan")], [1.0]), ([1.0], [float("inf")])]
)
def test_what_is_no_frontier_is_refused(kl: list[float], score: list[float]) -> None:
    with pytest.raises(DataError, match=r"A frontier has a score for each run|Divergences are numbers from 0 on"):
        Frontier(kl, score, 0.0)


def test_who_never_left_has_nothing_to_compare() -> None:
    with pytest.raises(DataError, match="has no run that left the start"):
        matched(Frontier([0.0], [1.0], 0.0), Frontier([1.0], [1.0], 0.0))


@pytest.mark.slow
def test_the_divergence_is_that_of_completions() -> None:
    policy, start = random_policy(seed=1, dtype=torch.float64), random_policy(seed=2, dtype=torch.float64)
    episodes = random_episodes((2, 2, 2), seed=3)
    found = Evaluation("test", np.zeros((3, 2), bool), np.zeros((3, 2)), [episodes[i : i + 2] for i in (0, 2, 4)], [])
    assert divergence(policy, policy, found) == 0.0
    sums = []
    for episode in episodes:
        tokens = [t for segment in episode.segments for t in segment.tokens]
        mask = [m for segment in episode.segments for m in segment.action_mask]
        said = [
            who.model(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)[range(len(tokens) - 1), tokens[1:]]
            for who in (policy, start)
        ]
        gap = (said[1] - said[0])[torch.tensor(mask[1:], dtype=torch.bool)]
        sums.append(float((gap.detach().exp() - 1 - gap.detach()).sum()))
    assert divergence(policy, start, found) == pytest.approx(np.mean(sums), rel=1e-6)


@pytest.mark.slow
def test_an_episode_of_several_views_counts_once() -> None:
    policy, start = random_policy(seed=1, dtype=torch.float64), random_policy(seed=2, dtype=torch.float64)
    one, two = random_episodes((2,), seed=5)

    def of(*episodes: Episode) -> float:
        found = Evaluation("test", np.zeros((1, 1), bool), np.zeros((1, 1)), [list(episodes)], [])
        return divergence(policy, start, found)

    both = replace(one, views=[one.segments, two.segments])
    assert of(both) == pytest.approx(of(one) + of(two), rel=1e-9)
    assert of(one, two) == pytest.approx((of(one) + of(two)) / 2, rel=1e-9)
