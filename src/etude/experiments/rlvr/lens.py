"""LENS's claim: hard problems, most of whose groups have no right answer, on sums and on exact tables."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.kinds import TokenMethod
from etude.core.slots import Filter
from etude.experiments.arms import Exact, Question, Trained, enumerable, findings, language, variant
from etude.experiments.cells import spread
from etude.methods.rlvr.lens import without_success
from etude.tasks.language.sums import Sums
from etude.tasks.tabular.enumerable import Enumerable

SEED_COUNT, STEPS = 64, 60
RUNS, TRAINING = 3, 40
HARD = ("terms4", "terms5")


class NegativesOnly(Filter):
    """Keeps groups without a success, and nothing else."""

    def weigh(self, batch: TokenBatch) -> Tensor:
        return without_success(batch).to(batch.scores.dtype)


def experiment() -> dict[str, Any]:
    """Against GRPO: pass@k of rare solutions on tables, of longer sums after training, and rows without a gradient.

    The tables have 8 prompts with 1 or 2 right responses of 36, of which the policy finds one in a hundred at first.
    """
    arms = {"lens": variant("lens"), "grpo": variant("grpo")}
    only = variant("lens", filters=(NegativesOnly(),))
    tables = dict(zip((*arms, "negatives only"), spread(_tables, [*arms.values(), only])))
    sums = language(arms, Sums(terms=(3, 4, 5)), seeds=RUNS, steps=TRAINING, samples=16)
    questions = [
        Question(f"{k} on enumerable", {name: tables[name].final(k) for name in arms}) for k in ("pass@1", "pass@16")
    ]
    for k in (1, 16):
        found = {name: [_hard(run, k) for run in runs] for name, runs in sums.items()}
        questions.append(Question(f"pass@{k} on sums of 4 and 5 terms", found))
    idle = {name: [_idle(run.metrics) for run in runs] for name, runs in sums.items()}
    questions.append(Question("rows without a gradient on sums", idle, "lower"))
    figures = {
        name: {k: {"first": float(c[0].mean()), "final": float(c[-1].mean())} for k, c in run.curves.items()}
        for name, run in tables.items()
    }
    return findings(
        questions, task="enumerable, sums", steps=STEPS, seeds=SEED_COUNT, runs=RUNS, training=TRAINING,
        figures=figures, rows_without_gradient=idle,
    )  # fmt: skip


def _tables(method: TokenMethod) -> Exact:
    torch.set_num_threads(1)
    task = Enumerable(prompts=8, vocabulary=6, length=2, solutions=2, spread=2.0)
    return enumerable(method, task, seeds=SEED_COUNT, steps=STEPS)


def _hard(run: Trained, k: int) -> float:
    """Mean over the problems of the hard levels."""
    sizes = [sum(level == name for level in run.levels) for name in HARD]
    return float(sum(n * run.pass_at(k, name) for n, name in zip(sizes, HARD) if n) / sum(sizes))


def _idle(metrics: list[dict[str, float]]) -> float:
    """Mean over the steps of the share of rows with no advantage."""
    return sum(m["zero_advantage"] for m in metrics) / len(metrics)
