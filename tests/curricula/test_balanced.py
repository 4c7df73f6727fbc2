"""Balanced levels: as many of each in every step, all of them in their turn; and the credit that goes with it."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch

from etude.advantages.group import GroupAdvantage, GroupMean, GroupStd, LevelStd
from etude.core.episodes import Problem
from etude.core.rows import to_batch
from etude.core.streams import Stream
from etude.curricula.balanced import BalancedLevels
from language_toys import random_episodes

SHARES = {"rare": 3, "some": 10, "most": 47}
POOL = [Problem(f"{level}/{i}", "?", level=level) for level, count in SHARES.items() for i in range(count)]


@pytest.mark.parametrize("count", [3, 9, 10])
def test_every_step_has_as_many_of_each_level(count: int) -> None:
    part, total = BalancedLevels().bind(), Counter[str]()
    for i in range(30):
        chosen = Counter(p.level for p in part.choose(POOL, count, Stream(0).split("step", i)))
        assert max(chosen.values()) - min(chosen[name] for name in SHARES) <= 1
        total += chosen
    assert set(total.values()) == {10 * count}


def test_a_level_passes_over_all_of_its_problems_before_one_comes_again() -> None:
    part = BalancedLevels().bind()
    seen = [p.id for _ in range(10) for p in part.choose(POOL, 3, Stream(0)) if p.level == "some"]
    assert len(set(seen)) == 10
    again = [p.id for _ in range(10) for p in part.choose(POOL, 3, Stream(0)) if p.level == "some"]
    assert set(again) == set(seen) != again != seen


def test_levels_have_orders_of_their_own_and_seeds_others() -> None:
    twins = [Problem(f"{level}/{i}", "?", level=level) for level in "ab" for i in range(40)]
    first = BalancedLevels().bind().choose(twins, 40, Stream(0))
    places = [[p.id[2:] for p in first if p.level == level] for level in "ab"]
    assert places[0] != places[1]
    assert first != BalancedLevels().bind().choose(twins, 40, Stream(1))


def test_it_goes_on_from_its_state() -> None:
    part, other = BalancedLevels().bind(), BalancedLevels().bind()
    part.choose(POOL, 7, Stream(0))
    other.state.update(json.loads(json.dumps(part.state)))
    assert part.choose(POOL, 7, Stream(0)) == other.choose(POOL, 7, Stream(0))


def advantages(scores: torch.Tensor, levels: list[str], **fields: object) -> torch.Tensor:
    """[B] of two completions for each problem."""
    batch = to_batch(random_episodes((2,) * (len(scores) // 2)), 0, 1.0, torch.device("cpu"))
    for episode, level in zip(batch.episodes, levels):
        episode.problem = Problem(episode.problem.id, "?", level=level)
    part = GroupAdvantage(**fields)  # type: ignore[arg-type]
    return part.of_scores(batch.replace(scores=scores.double()), scores.double())


def test_one_task_and_one_group_is_grpo_and_scales_of_tasks_do_not_matter() -> None:
    """Row qwenlong-l1-5, identity 1."""
    one = torch.tensor([1.0, 0.0])
    centre, scale = GroupMean(), LevelStd(epsilon=1e-12)
    grpo = advantages(one, ["a"] * 2, centre=centre, scale=GroupStd(epsilon=1e-12))
    assert torch.equal(advantages(one, ["a"] * 2, centre=centre, scale=scale), grpo)
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.25])
    both = advantages(torch.cat([rewards, 10 * rewards]), ["a"] * 4 + ["b"] * 4, centre=centre, scale=scale)
    torch.testing.assert_close(both[:4], both[4:], atol=1e-9, rtol=0)
    deviation = float(((rewards - rewards.mean()) ** 2).mean().sqrt())
    wanted = torch.tensor([0.5, -0.5, 0.125, -0.125], dtype=torch.float64) / deviation
    torch.testing.assert_close(both[:4], wanted, atol=1e-6, rtol=0)
