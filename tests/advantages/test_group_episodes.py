"""Statistics of a group count episodes, however many rows show one."""

from __future__ import annotations

import pytest
import torch

from etude.advantages.group import GroupAdvantage, GroupStd, LeaveOneOut, solved_share
from etude.core.batches import TokenBatch
from etude.core.rows import concatenate, to_batch
from language_toys import random_batch


def shown_twice(make_batch) -> TokenBatch:
    """Three episodes of one problem, of which the first, the only right one, has two rows."""
    return make_batch(
        [[1, 1], [1, 0], [1, 1], [1, 1]], scores=[1.0, 1.0, 0.0, 0.0], solved=[True, True, False, False],
        episode=[7, 7, 2, 5],
    )  # fmt: skip


def test_an_episode_with_two_rows_counts_once(make_batch) -> None:
    """Mean 1/3 and deviation sqrt(2)/3, so that 1 has sqrt(2) and 0 has -1/sqrt(2); by rows it would be 1 and -1."""
    batch = shown_twice(make_batch)
    advantages = GroupAdvantage(scale=GroupStd(epsilon=0.0))(batch)
    torch.testing.assert_close(advantages[[0, 2, 3], 0], torch.tensor([2**0.5, -(2**-0.5), -(2**-0.5)]).double())
    assert advantages[1].tolist() == pytest.approx([2**0.5, 0.0])
    alone = GroupAdvantage(centre=LeaveOneOut(), scale=None)(batch)[:, 0]
    assert alone.tolist() == pytest.approx([1.0, 1.0, -0.5, -0.5])
    assert solved_share(batch).tolist() == pytest.approx([1 / 3] * 4)


def test_rows_of_several_batches_are_of_different_episodes() -> None:
    one, two = random_batch((3, 2)), random_batch((4,))
    both = concatenate([one, two])
    assert both.episode.unique().numel() == len(one) + len(two)
    assert both.once() is None
    assert both.player.tolist() == [0] * len(both)


def test_every_sampled_token_knows_its_version() -> None:
    episodes = random_batch((3, 2)).episodes
    for number, episode in enumerate(episodes):
        for segment in episode.segments:
            segment.version = 4 + number
    batch = to_batch(episodes, 0, 1.0, torch.device("cpu"))
    for row in range(len(batch)):
        assert set(batch.version[row][batch.action_mask[row]].tolist()) == {4 + row}
        assert not batch.version[row][~batch.action_mask[row]].any()
