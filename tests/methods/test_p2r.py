"""P2R: labels of comparisons, what is not asked again, ellipsoids of utilities, and games without a utility."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from etude.core.edit import set_values
from etude.core.episodes import Episode, Problem
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.experiments.preference import p2r as tables
from etude.experiments.preference.p2r import UCBVI, Interface, endings, exploitability, preferences, regret, self_play
from etude.loops.enumerable import EnumerableLoop
from etude.methods.preference.p2r import LabelsByComparison, label_of
from etude.tasks.tabular.enumerable import Enumerable
from etude.tasks.tabular.finite import FiniteMDP, greedy, optimal_return


def rows(scores: list[float], said: list[int], problems: list[str], first: int = 0) -> Any:
    """Answers of one token."""
    count = len(scores)
    return SimpleNamespace(
        scores=torch.tensor(scores, dtype=torch.float64), draw=torch.arange(first, first + count), once=lambda: None,
        tokens=torch.tensor(said)[:, None], action_mask=torch.ones(count, 1, dtype=torch.bool),
        finished=torch.ones(count, dtype=torch.bool), episodes=[Episode(Problem(p, "?"), []) for p in problems],
    )  # fmt: skip


def test_a_label_is_the_nearest_within_the_bound_and_comes_to_the_difference() -> None:
    part = LabelsByComparison(comparisons=200_000, scale=2.0, bound=3.0).bind()
    found = part.rescore_in(rows([1.0, 2.5, -0.2, 9.0], [0, 1, 2, 3], ["a"] * 4), None)  # type: ignore[arg-type]
    assert found.tolist() == pytest.approx([0.0, 1.5, -1.2, 3.0], abs=0.03)
    grid = np.linspace(-3, 3, 60_001)
    for share in (0.0, 0.3, 0.5, 0.9, 1.0):
        nearest = grid[np.abs(1 / (1 + np.exp(-grid / 2)) - share).argmin()]
        assert label_of(share, 2.0, 3.0) == pytest.approx(nearest, abs=1e-3)


def test_what_was_said_before_costs_nothing_and_keeps_its_label() -> None:
    part = LabelsByComparison(comparisons=7).bind()
    first = part.rescore_in(rows([0.0, 1.0, 0.5, 1.0], [0, 1, 2, 1], ["a", "a", "b", "b"]), None)  # type: ignore[arg-type]
    assert part.state["compared"] == 2 and first[0] == first[2] == 0  # the first of each problem is what others meet
    again = part.rescore_in(rows([1.0, 1.0, 0.0], [1, 1, 0], ["b", "a", "a"], 50), None)  # type: ignore[arg-type]
    assert again.tolist() == [first[3], first[1], 0.0] and part.state["compared"] == 2
    going = rows([0.25, 1.0], [5, 1], ["a", "a"])
    going.finished[0] = False
    assert part.rescore_in(going, None).tolist() == [0.25, first[1]]  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="written answers"):
        set_values(get_method("p2r"), {"experience": "demonstrations"}).check()


@pytest.mark.slow
def test_comparisons_end_while_training_goes_on_and_the_reward_rises() -> None:
    method = set_values(get_method("p2r"), {"optimizer.lr": 0.1})
    loop = EnumerableLoop(method, Enumerable(prompts=2, vocabulary=3, length=1), seeds=[0, 1], steps=30)
    before, counts = loop.exact()["reward"], []
    for _ in range(30):
        loop.step()
        counts.append(loop.methods[0].rewards[1].state["compared"])  # type: ignore[union-attr]
    assert counts[-1] == counts[10] <= 4  # three answers to each of two prompts, the first of which is compared with
    assert bool((loop.exact()["reward"] > before + 0.1).all())


# Linear utilities


def told(precision: float = 0.5, comparisons: int = 10**9) -> Interface:
    return Interface(torch.zeros(4, dtype=torch.float64), precision, comparisons, 1.0, 8.0, np.random.default_rng(0))


def test_with_many_comparisons_labels_are_within_the_precision_and_few_are_compared() -> None:
    draw = torch.Generator().manual_seed(0)
    truth = 2 * torch.rand(4, generator=draw, dtype=torch.float64) - 1
    one, asked = told(), []
    for _ in range(300):
        phi = torch.randint(0, 4, (4,), generator=draw).double()
        found = one.answer(phi, float(truth @ phi), 0.0)
        assert abs(found - float(truth @ phi)) < 0.5
        assert one.answer(phi, math.nan, math.nan) == found  # not asked again, or not asked at all
        asked.append(len(one.labels))
    assert 4 <= asked[-1] == asked[100] < 20
    centred = torch.eye(4, dtype=torch.float64) - 1 / 4
    inside = float((truth - one.estimate) @ one.matrix @ (truth - one.estimate))
    assert inside <= one.radius**2  # the truth agrees with the labels
    assert bool(((centred @ (truth - one.estimate)).abs() <= one.unknown() + 1e-9).all())


def test_a_constant_that_all_trajectories_have_changes_no_policy() -> None:
    mdp = tables.TASK.mdp([3], horizon=True)
    learner = UCBVI(mdp, 0.0)
    learner.counts += 10**6 * mdp.transitions  # as if everything were known
    best = learner.plan(mdp.rewards)
    assert torch.equal(best, learner.plan(mdp.rewards + 0.37))
    worth = mdp.mean(mdp.evaluate_stages(best)[:, 0])
    torch.testing.assert_close(worth, optimal_return(mdp), atol=1e-6, rtol=0)
    shifted = FiniteMDP(mdp.transitions, mdp.rewards + 0.37, mdp.start, horizon=mdp.horizon)
    assert torch.equal(greedy(mdp.optimal_stages()), greedy(shifted.optimal_stages()))


@pytest.mark.slow
def test_little_is_missed_after_few_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "TASK", tables.TASK.replace(states=3, actions=2, branching=2, limit=4))
    found, rewarded = (regret([0, 1], 150, by_comparison) for by_comparison in (True, False))
    assert bool((found.regret[100:].mean(0) < 0.3 * found.regret[0].clamp(min=0.5)).all())
    assert bool((found.compared[-1] == found.compared[74]).all()) and 2 <= float(found.compared[-1].max()) < 15
    assert bool((rewarded.compared == 0).all()) and bool((rewarded.regret >= -1e-9).all())


# Preferences


def game(size: int = 3) -> FiniteMDP:
    """One step, which leads to the state that is chosen."""
    moves = torch.eye(size, dtype=torch.float64).expand(1, size, size, size)
    nothing = torch.zeros(1, size, size, dtype=torch.float64)
    return FiniteMDP(moves, nothing, torch.eye(size, dtype=torch.float64)[0], horizon=1)


def test_what_the_best_answer_wins_by_hand() -> None:
    """Rock, paper and scissors; and a preference that a utility makes."""
    circle = torch.tensor([[[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]]]).double()
    for ends, wins in (([1 / 3] * 3, 0.0), ([1.0, 0, 0], 1.0), ([0.5, 0.5, 0], 0.5)):
        assert float(exploitability(game(), circle, torch.tensor([ends]).double())) == pytest.approx(wins)
    utility = torch.tensor([0.1, 0.9, 0.4]).double()
    made = torch.tanh(utility[:, None] - utility)[None]
    assert float(exploitability(game(), made, torch.tensor([[0.0, 1, 0]]).double())) == 0  # the reward-optimal one
    drawn = preferences([0, 1])
    assert torch.equal(drawn, -drawn.mT) and not torch.equal(drawn[0], drawn[1])
    alone = torch.full((1, 1, 3, 3), 1 / 3).double()
    torch.testing.assert_close(endings(game(), alone), torch.full((1, 3), 1 / 3).double())


@pytest.mark.slow
def test_two_copies_come_to_the_winner_on_average() -> None:
    circle = torch.tensor([[[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]]]).double()
    ends = self_play(game(), circle, [0], 800)
    torch.testing.assert_close(ends.sum(-1), torch.ones(1).double())
    assert float((ends - 1 / 3).abs().max()) < 0.12
    better = torch.tanh(3 * (torch.tensor([0.1, 0.9, 0.4])[:, None] - torch.tensor([0.1, 0.9, 0.4])))[None].double()
    assert float(self_play(game(), better, [0], 800)[0, 1]) > 0.7
