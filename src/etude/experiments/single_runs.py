"""Runs of a claim's own method, for claims that hold what it comes to against a number or against its start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from etude.core.kinds import TokenMethod
from etude.core.registry import get_method
from etude.evaluation.comparison import verdict
from etude.experiments import cells
from etude.experiments.arms import variant
from etude.experiments.cells import Cell

if TYPE_CHECKING:
    from etude.loops.language import LanguageLoop
    from etude.policies.language import LanguagePolicy


def claimed(name: str) -> TokenMethod:
    """The method with its claim's changes."""
    method = variant(name)
    assert method.claim is not None
    return variant(method, method.claim.changes)


def seeds(name: str) -> int:
    """How many seeds its claim asks for."""
    claim = get_method(name).claim
    assert claim is not None
    return claim.seeds


def first_loop(method: TokenMethod, seed: int) -> LanguageLoop:
    """A loop of the method on its claim's task and model, before the first step."""
    return cells.language_loop(_cell(method, seed))


def trained(method: TokenMethod, seed: int) -> LanguagePolicy:
    """The policy after the steps of its claim."""
    return cells.trained(_cell(method, seed))[0].policy


def _cell(method: TokenMethod, seed: int) -> Cell:
    from etude.tasks import resolve_task

    claim = method.claim
    assert claim is not None
    return Cell(method.id, method, resolve_task(claim.task), seed, claim.steps, claim.model)


def accuracy(policy: LanguagePolicy, seed: int, name: str = "preferences") -> float:
    """pass@1 on the test split of a task."""
    from etude.core.task import LanguageTask
    from etude.evaluation.language import evaluate_split
    from etude.tasks import resolve_task

    task = resolve_task(name)
    assert isinstance(task, LanguageTask)
    return float(evaluate_split(policy, task, "test", problems=100, samples=4, seed=seed).correct.mean())


def result(name: str, arm: Sequence[float], baseline: Sequence[float], against: str) -> dict[str, Any]:
    """What `claims run` records: scores of the method, those that it is held against, and the verdict."""
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
