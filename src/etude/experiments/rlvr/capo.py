"""What capo claims: steps so large and batches so small that GRPO collapses, with and without the mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from etude.core.kinds import TokenMethod
from etude.experiments.arms import SEEDS as FIRST
from etude.experiments.arms import Question, Trained, Training, findings, run, variant
from etude.experiments.cells import Cell, spread, trained
from etude.tasks.language.sums import Sums

if TYPE_CHECKING:
    from etude.loops.language import LanguageLoop

TASK = Sums(terms=(3, 4, 5))
STEPS, CAUTIOUS_STEPS, SEEDS = 40, 17, 3
BOLD = {"problems": 8, "optimizer.lr": 5e-4, "optimizer.warmup": 0.1}
CAUTIOUS = {"problems": 96, "optimizer.lr": 1e-4, "optimizer.warmup": 0.1}
"""The paper's two regimes: a fifth of the learning rate with twelve times the problems."""
OPEN = {f"token_weights.0.{name}": None for name in ("low", "high", "limit")}
SPAN = 5
"""Steps whose accuracies are averaged to say when training has collapsed."""


def experiment() -> dict[str, Any]:
    """Accuracies of four policies; when GRPO collapses and when its steps moved the policy most."""
    plain = {"advantages.scale": "none"}
    arms = {
        "capo, bold": (variant("capo", BOLD), STEPS),
        "grpo, bold": (variant("grpo", {**BOLD, **plain}), STEPS),
        "grpo, cautious": (variant("grpo", {**CAUTIOUS, **plain}), CAUTIOUS_STEPS),
        "start": (variant("grpo", plain), 0),
    }
    jobs = [Training(k, m, TASK, FIRST + s, n) for s in range(SEEDS) for k, (m, n) in arms.items()]
    found = run(jobs)
    accuracy = {k: [r.pass_at(1) for r in runs] for k, runs in found.items()}
    watched = spread(_watch, range(FIRST, FIRST + SEEDS))
    order = {"largest shift": [w[0] for w in watched], "collapse": [w[1] for w in watched]}
    bold, loose, cautious, start = arms
    fifth = STEPS // 5
    return findings(
        [
            Question("Accuracy, large steps and small batches", _pair(accuracy, bold, loose)),
            Question("Accuracy after collapse", _pair(accuracy, loose, start), "lower"),
            Question("Accuracy against the first policy's", _pair(accuracy, bold, start)),
            Question("Accuracy after five times fewer completions", _pair(accuracy, bold, cautious)),
            Question("Step of GRPO's largest policy shift, and of its collapse to half of the first accuracy", order,
                     "lower"),
        ],
        task=TASK.id, steps=STEPS, seeds=SEEDS, metric="pass@1", accuracy=accuracy,
        completions={loose: STEPS * BOLD["problems"] * 8, cautious: CAUTIOUS_STEPS * CAUTIOUS["problems"] * 8},
        left_out={"first fifth": _left_out(found[bold], 0, fifth), "last fifth": _left_out(found[bold], -fifth)},
    )  # fmt: skip


def _pair(scores: dict[str, list[float]], first: str, second: str) -> dict[str, list[float]]:
    return {first: scores[first], second: scores[second]}


def _left_out(runs: list[Trained], start: int, stop: int | None = None) -> list[float]:
    """Share of tokens that the mask left out, per run."""
    kept = [[m.get("tokens_kept/curvature-mask", 1.0) for m in r.metrics[start:stop]] for r in runs]
    return [1 - float(np.mean(k)) for k in kept]


def policy_shift(loop: LanguageLoop) -> float:
    """How far the last update moved the policy."""
    method = loop.method
    assert isinstance(method, TokenMethod)
    return float(method.token_weights[0].state.get("policy_shift", 0.0))


def _watch(seed: int) -> tuple[float, float]:
    """GRPO in the bold regime: the steps of its largest policy shift and of its collapse."""
    method = variant("capo", {**BOLD, **OPEN})  # without thresholds nothing is left out
    _, metrics = trained(Cell("grpo, watched", method, TASK, seed, STEPS), policy_shift)
    accuracy, shift = [m["accuracy"] for m in metrics], [m["watched"] for m in metrics]
    means = np.convolve(accuracy, np.ones(SPAN) / SPAN, "valid")
    fallen = np.nonzero(means < means[0] / 2)[0]
    return float(np.argmax(shift)), float(fallen[0] + SPAN - 1 if len(fallen) else STEPS)
