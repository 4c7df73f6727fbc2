"""Trajectory weighting: by what law rows are drawn, and what it is at its limits."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.population import Member, PerMember
from etude.core.registry import get_method
from etude.experience.logged import LoggedStore
from etude.experience.sampling import NStep, OneStep
from etude.experience.stretches import Stretches
from etude.experience.weighted import EpisodeAdvantage, EpisodeReturn, TrajectoryWeighted
from etude.loops.off_policy import OffPolicyLoop
from etude.policies.control.units import Point
from log_toys import logged_task, random_logs, small_logged

torch.set_num_threads(1)


def store_of(returns: Any, lengths: Any, first: Any = None, members: int = 1) -> LoggedStore:
    """Episodes of these lengths that earn these returns, a reward in each row, and begin with these observations."""
    lengths = np.asarray(lengths)
    rows, ends = int(lengths.sum()), lengths.cumsum() - 1
    logs = random_logs(rows)
    ended = np.isin(np.arange(rows), ends)
    observations = logs.observations.copy()
    if first is not None:
        observations[ends - lengths + 1] = first
    paid = np.repeat(np.asarray(returns) / lengths, lengths).astype(np.float32)
    changed = {"observations": observations, "rewards": paid, "terminated": ended, "truncated": ended & False}
    return LoggedStore(logs.__class__(**{**vars(logs), **changed}), Point((-1.0,) * 2, (1.0,) * 2), members)


def bound(**fields: Any) -> TrajectoryWeighted:
    return TrajectoryWeighted(**fields).bind()


def chances(part: TrajectoryWeighted, store: LoggedStore) -> Any:
    """[E] of a row of each episode."""
    _, lengths, scores = part.episodes(store)
    weights = part.weights(scores)
    return (weights / (weights * lengths).sum()).numpy()


@pytest.mark.slow
def test_a_row_has_the_weight_of_its_episode(tmp_path: Path) -> None:
    returns, lengths = [0.0, 5.0, 10.0], [3, 1, 4]
    store = store_of(returns, lengths, members=2)
    part = bound(by=EpisodeReturn(), temperature=0.7, batch=20_000)
    weights = np.exp(np.array([0.0, 0.5, 1.0]) / 0.7)
    wanted = weights / (weights * lengths).sum()
    np.testing.assert_allclose(chances(part, store), wanted, rtol=1e-6)
    loop = OffPolicyLoop(small_logged("bc"), logged_task(tmp_path), [Member(3), Member(4)], 1, 1)
    index = part.draw(store, Stretches(loop.population, "learn").at(0)).index
    assert index is not None and not torch.equal(*index)
    for own in index:
        seen = np.bincount(own.numpy(), minlength=8) / 20_000
        np.testing.assert_allclose(seen, np.repeat(wanted, lengths), atol=0.012)


def test_over_several_steps_the_same_rows_are_drawn_and_nothing_is_read_beyond_their_episode() -> None:
    """Three steps, by hand, row by row: the rewards up to an end, and gamma^m behind the last unless it terminated."""
    lengths = [3, 1, 6, 4]
    store, rng = store_of([0.0] * 4, lengths), np.random.default_rng(2)
    paid, led, ends = rng.normal(size=14).astype(np.float32), store.rows[:, 5:8].clone(), np.cumsum(lengths) - 1
    store.rows[:, -3], terminated = torch.from_numpy(paid), np.isin(np.arange(14), ends)
    terminated[ends[2]] = False  # a limit stopped the third episode
    store.rows[:, -2] = torch.from_numpy(~terminated)

    def draw(name: str, of: Any) -> torch.Tensor:
        found: torch.Tensor = of(torch.Generator().manual_seed(len(name)), 1)
        return found

    drawn = [
        bound(by=EpisodeReturn(), temperature=0.5, batch=200, horizon=horizon).draw(store, draw)
        for horizon in (NStep(gamma=0.5, n=3), OneStep(gamma=0.5))
    ]
    index = drawn[0].index
    assert index is not None and torch.equal(index, drawn[1].index) and set(index[0].tolist()) == set(range(14))
    earned = np.array([x.sum() for x in np.split(paid, ends[:-1] + 1)])
    own = np.repeat(np.exp((earned - earned.min()) / np.ptp(earned) / 0.5), lengths).cumsum()
    uniform = torch.rand(1, 200, generator=torch.Generator().manual_seed(4), dtype=torch.float64)[0].numpy()
    assert index[0].tolist() == np.searchsorted(own, uniform * own[-1], side="right").tolist()
    batch = drawn[0]
    for row, k in {row: k for k, row in enumerate(index[0].tolist())}.items():
        there = range(row, min(row + 3, int(ends[ends >= row][0]) + 1))
        assert batch.rewards[0, k].item() == pytest.approx(sum(0.5**j * paid[i] for j, i in enumerate(there)), abs=1e-6)
        assert batch.discounts[0, k].item() == 0.5 ** len(there) * (not terminated[there[-1]])  # type: ignore[index]
        assert torch.equal(batch.next_observations[0, k], led[there[-1]])  # type: ignore[index]


def test_its_limits_are_uniform_rows_and_the_best_episode() -> None:
    store = store_of([1.0, 2.0, 9.0, 3.0], [5, 2, 3, 7])
    alike = chances(bound(by=EpisodeReturn(), temperature=1e9), store)
    np.testing.assert_allclose(alike, 1 / 17, rtol=1e-8)
    best = chances(bound(by=EpisodeReturn(), temperature=1e-3), store)
    np.testing.assert_allclose(best, [0, 0, 1 / 3, 0], atol=1e-12)
    same = chances(bound(temperature=0.1), store_of([4.0] * 3, [2, 2, 3], np.zeros((3, 3))))
    np.testing.assert_allclose(same, 1 / 7, rtol=1e-5)  # where all earn the same nothing changes


def test_constants_of_returns_do_not_matter_and_for_advantages_linear_functions_of_the_start() -> None:
    rng = np.random.default_rng(0)
    returns, first, lengths = rng.normal(size=9), rng.normal(size=(9, 3)), rng.integers(1, 6, 9)
    by_return, by_advantage = (bound(by=by) for by in (EpisodeReturn(), EpisodeAdvantage()))
    for moved in (3 * returns + 7, returns):
        store = store_of(moved, lengths, first)
        np.testing.assert_allclose(chances(bound(by=EpisodeReturn()), store), chances(
            by_return, store_of(returns, lengths, first)), rtol=1e-4)  # fmt: skip
    luck = returns + first.astype(np.float32) @ [4.0, -1.0, 2.0] + 5
    np.testing.assert_allclose(
        chances(bound(), store_of(luck, lengths, first)),
        chances(by_advantage, store_of(returns, lengths, first)),
        rtol=1e-4,
    )
    other = chances(bound(by=EpisodeReturn()), store_of(luck, lengths, first))
    assert np.abs(other - chances(by_return, store_of(returns, lengths, first))).max() > 0.01


@pytest.mark.parametrize("temperature", [0.05, 0.3, 10.0])
def test_what_is_cloned_from_a_tree_earns_the_weighted_mean_of_returns(temperature: float) -> None:
    """A deterministic tree with one root: exact cloning of the rows earns sum w_i G_i / sum w_i, at least the mean."""
    rng = np.random.default_rng(1)
    paths = [tuple(rng.integers(0, 3, rng.integers(1, 5))) for _ in range(60)]
    leaves = [p for p in set(paths) if not any(q[: len(p)] == p and q != p for q in paths)]
    paths = [p for p in paths if p in leaves]
    worth = {leaf: rng.normal() for leaf in leaves}
    returns, lengths = np.array([worth[p] for p in paths]), np.array([len(p) for p in paths])
    found = chances(bound(by=EpisodeReturn(), temperature=temperature), store_of(returns, lengths))
    done: dict[Any, float] = defaultdict(float)
    for path, chance in zip(paths, found, strict=True):
        for t, action in enumerate(path):
            done[path[:t], action] += chance

    def earned(node: tuple[int, ...]) -> float:
        if node in worth:
            return worth[node]
        own = {a: chance for (at, a), chance in done.items() if at == node}
        return sum(chance * earned((*node, a)) for a, chance in own.items()) / sum(own.values())

    assert earned(()) == pytest.approx((found * returns).sum() / found.sum(), abs=1e-9)
    assert earned(()) >= returns.mean() - 1e-9


@pytest.mark.slow
def test_temperatures_may_be_each_members_own(tmp_path: Path) -> None:
    path, task = "sampling.temperature", logged_task(tmp_path)
    method = set_values(small_logged("traj-weighting"), ["sampling.by=episode-return"])
    both = OffPolicyLoop(method, task, [Member(3, {path: 0.1}), Member(3, {path: 5.0})], 1, 1)
    drawn = both.method.sampling.draw(both.collector.store, both.updater.stretches.at(0)).index
    for k, temperature in enumerate((0.1, 5.0)):
        own = OffPolicyLoop(set_values(method, {path: temperature}), task, [Member(3)], 1, 1)
        assert torch.equal(
            own.method.sampling.draw(own.collector.store, own.updater.stretches.at(0)).index[0], drawn[k]
        )
    assert not torch.equal(*drawn)
    part = TrajectoryWeighted()
    part.settle("temperature", PerMember([0.1, 5.0]))
    assert part.weights(torch.tensor([0.0, 1.0])).shape == (2, 2)


def test_it_is_for_logs() -> None:
    with pytest.raises(ConfigError, match="weighs whole episodes of logs, and Replay acts: set sampling=uniform-rows"):
        check(set_values(get_method("td3"), ["sampling=trajectory-weighted"]))
