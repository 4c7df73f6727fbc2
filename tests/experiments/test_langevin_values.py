"""Linear LMC-LSVI: where noisy descent ends, least-squares value iteration as its limit, and its episodes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from etude.core.registry import get_method
from etude.experiments.value import lmc_lsvi
from etude.experiments.value.lmc_lsvi import LinearLSVI, arms, regret, samples
from etude.tasks.tabular.finite import FiniteMDP, greedy
from etude.tasks.tabular.n_chain import NChain
from etude.tasks.tabular.river_swim import RiverSwim

pytestmark = pytest.mark.usefixtures("one_thread")


def precision(size: int) -> Tensor:
    factor = torch.randn(size, 2 * size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return factor @ factor.T + torch.eye(size, dtype=torch.float64)


@pytest.mark.parametrize("steps", [1, 7, 200])
def test_where_noisy_descent_ends_is_normal_with_this_mean_and_covariance(steps: int) -> None:
    """Step by step, mean <- mean - eta gradient and C <- A C A^T + 2 eta / beta I; as J grows Lambda^-1 (I - eta
    Lambda)^-1 / (2 beta)."""
    size, temperature = 4, 0.3
    matrix = precision(size)
    start, fitted = torch.arange(4.0).double(), torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    eta = 1 / (4 * torch.linalg.eigvalsh(matrix)[-1])
    mean, covariance = start.clone(), torch.zeros(size, size, dtype=torch.float64)
    one = torch.eye(size, dtype=torch.float64)
    for _ in range(steps):
        mean = mean - eta * 2 * matrix @ (mean - fitted)
        kept = one - 2 * eta * matrix
        covariance = kept @ covariance @ kept.T + 2 * eta * temperature**2 * one
    found = samples(matrix[None, None], temperature, 1, steps)
    at = found.after(start[None], fitted[None], 0, torch.zeros(1, size, dtype=torch.float64))[0]
    columns = [found.after(start[None], fitted[None], 0, one[i : i + 1])[0] - at for i in range(size)]
    root = torch.stack(columns, 1)
    assert torch.allclose(at, mean, atol=1e-9) and torch.allclose(root @ root.T, covariance, atol=1e-9)
    if steps == 200:
        settled = temperature**2 / 2 * torch.linalg.inv(matrix) @ torch.linalg.inv(one - eta * matrix)
        assert torch.allclose(covariance, settled, atol=1e-4)


def test_the_theorys_rate_and_number_of_steps() -> None:
    matrix = torch.diag(torch.tensor([2.0, 8.0], dtype=torch.float64)).expand(1, 5, 2, 2)
    found = samples(matrix, 1.0, episode=3)
    assert found.rates.unique().tolist() == [1 / 32]
    assert found.steps.unique().tolist() == [math.ceil(2 * 4 * math.log(4 * 5 * 3 * 2))]


def least_squares(mdp: FiniteMDP, seen: list[list[tuple[int, int, int]]]) -> Tensor:
    """Tabular LSVI by a dictionary of means [H, S, A]; 0 where nothing was tried."""
    assert mdp.horizon is not None
    states, actions = mdp.rewards.shape[1:]
    q = torch.zeros(mdp.horizon + 1, states, actions, dtype=torch.float64)
    for h in reversed(range(mdp.horizon)):
        targets: dict[tuple[int, int], list[float]] = {}
        for episode in seen:
            s, a, following = episode[h]
            most = float(q[h + 1, following].max())
            targets.setdefault((s, a), []).append(float(mdp.rewards[0, s, a]) + most)
        for (s, a), each in targets.items():
            q[h, s, a] = min(max(sum(each) / len(each), 0.0), mdp.horizon - h)
    return q[:-1]


def test_without_noise_it_is_tabular_least_squares_value_iteration() -> None:
    mdp = RiverSwim(states=3, limit=4).mdp([0], horizon=True)
    features = torch.eye(6, dtype=torch.float64).view(3, 2, 6)
    learner = LinearLSVI(mdp, features, temperature=0.0, ridge=1e-9, steps=10_000)
    random, seen = torch.Generator().manual_seed(0), []
    for _ in range(30):
        policy = greedy(torch.rand(1, 4, 3, 2, generator=random, dtype=torch.float64))
        before = learner.counts.clone()
        learner.play(policy, torch.rand(1, 5, generator=random, dtype=torch.float64))
        moved = (learner.counts - before)[0].nonzero()
        assert moved[:, 0].tolist() == [0, 1, 2, 3] and moved[0, 1] == 0  # a step in each stage, from the left bank
        assert (moved[1:, 1] == moved[:-1, 3]).all()
        seen.append([tuple(row[1:].tolist()) for row in moved])
    learner.draw(30, torch.zeros(1, 4, 6, dtype=torch.float64))
    expected = least_squares(mdp, seen)
    found = torch.stack([learner.values(h)[0] for h in range(4)])
    assert torch.allclose(found, expected, atol=1e-6) and float(expected.max()) > 0.4


@pytest.mark.slow
def test_each_members_regret_is_its_own_and_falls() -> None:
    task = NChain(states=3)
    both, alone = (regret(task.mdp(seeds, horizon=True), seeds, 25, 0.3) for seeds in ([0, 1], [1]))
    assert torch.allclose(both[:, 1], alone[:, 0], atol=1e-9) and (both >= -1e-9).all()
    assert not torch.equal(both[:, 0], both[:, 1])
    assert (both[15:].mean(0) < both[:8].mean(0)).all()


def test_arms_differ_in_how_they_explore_alone() -> None:
    found = arms()
    changed = {name: set(method.diff(found["lmc"])) for name, method in found.items()}
    assert changed["lmc"] == set()
    assert all("optimizer" in path for path in changed["adam"]) and changed["adam"]
    assert all("optimizer" in path or "exploration" in path for path in changed["epsilon"])


def test_the_experiment_measures_what_the_claim_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmc_lsvi, "solved", lambda label, method, seeds: ([0.0] * len(seeds), [1.0] * len(seeds)))
    monkeypatch.setattr(lmc_lsvi, "EPISODES", 4)
    claim, found = get_method("lmc-lsvi").claim, lmc_lsvi.experiment([3, 4])
    assert claim is not None and {m.name for m in claim.measures} == set(found[0].arm)
    assert set(found[0].baseline) == {m.name for m in claim.measures if m.against is None}
