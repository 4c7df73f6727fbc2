"""LENS's claim: hard problems, most of whose groups have no right answer, on a language task and on exact tables."""

from __future__ import annotations

from collections.abc import Sequence

from etude.evaluation.pairs import Pair
from etude.experiments.arms import Trained, language, pairs, tables, untrained, variant
from etude.tasks.language.compose import Compose
from etude.tasks.tabular.enumerable import Enumerable

TASK, HARD = Compose(levels=(3, 4)), "level4"
"""Half of the problems are hard: one sample in twenty of the first policy is right, so that two groups in three have
nothing to learn from. The others lead there."""
TABLES = Enumerable(prompts=8, vocabulary=6, length=2, solutions=2, spread=2.0)
"""One or two of 36 responses are right, of which the first policy finds one in a hundred."""
STEPS, TABLE_STEPS = 30, 60
PROBLEMS, SAMPLES = 800, 16
SHARED = {"problems": 32, "optimizer.lr": 2e-4}


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """LENS against GRPO: pass@1 and pass@16 of chains of four and of rare solutions, rows without a gradient."""
    arms = {name: variant(name, SHARED) for name in ("lens", "grpo")}
    chains = language(arms, TASK, seeds=seeds, steps=STEPS, problems=PROBLEMS, samples=SAMPLES)
    exact = tables({name: variant(name) for name in chains}, TABLES, seeds=seeds, steps=TABLE_STEPS)
    first = untrained(arms["grpo"], TASK, problems=PROBLEMS, samples=SAMPLES)
    arm, baseline = (
        {
            **{f"pass@{k}": [run.pass_at(k, HARD) for run in chains[name]] for k in (1, SAMPLES)},
            **{f"tables: pass@{k}": exact[name].final(f"pass@{k}") for k in (1, 16)},
            "rows without a gradient": [_idle(run) for run in chains[name]],
        }
        for name in ("lens", "grpo")
    )
    start = {
        **{f"pass@{k}": [first.pass_at(k, HARD)] * len(seeds) for k in (1, SAMPLES)},
        **{f"tables: pass@{k}": exact["grpo"].first(f"pass@{k}") for k in (1, 16)},
    }
    counts = {name: [run.completions for run in found] for name, found in chains.items()}
    return pairs(seeds, arm, baseline, start=start, budgets={"completions": (counts["lens"], counts["grpo"])})


def _idle(run: Trained) -> float:
    """Mean over the steps of the share of rows with no advantage."""
    return sum(line["zero_advantage"] for line in run.metrics) / len(run.metrics)
