"""Experiments of claims that are not a comparison of two runs' final scores."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etude.core.edit import set_values
from etude.core.method import Method
from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.evaluation.comparison import verdict

PAIRS = 200
"""New problems that a reward model is asked about."""


def reward_model() -> dict[str, Any]:
    """Pair accuracy of trained reward models on problems that they have not seen, against guessing."""
    found = [pair_accuracy(_trained(_scored("reward-model"), seed)) for seed in range(_seeds("reward-model"))]
    return _result("reward-model", found, [0.5] * len(found), "guessing")


def learned_reward() -> dict[str, Any]:
    """Accuracy on test problems before and after PPO on the reward of a model that only saw pairs."""
    before, after = [], []
    for seed in range(_seeds("ppo-rlhf")):
        with tempfile.TemporaryDirectory() as folder:
            _trained(_scored("reward-model"), seed).save(Path(folder))
            method = set_values(get_method("ppo-rlhf"), {"rewards.reward-model.model": folder})
            before.append(accuracy(_loop(method, seed).policy, seed))
            after.append(accuracy(_trained(method, seed), seed))
    return _result("ppo-rlhf", after, before, "tiny")


def rewards_alone() -> dict[str, Any]:
    """Accuracy on test problems before and after REINFORCE."""
    method = get_method("reinforce")
    before = [accuracy(_loop(method, seed).policy, seed, "compose") for seed in range(_seeds("reinforce"))]
    after = [accuracy(_trained(method, seed), seed, "compose") for seed in range(_seeds("reinforce"))]
    return _result("reinforce", after, before, "tiny")


def pair_accuracy(scorer: Any) -> float:
    """Share of unseen pairs of `preferences` of which the reward model scores the chosen answer higher."""
    from etude.core.slots import Context
    from etude.experience.data import Pairs
    from etude.rewards.model import values
    from etude.tasks import resolve_task

    task: Any = resolve_task("preferences")
    problems = task.problems("test")[:PAIRS]
    scores = values(scorer, Pairs().collect(problems, Context(task, scorer, Stream(0))))
    return sum(chosen > rejected for chosen, rejected in zip(scores[::2], scores[1::2])) / len(problems)


def accuracy(policy: Any, seed: int, name: str = "preferences") -> float:
    """pass@1 on the test split of a task."""
    from etude.evaluation.language import evaluate_split
    from etude.tasks import resolve_task

    task: Any = resolve_task(name)
    return float(evaluate_split(policy, task, "test", problems=100, samples=4, seed=seed).correct.mean())


def _scored(name: str) -> Method:
    """The method with its claim's changes."""
    method = get_method(name)
    assert method.claim is not None
    return set_values(method, method.claim.changes)


def _seeds(name: str) -> int:
    claim = get_method(name).claim
    assert claim is not None
    return claim.seeds


def _loop(method: Method, seed: int) -> Any:
    import torch

    from etude.loops.language import LanguageLoop
    from etude.policies.language import LanguagePolicy
    from etude.tasks import resolve_task

    assert method.claim is not None
    torch.set_num_threads(1)
    policy = LanguagePolicy.load(method.claim.model, device="cpu")
    task: Any = resolve_task(method.claim.task)
    return LanguageLoop(method, task, policy, seed=seed, steps=method.claim.steps)


def _trained(method: Method, seed: int) -> Any:
    loop = _loop(method, seed)
    for _ in range(loop.steps):
        loop.step()
    return loop.policy


def _result(name: str, arm: Sequence[float], baseline: Sequence[float], against: str) -> dict[str, Any]:
    claim = get_method(name).claim
    assert claim is not None
    found = verdict(arm, baseline, claim.direction, claim.margin)
    spread = found.interval.to_json()
    means = f"{name} {sum(arm) / len(arm):.3f}, {against} {sum(baseline) / len(baseline):.3f}"
    return {
        "verdict": found.outcome,
        "summary": f"{claim.metric} on {claim.task} after {claim.steps} steps, {claim.seeds} seeds: {means}.",
        "task": claim.task, "model": claim.model, "metric": claim.metric, "direction": claim.direction,
        "margin": claim.margin, "steps": claim.steps, "seeds": claim.seeds, "changes": dict(claim.changes),
        "arms": {name: list(arm), against: list(baseline)}, "difference": spread,
    }  # fmt: skip
