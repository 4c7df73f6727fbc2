"""Populations on several tasks: scores between floor and top, and arms that differ in nothing but what is compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from etude.core.registry import get_method
from etude.experiments import normalised
from etude.experiments.foundation.ppo import variants
from etude.experiments.normalised import Arm, Ground, Played, Scores, scores, train, used_steps
from etude.experiments.onpolicy.policy_gradient_guide import SIX, on_common_ground
from etude.policies.control.networks import MLP

pytestmark = pytest.mark.usefixtures("one_thread")
GROUND = Ground("cartpole", 64, floor=0.0, top=500.0, changes={"gust": 20.0}, episodes=2)


def small() -> Any:
    ppo: Any = get_method("ppo", "control")
    return ppo.replace(
        policy=ppo.policy.replace(network=MLP(hidden=(4,))), epochs=1, minibatches=1,
        experience=ppo.experience.replace(environments=2, steps=16),
    )  # fmt: skip


@pytest.mark.slow
def test_a_seed_has_the_same_scores_whoever_is_asked_for_with_it() -> None:
    both, alone = (train(Arm("ppo", small(), GROUND, seeds, ("clip_fraction", "absent"))) for seeds in ((3, 4), (4,)))
    assert both.steps == alone.steps == 64
    assert both.end[1] == pytest.approx(alone.end[0]) and both.start[1] == pytest.approx(alone.start[0])
    assert 0 < both.start.min() < both.start.max() < 0.5
    assert list(both.watched) == ["clip_fraction"] and both.watched["clip_fraction"].shape == (2,)


def test_scores_are_means_over_the_grounds_of_each_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    hard = Ground("pendulum", 128, floor=-1000.0, top=0.0)

    def played(arm: Arm) -> Played:
        level, start = (0.5, 0.0) if arm.ground is hard else (0.25, 0.1)
        ends = np.array([level + 0.1 * seed * (arm.label == "one") for seed in arm.seeds])
        return Played(np.full(len(arm.seeds), start), ends, float(arm.ground.steps), {})

    monkeypatch.setattr(normalised, "spread", lambda function, jobs: [played(job) for job in jobs])
    found = scores({"one": small(), "other": small()}, [GROUND, hard], [1, 3])
    assert found["one"].end == pytest.approx([0.475, 0.675]) and found["other"].end == pytest.approx([0.375, 0.375])
    assert found["one"].worst == pytest.approx([0.35, 0.55]) and found["one"].start == pytest.approx([0.05, 0.05])
    assert used_steps(found, 2) == {"environment_steps": ([192.0, 192.0], [192.0, 192.0])}


def test_steps_that_are_not_the_same_are_seen() -> None:
    one, other = (Scores((Played(np.zeros(1), np.zeros(1), steps, {}),)) for steps in (64.0, 96.0))
    assert used_steps({"one": one, "other": other}, 1) == {"environment_steps": ([96.0], [64.0])}


def test_what_bounds_ppo_is_all_that_its_variants_differ_in() -> None:
    clip, *others = variants().values()
    for other in others:
        assert {path.split(".")[0] for path in other.diff(clip)} <= {"objective", "regularizers"}
        assert other.diff(clip)
        other.check()


@pytest.mark.parametrize("name", SIX)
def test_the_six_share_the_guides_settings(name: str) -> None:
    method: Any = on_common_ground(name)
    guide: Any = get_method("policy-gradient-guide")
    assert method.policy.network == method.critic.network == MLP(hidden=(32, 32), activation="silu")
    assert method.policy.replace(network=guide.policy.network) == guide.policy
    assert (method.rewards, method.advantages.gamma) == (guide.rewards, 0.99)
    assert method.optimizer.lr is None or method.optimizer.replace(lr=3e-4) == guide.optimizer
    method.check()
