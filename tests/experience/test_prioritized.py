"""Rows that surprised are drawn more often: the tree's sums, the chances of rows, their weights, and resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.core.population import Member, Population
from etude.experience.prioritized import LossAdjustedRows, PrioritizedRows, SumTree
from etude.experience.sampling import OneStep
from etude.experience.store import Store
from etude.experience.stretches import Stretches
from etude.learners.heads import Huber
from etude.loops.off_policy import OffPolicyLoop
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY, small

torch.set_num_threads(1)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(0, 2**31))
def test_the_tree_finds_what_a_running_sum_finds(masses: list[int], seed: int) -> None:
    """Whole numbers, so that sums are exact in any order."""
    tree = SumTree(2, len(masses))
    order = torch.randperm(len(masses), generator=torch.Generator().manual_seed(seed))
    both = torch.tensor([masses, masses[::-1]], dtype=torch.float64)
    for i in order.tolist():
        tree.set(torch.tensor([[i], [i]]), both[:, i : i + 1])
    assert tree.total.tolist() == [sum(masses)] * 2
    if not sum(masses):
        return
    asked = torch.arange(0, sum(masses), 0.5, dtype=torch.float64)
    wanted = torch.searchsorted(both.cumsum(1), asked.expand(2, -1).contiguous(), right=True)
    assert torch.equal(tree.find(asked.expand(2, -1)), wanted)


def filled(rows: int, members: int = 1) -> Store:
    store = Store(members, 1, rows, (1,), 1)
    for t in range(rows):
        x = torch.full((members, 1, 1), float(t))
        store.push(x, x, x, x[..., 0], torch.ones(members, 1), torch.zeros(members, 1))
    return store


def test_rows_are_drawn_by_their_errors_and_weighed_against_it() -> None:
    """Three rows with errors 1, 2 and 5, alpha 1: chances 1/8, 2/8, 5/8; weights (3 chance)^-1 over the largest."""
    part: Any = PrioritizedRows(batch=8, horizon=OneStep(gamma=0.9), alpha=1.0, beta=1.0, epsilon=1e-12).bind()
    store, numbers = filled(3), Stretches(Population([Member(0)]), "learn")
    first = part.draw(store, numbers.at(0))
    assert first.offers["importance"].tolist() == [[1.0] * 8]  # new rows are alike
    part.learn(first.replace(index=torch.tensor([[0, 1, 2]])), torch.tensor([[1.0, 2.0, 5.0]]))
    drawn = [part.draw(store, numbers.at(t)) for t in range(1, 200)]
    places = torch.cat([b.observations[0, :, 0] for b in drawn]).long()
    shares = places.bincount(minlength=3).double() / len(places)
    assert torch.allclose(shares, torch.tensor([1 / 8, 2 / 8, 5 / 8], dtype=torch.float64), atol=0.005)
    weights = {int(p): float(w) for b in drawn for p, w in zip(b.observations[0, :, 0], b.offers["importance"][0])}
    assert weights[2] / weights[1] == pytest.approx(2 / 5) and max(weights.values()) == 1.0


def test_a_new_row_has_the_largest_error_so_far() -> None:
    part: Any = LossAdjustedRows(batch=4, alpha=1.0).bind()
    store, numbers = filled(4), Stretches(Population([Member(0)]), "learn")
    batch = part.draw(store, numbers.at(0))
    part.learn(batch.replace(index=torch.tensor([[0, 1, 2, 3]])), torch.tensor([[0.1, 2.0, 7.0, 1.0]]))
    assert part.state["masses"][0].tolist() == [1.0, 2.0, 7.0, 1.0]
    x = torch.zeros(1, 1, 1)
    store.push(x, x, x, x[..., 0], x[..., 0], x[..., 0])  # over row 0
    part.draw(store, numbers.at(1))
    assert part.state["masses"][0].tolist() == [7.0, 2.0, 7.0, 1.0]


def test_without_alpha_and_beta_it_is_the_plain_loss() -> None:
    """alpha = 0 draws uniformly, and all weights are 1."""
    part: Any = PrioritizedRows(batch=64, alpha=0.0).bind()
    store = filled(8)
    batch = part.draw(store, Stretches(Population([Member(0)]), "learn").at(0))
    part.learn(batch, torch.rand(1, 64))
    assert set(part.state["masses"][0].tolist()) == {1.0}
    assert batch.observations[0, :, 0].long().bincount(minlength=8).tolist() == [8] * 8  # a share each


def loop(seeds: tuple[int, ...]) -> OffPolicyLoop:
    method = small(REPLAY["td3"])
    rows = LossAdjustedRows(batch=6, horizon=method.sampling.horizon)
    method = method.replace(sampling=rows, critic=method.critic.replace(error=Huber()))
    return OffPolicyLoop(method, pendulum, [Member(s) for s in seeds], 4, 27)


@pytest.mark.slow
def test_a_run_resumes_exactly_and_members_are_their_own(tmp_path: Path) -> None:
    whole = loop((3, 4))
    whole.step(), whole.step()
    whole.save(tmp_path)
    whole.step(), whole.step()
    again = loop((3, 4))
    again.load(tmp_path)
    again.step(), again.step()
    alone = loop((4,))
    for _ in range(4):
        alone.step()
    for key, value in whole.policy_tensors().items():
        assert torch.equal(value, again.policy_tensors()[key]), key
        assert torch.equal(value[len(value) // 2 :], alone.policy_tensors()[key]), key
    masses = whole.method.sampling.state["masses"]
    assert torch.equal(masses, again.method.sampling.state["masses"]) and len(masses.unique()) > 5
