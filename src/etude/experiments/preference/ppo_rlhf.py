"""The claim of PPO on a learned reward: what is learned from a model that only saw pairs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from etude.experiments.arms import variant
from etude.experiments.single_runs import accuracy, claimed, first_loop, result, seeds, trained


def experiment() -> dict[str, Any]:
    """Accuracy on test problems before and after PPO on the reward of a model that only saw pairs."""
    before, after = [], []
    for seed in range(seeds("ppo-rlhf")):
        with tempfile.TemporaryDirectory() as folder:
            trained(claimed("reward-model"), seed).save(Path(folder))
            method = variant("ppo-rlhf", {"rewards.reward-model.model": folder})
            before.append(accuracy(first_loop(method, seed).policy, seed))
            after.append(accuracy(trained(method, seed), seed))
    return result("ppo-rlhf", after, before, "tiny")
