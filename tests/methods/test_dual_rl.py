"""f-DVL and ReCOIL: what V comes to, whose rows are an expert's; updates are in `test_offline_updates.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.population import Member
from etude.core.registry import get_method
from etude.experience.transforms import ForgetRewards, MarkExperts
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.replay_reading import StoredReading
from etude.methods.offline.dual_rl.conjugates import ChiSquareDual, Gumbel, TotalVariationDual
from etude.methods.offline.dual_rl.imitation import ExpertContrast, ExpertShare
from log_toys import logged_task, random_logs, small_logged

torch.set_num_threads(1)
METHOD: Any = get_method("recoil")


def least(error: Any, targets: Tensor, low: float, high: float) -> float:
    """The V between `low` and `high` at which the mean error is least, by its slope's sign."""
    for _ in range(60):
        middle = torch.tensor((low + high) / 2, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(error(middle.expand(1, len(targets), 1), targets[None, :, None]).mean(), middle)
        low, high = (middle.item(), high) if slope < 0 else (low, middle.item())
    return (low + high) / 2


@pytest.mark.slow
def test_total_variation_learns_a_quantile() -> None:
    targets = torch.randn(1001, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for lam in (0.6, 0.8, 0.95):
        found = least(TotalVariationDual(lam=lam), targets, -5, 5)
        assert (targets > found).double().mean().item() == pytest.approx((1 - lam) / lam, abs=2e-3)
    assert least(TotalVariationDual(lam=0.8), targets, -5, 5) == pytest.approx(targets.quantile(0.75).item(), abs=0.02)


def test_gumbel_regression_learns_a_soft_maximum_whatever_the_shift() -> None:
    targets = torch.randn(500, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for scale in (0.5, 2.0):
        soft = scale * ((targets / scale).exp().mean().log())
        assert least(Gumbel(scale=scale, most=100.0), targets, -5, 5) == pytest.approx(float(soft), abs=1e-9)


def test_chi_square_is_its_conjugate_above_and_a_line_below() -> None:
    """sup over w >= 0 of w y - (w - 1)^2 is y + y^2 / 4 from -2 on and -1 below."""
    y = torch.linspace(-6, 6, 49, dtype=torch.float64)
    w = torch.linspace(0, 5, 50_001, dtype=torch.float64)[:, None]
    supremum = (w * y - (w - 1) ** 2).amax(0)
    best = (y / 2 + 1).clamp(min=0)
    torch.testing.assert_close(supremum, best * y - (best - 1) ** 2, atol=1e-8, rtol=0)
    torch.testing.assert_close(supremum, torch.where(y >= -2, y + y**2 / 4, -1.0), atol=1e-8, rtol=0)
    part = ChiSquareDual(lam=0.8)
    mine = (part(torch.zeros(1), y) + (1 - 0.8) * y) / 0.8
    torch.testing.assert_close(mine, torch.where(y > 0, supremum, 0.0), atol=1e-8, rtol=0)
    # slopes: bounded below, and a line above for total variation, where Gumbel's grow as exp
    slopes = {}
    for name, error in {"tv": TotalVariationDual(lam=0.8), "chi": part, "gumbel": Gumbel(most=50.0)}.items():
        v = torch.zeros(1, 1, 2, dtype=torch.float64, requires_grad=True)
        loss = error(v, torch.tensor([[[30.0, -30.0]]], dtype=torch.float64)).sum()
        slopes[name] = torch.autograd.grad(loss, v)[0].flatten().tolist()
    assert slopes["tv"] == pytest.approx([-0.6, 0.2]) and slopes["chi"] == pytest.approx([-0.8 * 16 + 0.2, 0.2])
    assert slopes["gumbel"][0] == pytest.approx(-1, abs=1e-9) and abs(slopes["gumbel"][1]) < 1e-12


# Whose rows are an expert's


def test_the_best_episodes_are_the_experts_and_nobody_is_paid() -> None:
    logs = random_logs()
    found = MarkExperts(episodes=3)(logs, METHOD)
    assert found.expert is not None and not ForgetRewards()(found, METHOD).rewards.any()
    episode = np.repeat(np.arange(20), 20)
    wanted = np.isin(episode, np.argsort(logs.returns)[-3:])
    assert (found.expert == wanted).all()
    said = MarkExperts(episodes=1).sentence(logs, MarkExperts(episodes=1)(logs, METHOD))
    assert said == f"1 of 20 episodes are an expert's, which earned {logs.returns.max():.4g}"
    with pytest.raises(ConfigError, match="takes 20 episodes for an expert's, and there are 20"):
        MarkExperts(episodes=20)(logs, METHOD)


def test_a_batch_has_the_experts_first(tmp_path: Path) -> None:
    method = set_values(small_logged("recoil"), {"sampling.batch": 8, "sampling.share": 0.25})
    loop = OffPolicyLoop(method, logged_task(tmp_path), [Member(3), Member(4)], 4, 4)
    for n in range(20):
        batch = loop.method.sampling.draw(loop.collector.store, loop.updater.stretches.at(n))
        assert batch.offers["expert"].tolist() == [[1.0] * 2 + [0.0] * 6] * 2
        mark = loop.collector.store.beside["expert"]  # type: ignore[attr-defined]
        assert torch.equal(mark[batch.index], batch.offers["expert"])
    assert int(mark.sum()) == 199  # one episode
    with pytest.raises(ConfigError, match=r"ExpertShare takes 0\.01 of 8 rows: that leaves none of one kind"):
        ExpertShare(batch=8, share=0.01)


def test_a_contrast_between_alike_rows_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = OffPolicyLoop(small_logged("recoil"), logged_task(tmp_path), [Member(3), Member(4)], 4, 4)
    store, draw = loop.collector.store, loop.updater.stretches.at(0)
    batch = loop.method.sampling.draw(store, draw)
    same = batch.replace(
        observations=batch.observations[:, :3].repeat(1, 2, 1), actions=batch.actions[:, :3].repeat(1, 2, 1)
    )
    read = StoredReading(loop.updater, loop.method.sampling, same, draw, store)
    penalty = ExpertContrast(weight=2.0)
    outputs = read.outputs("here", same.actions)
    assert penalty(read, outputs).mean(1).abs().min() > 1e-6  # the policy does something else
    choice = read.policy()._replace(actions=same.actions)
    monkeypatch.setattr(read, "policy", lambda: choice)
    torch.testing.assert_close(penalty(read, outputs).mean(1), torch.zeros(2), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("iql", ["sampling=expert-share"], "ExpertShare asks whose rows are an .*: set transforms=mark-experts"),
        ("iql", ["critic.penalties=expert-contrast"], "ExpertContrast asks whose rows are an expert's"),
        ("cql-discrete", ["critic.penalties=expert-contrast"], "one action of the policy, and FromCritic makes ch"),
    ],
)
def test_what_it_asks_for_is_said(name: str, changes: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(set_values(get_method(name), changes))
