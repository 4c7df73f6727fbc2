"""PACS's claim: pass@1 and pass@64 on language, pass@k and entropy exactly on enumerable policies."""

from __future__ import annotations

from typing import Any

from etude.experiments.arms import Question, enumerable, findings, language, variant

STEPS, RUNS, RATE, SAMPLES = 15, 3, 1e-4, 64
EXACT_STEPS, SEEDS = 50, 64
TOLERANCE = 0.02


def experiment() -> dict[str, Any]:
    """PACS against GRPO and PPO, four updates of every batch each.

    pass@64 on compose reaches 1 in every arm and cannot tell them apart; exact pass@16 can.
    """
    from etude.tasks.language.compose import compose
    from etude.tasks.tabular.enumerable import Enumerable

    changes = {"epochs": 1, "minibatches": 4, "optimizer.lr": RATE}
    methods = {k: variant(k, changes) for k in ("pacs", "grpo", "ppo")}
    runs = language(methods, compose, seeds=RUNS, steps=STEPS, problems=50, samples=SAMPLES)
    one, many = ({k: [r.pass_at(n) for r in v] for k, v in runs.items()} for n in (1, SAMPLES))
    again = {"epochs": 4, "minibatches": 1}
    task = Enumerable(vocabulary=4, length=2, solutions=3)
    exact = {k: enumerable(variant(k, again), task, seeds=SEEDS, steps=EXACT_STEPS) for k in ("pacs", "grpo")}

    def both(metric: str) -> dict[str, list[float]]:
        return {k: v.final(metric) for k, v in exact.items()}

    questions = [
        *(Question(f"pass@1 on compose, {k}'s less {TOLERANCE}",
                   {"pacs": one["pacs"], k: [x - TOLERANCE for x in one[k]]}) for k in ("grpo", "ppo")),
        *(Question(f"pass@{SAMPLES} on compose", {"pacs": many["pacs"], k: many[k]}) for k in ("grpo", "ppo")),
        Question(f"exact pass@1, grpo's less {TOLERANCE}",
                 {"pacs": both("pass@1")["pacs"], "grpo": [x - TOLERANCE for x in both("pass@1")["grpo"]]}),
        Question("exact pass@16", both("pass@16")),
        Question("exact entropy, mean along the run", {k: v.mean("entropy") for k, v in exact.items()}),
    ]  # fmt: skip
    about = {"language": changes, "enumerable": {**again, "steps": EXACT_STEPS, "seeds": SEEDS}}
    return findings(questions, task="compose, enumerable", steps=STEPS, seeds=RUNS, settings=about)
