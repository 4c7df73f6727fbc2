"""How often intervals hold the truth: what is counted, whose likelihoods they are, what is true of some steps."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from etude.core.streams import Stream

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import interval_coverage as benchmark


def line(low: float, high: float, effective: float = 20.0) -> dict[str, object]:
    ends = [(low + high) / 2, low, high]
    names = ("fqe", "doubly-robust", "importance-sampling", "weighted-importance-sampling")
    return {"effective": effective, **dict.fromkeys(names, ends)}


def test_what_holds_the_truth_is_counted() -> None:
    lines = [line(0.0, 2.0), line(0.5, 1.2), line(1.5, 2.5, 40.0), line(1.0, 2.0)]
    found = benchmark.coverage(lines, np.ones(4))
    assert (found["fqe"]["held"], found["fqe"]["of"]) == (2, 4)
    assert found["fqe"]["width"] == pytest.approx((2.0 + 0.7 + 1.0 + 1.0) / 4, abs=1e-3)
    assert found["fqe"]["off"] == pytest.approx((0.0 - 0.15 + 1.0 + 0.5) / 4, abs=1e-3)
    assert found["effective episodes"] == [20.0, 20.0, 40.0]


def test_likelihoods_are_those_of_what_is_drawn() -> None:
    world, seen = benchmark.WORLDS["cart"](), np.random.default_rng(0).normal(0, 0.1, (20_000, 4)).astype(np.float32)
    actions, logp = world.policy.act(seen, Stream(0).torch)
    both = [np.exp(world.policy.logp(seen, np.full((len(seen), 1), a, np.float32))) for a in (0, 1)]
    assert both[0] + both[1] == pytest.approx(1.0)
    assert actions[:, 0].mean() == pytest.approx(both[1].mean(), abs=0.01)
    assert np.array_equal(logp, world.policy.logp(seen, actions))


def test_densities_of_pushes_add_up_to_one() -> None:
    policy, seen = benchmark.WORLDS["maze"]().policy, np.array([[-1.0, 1.0, 0.5, -0.2]], np.float32)
    centres = (np.arange(200) + 0.5) / 100 - 1
    pushes = np.stack(np.meshgrid(centres, centres), -1).reshape(-1, 2).astype(np.float32)
    density = np.exp(policy.logp(np.repeat(seen, len(pushes), 0), pushes))
    assert density.mean() * 4 == pytest.approx(1.0, abs=2e-3)
    drawn, logp = policy.act(np.repeat(seen, 50, 0), Stream(0).torch)
    assert np.array_equal(logp, policy.logp(np.repeat(seen, 50, 0), drawn))


def test_what_is_true_of_some_steps_is_what_they_earn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "PLAYED", 40)
    monkeypatch.setattr(benchmark, "AT_A_TIME", 20)
    benchmark.truths.cache_clear()
    gamma, known = benchmark.WORLDS["cart"]().gamma, benchmark.truths("cart")
    assert known[:5] == pytest.approx((1 - gamma ** np.arange(1, 6)) / (1 - gamma))  # nobody falls so soon
    assert (np.diff(known) >= 0).all() and benchmark.truth_at("cart", 10_000) == known[-1]
    benchmark.truths.cache_clear()
