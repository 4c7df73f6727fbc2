"""PACS's claim: pass@1 on language; pass@16 and entropy at equal accuracy, exactly, on enumerable policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from etude.evaluation.pairs import Pair
from etude.experiments.arms import Exact, language, pairs, tables, untrained, variant
from etude.tasks.language.compose import Compose
from etude.tasks.tabular.enumerable import Enumerable

LANGUAGE = {"epochs": 1, "minibatches": 4, "optimizer.lr": 1e-4}
TASK, STEPS = Compose(levels=(3,)), 20
TABLES = {"epochs": 4, "minibatches": 1}
TABLE, TABLE_STEPS = Enumerable(prompts=16, vocabulary=6, length=2, solutions=6, spread=2.0), 50
LEVEL = 0.6
"""pass@1 at which the arms are compared: at the same step the one that has learned more has less entropy."""


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """PACS against GRPO and PPO, four updates of every batch each."""
    runs = language({k: variant(k, LANGUAGE) for k in ("pacs", "grpo", "ppo")}, TASK, seeds=seeds, steps=STEPS)
    pacs, grpo, ppo = ([run.pass_at(1) for run in runs[k]] for k in ("pacs", "grpo", "ppo"))
    exact = tables({k: variant(k, TABLES) for k in ("pacs", "grpo")}, TABLE, seeds=seeds, steps=TABLE_STEPS)
    level = shared_level(exact)
    return pairs(
        seeds,
        {"pass@1": pacs, "pass@1 against ppo": pacs, **at_level(exact["pacs"], level),
         "exact pass@1": exact["pacs"].final("pass@1")},
        {"pass@1": grpo, "pass@1 against ppo": ppo, **at_level(exact["grpo"], level),
         "exact pass@1": exact["grpo"].final("pass@1")},
        start={"pass@1": [untrained(variant("grpo"), TASK).pass_at(1)] * len(seeds)},
        budgets={"completions": ([r.completions for r in runs["pacs"]], [r.completions for r in runs["grpo"]])},
    )  # fmt: skip


def shared_level(exact: Mapping[str, Exact]) -> list[float]:
    """Each seed's LEVEL, or the highest pass@1 that all arms come to where that is less."""
    return [float(x) for x in np.minimum(LEVEL, np.min([e.curves["pass@1"].max(0) for e in exact.values()], axis=0))]


def at_level(exact: Exact, level: Sequence[float]) -> dict[str, list[float]]:
    """pass@16 and entropy where pass@1 first reaches each seed's level, interpolated between two steps."""
    found: dict[str, list[float]] = {"pass@16 at equal pass@1": [], "entropy at equal pass@1": []}
    for i, wanted in enumerate(level):
        accuracy = exact.curves["pass@1"][:, i]
        reached = int((accuracy >= wanted).argmax())
        around = [max(0, reached - 1), reached]
        for values, metric in zip(found.values(), ("pass@16", "entropy")):
            values.append(float(np.interp(wanted, accuracy[around], exact.curves[metric][around, i])))
    return found
