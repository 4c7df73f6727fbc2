"""MD-VI and DA-VI on tables: the same policies, their limits, and what errors come to (arXiv:2003.14089)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from etude.core.registry import get_method
from etude.experiments.value import mdvi
from etude.experiments.value.mdvi import Iterate, chances, dual_averaging, mirror_descent, sampled, uniform, worth
from etude.tasks.tabular.finite import FiniteMDP
from etude.tasks.tabular.garnet import Garnet

pytestmark = pytest.mark.usefixtures("one_thread")


def garnets(seeds: range = range(3)) -> FiniteMDP:
    return Garnet(states=8, actions=3, branching=2).mdp(seeds, gamma=0.9)


def normal(mdp: FiniteMDP, scale: float = 0.3) -> mdvi.Noise:
    """Errors of deviation `scale`, the same for backup k whoever asks."""

    def noise(k: int, value: Tensor) -> Tensor:
        return scale * torch.randn(mdp.rewards.shape, generator=torch.Generator().manual_seed(k), dtype=torch.float64)

    return noise


def run(mdp: FiniteMDP, kl: float, entropy: float, count: int, scale: float = 0.3) -> list[Iterate]:
    return list(mirror_descent(mdp, kl, entropy, normal(mdp, scale), count))


@pytest.mark.parametrize(("kl", "entropy"), [(0.7, 0.0), (0.7, 0.2), (2.0, 0.05)])
def test_mirror_descent_is_dual_averaging(kl: float, entropy: float) -> None:
    mdp = garnets()
    other = dual_averaging(mdp, kl, entropy, normal(mdp), 40)
    for mine, theirs in zip(run(mdp, kl, entropy, 40), other, strict=True):
        assert torch.allclose(mine.logs, theirs.logs, atol=1e-8) and torch.allclose(mine.q, theirs.q, atol=1e-8)


def test_without_entropy_the_policy_is_the_softmax_of_the_sum_of_all_values() -> None:
    mdp, kl, total = garnets(), 0.7, 0.0
    q: Tensor = torch.zeros_like(mdp.rewards)
    for logs, following in run(mdp, kl, 0.0, 12):
        total = total + q  # q_0 to q_k make pi_{k+1}
        weights = (total / kl).exp()
        assert torch.allclose(logs.exp(), weights / weights.sum(-1, keepdim=True), atol=1e-9)
        q = following


def test_the_limits_of_both_regularisers() -> None:
    """No kl: the softmax of q / entropy. No entropy and a kl without end: the policy stays. Neither: the best."""
    q, logs = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64).log_softmax(-1)
    assert torch.allclose(chances(logs, q, 0.0, 0.3).exp(), (q / 0.3).softmax(-1))
    assert torch.allclose(chances(logs, q, 1e9, 0.0), logs, atol=1e-8)
    assert torch.equal(chances(logs, q, 0.0, 0.0).exp(), torch.nn.functional.one_hot(q.argmax(-1), 4).double())
    assert torch.equal(worth(chances(logs, q, 0.0, 0.0), logs, q, 0.0, 0.0), q.amax(-1))


def test_no_policy_does_better_than_the_greedy_step() -> None:
    random = torch.Generator().manual_seed(0)
    q, before, others = (torch.randn(n, 4, dtype=torch.float64, generator=random) for n in (1, 1, 500))
    before = before.log_softmax(-1)
    best = chances(before, q, 0.6, 0.3)
    most = worth(best, before, q, 0.6, 0.3)
    assert (worth(others.log_softmax(-1), before, q, 0.6, 0.3) < most).all()
    assert (worth((best + 1e-3 * others).log_softmax(-1), before, q, 0.6, 0.3) < most).all()
    closed = 0.9 * ((0.6 * before + q) / 0.9).logsumexp(-1)  # the maximum, by its own formula
    assert torch.allclose(most, closed)


@pytest.mark.parametrize("kl", [0.0, 0.5])
def test_without_errors_the_best_values_are_found(kl: float) -> None:
    mdp = garnets()
    last = run(mdp, kl, 0.0, 400, scale=0.0)[-1]
    assert (mdp.optimal().amax(-1) - mdp.evaluate(last.logs.exp())).max() < 0.01


def test_errors_average_out_with_kl_and_stay_without() -> None:
    """Sixteen times the iterations: about a quarter of the error, where value iteration keeps its own."""
    mdp = garnets(range(8))
    at = (25, 400)

    def ends(kl: float) -> list[float]:
        found = mdvi.errors(mdp, mirror_descent(mdp, kl, 0.0, normal(mdp), 400), at)
        return [sum(each) / len(each) for each in found]

    (early, late), (first, last) = ends(0.3), ends(0.0)
    assert late < early / 3 and last > 0.6 * first and last > 10 * late


def test_the_error_is_within_the_papers_bound() -> None:
    """2 / (1 - gamma) |mean error| + 4 / (1 - gamma) v_max / k, v_max = (r_max + kl log A) / (1 - gamma)."""
    mdp, kl, noise = garnets(), 0.2, normal(garnets(), 0.5)
    best, total = mdp.optimal(), torch.zeros_like(mdp.rewards)
    most = (1 + kl * math.log(3)) / 0.1
    for k, (logs, _) in enumerate(run(mdp, kl, 0.0, 200, scale=0.5), 1):
        away = (best - mdp.backup(mdp.evaluate(logs.exp()))).abs().amax((1, 2))
        bound = 20 * (total / k).abs().amax((1, 2)) + 40 * most / k
        assert (away <= bound + 1e-9).all()
        total += noise(k - 1, total)


@pytest.mark.slow
def test_sampled_backups_are_right_on_average_and_each_members_own() -> None:
    mdp, value = garnets(), torch.randn(3, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    noise = sampled(mdp, [0, 1, 2])
    drawn = torch.stack([noise(k, value) for k in range(1000)])
    assert (drawn.mean(0).abs() <= 4 * drawn.std(0) / 1000**0.5 + 1e-12).all() and float(drawn.std()) > 0.1
    alone = sampled(garnets(range(1, 2)), [1])
    assert torch.equal(alone(5, value[1:2])[0], noise(5, value)[1]) and torch.equal(noise(5, value), drawn[5])
    assert uniform(mdp).exp().unique().tolist() == pytest.approx([1 / 3])


@pytest.mark.slow
def test_the_experiment_measures_what_the_claim_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mdvi, "ITERATIONS", 60)
    both, alone = mdvi.experiment([3, 4]), mdvi.experiment([4])
    claim = get_method("mdvi").claim
    assert claim is not None and {m.name for m in claim.measures} == set(both[0].arm) == set(both[0].baseline)
    assert both[1].arm == pytest.approx(alone[0].arm) and both[1].baseline == pytest.approx(alone[0].baseline)
    assert all(pair.arm["error"] < pair.baseline["error"] for pair in both)
