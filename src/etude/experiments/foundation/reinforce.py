"""The claim of REINFORCE: rewards alone teach."""

from __future__ import annotations

from typing import Any

from etude.experiments.arms import variant
from etude.experiments.single_runs import accuracy, first_loop, result, seeds, trained


def experiment() -> dict[str, Any]:
    """Accuracy on test problems before and after REINFORCE."""
    method = variant("reinforce")
    before = [accuracy(first_loop(method, seed).policy, seed, "compose") for seed in range(seeds("reinforce"))]
    after = [accuracy(trained(method, seed), seed, "compose") for seed in range(seeds("reinforce"))]
    return result("reinforce", after, before, "tiny")
