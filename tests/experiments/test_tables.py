"""Experiments on tables and data that each seed draws itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from etude.experiments.arms import Exact, tables, variant
from etude.experiments.gaussian_data import Linear
from etude.experiments.optima import Bandits
from etude.experiments.preference import copg, ipo
from etude.experiments.rlvr.pacs import at_level, shared_level
from etude.tasks.tabular.enumerable import Enumerable

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = Enumerable(prompts=2, vocabulary=3, length=1, solutions=1)


def curves(accuracy: list[float], entropy: list[float]) -> Exact:
    """One seed's run; pass@16 is 1 - entropy."""
    given = {"pass@1": accuracy, "entropy": entropy, "pass@16": [1 - x for x in entropy]}
    return Exact({k: np.array(v)[:, None] for k, v in given.items()})


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_each_seed_has_a_table_of_its_own_whoever_is_asked_for_with_it() -> None:
    methods = {"grpo": variant("grpo"), "rloo": variant("rloo")}
    both = tables(methods, SMALL, seeds=[3, 4], steps=2)
    alone = tables(methods, SMALL, seeds=[4], steps=2)
    for name in methods:
        assert both[name].final("reward")[1] == alone[name].final("reward")[0]
    first = both["grpo"].first("entropy")
    assert first[0] != first[1] and first == both["rloo"].first("entropy")


def test_runs_are_compared_where_they_are_equally_accurate() -> None:
    fast, slow = curves([0.0, 0.8, 0.9], [1.0, 0.6, 0.2]), curves([0.0, 0.2, 0.4], [1.0, 0.9, 0.7])
    level = shared_level({"fast": fast, "slow": slow})
    assert level == [0.4]  # less than LEVEL: the slow one never comes further
    assert at_level(fast, level)["entropy at equal pass@1"] == pytest.approx([0.8])  # half of the first step
    assert at_level(slow, level)["entropy at equal pass@1"] == pytest.approx([0.7])
    assert at_level(slow, [0.3])["pass@16 at equal pass@1"] == pytest.approx([0.2])


def test_members_draw_the_same_data_whoever_is_drawn_with_them() -> None:
    together, alone = Linear([1, 2]), Linear([2])
    for mine, theirs in zip(together.train + together.held, alone.train + alone.held):
        assert torch.equal(mine[1], theirs[0]) and not torch.equal(mine[0], mine[1])


def test_the_optimum_of_bandits_is_the_first_policy_times_exponential_rewards() -> None:
    given = Bandits(2, 5, 0.5, seed=7)
    first, rewards = given.first[0, :, 0].exp(), given.bandit.rewards
    best = first * (rewards / 0.5).exp()
    best = best / best.sum(-1, keepdim=True)
    expected = (first * (first / best).log()).sum(-1).mean()
    assert given.away() == pytest.approx(float(expected)) and given.away() > 0
    assert Bandits(2, 5, 0.5, seed=8).away() != given.away()


@pytest.mark.slow
def test_pairs_that_always_go_the_same_way_hold_ipo_near_and_not_dpo() -> None:
    beta = {"ipo": "objective.link.beta", "dpo": "objective.beta"}
    near, far = (ipo._settled(variant(name, {path: ipo.BETA}), 0) for name, path in beta.items())
    assert near["pairs told apart"] == far["pairs told apart"] == 1.0
    assert 5 * near["KL to the reference"] < far["KL to the reference"]


@pytest.mark.slow
def test_copg_comes_to_the_optimum_from_any_data() -> None:
    assert copg._settled(variant("copg", {"objective.link.beta": copg.BETA}), 0) < 1e-6
    assert copg._followed("mean reward", 0) > 1e-3 and copg._followed("none", 0) > 1e-3
