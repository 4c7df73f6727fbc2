"""RLAnything's claim on sums: outcome alone, judge, judge and adapted tasks; what the judge says of running totals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from etude.advantages.group import solved_share
from etude.core.batches import TokenBatch
from etude.core.kinds import TokenMethod
from etude.core.slots import Filter
from etude.experiments.arms import SEEDS as FIRST
from etude.experiments.arms import Question, findings, variant
from etude.experiments.watched import runs
from etude.methods.rlvr.rlanything.adapted_tasks import AdaptedTasks
from etude.methods.rlvr.rlanything.step_judge import judged
from etude.tasks.language.sums import Sums

if TYPE_CHECKING:
    from etude.loops.language import LanguageLoop

STEPS, SEEDS = 40, 3
TASK = Sums(terms=(3, 4, 5, 6))
SPAN = STEPS // 8
"""Steps at the beginning and at the end that are compared."""


def optimal(prompt: str, completion: str) -> list[bool]:
    """Whether each step writes the right running total, given the total before it as it was written.

    >>> optimal("3+5+9+2=", "8,18,20,")
    [True, False, True, False]
    """
    first, *terms = map(int, prompt.rstrip("=").split("+"))
    found, before = [], str(first)
    for k, said in enumerate(completion.split(",")):
        right = k < len(terms) and before.isdigit() and said.isdigit() and int(said) == int(before) + terms[k]
        found.append(right)
        before = said
    return found


class Recorder(Filter):
    """Keeps every row, and in its state what it saw of each step.

    `inside` is the share of problems solved between 0.2 and 0.8 of the time; the rest is `agreement`.
    """

    def initial_state(self) -> dict[str, Any]:
        return {"history": []}

    def weigh(self, batch: TokenBatch) -> Tensor:
        shares = solved_share(batch)
        seen = {"inside": float(((shares >= 0.2) & (shares <= 0.8)).double().mean())}
        self.state["history"].append(seen | ({} if batch.verdicts is None else agreement(batch)))
        return torch.ones_like(batch.scores)


def agreement(batch: TokenBatch) -> dict[str, float]:
    """How many right and wrong steps a majority of verdicts sees as such, and how many there are of each."""
    assert batch.verdicts is not None
    total, ends = batch.verdicts.sum(-1), judged(batch.verdicts)
    seen: dict[bool, list[bool]] = {True: [], False: []}
    for row, episode in enumerate(batch.episodes):
        verdicts = total[row][ends[row]].tolist()
        for true, verdict in zip(optimal(str(episode.problem.prompt), episode.completion), verdicts):
            seen[true].append((verdict > 0) == true)
    names = {True: "right", False: "wrong"}
    return {names[k]: float(sum(v)) for k, v in seen.items()} | {f"{names[k]}_seen": len(v) for k, v in seen.items()}


def experiment() -> dict[str, Any]:
    """Four arms from the tiny model: the full system, without adapted tasks, without judge as well, and GRPO."""
    full = variant("rlanything")
    sizes = {"problems": 32}
    still = full.replace(curriculum=AdaptedTasks(adapt=False))
    arms = {
        "full": full,
        "judge": still,
        "policy": still.replace(rewards=(full.rewards[0].replace(weight=0.0),)),
        "grpo": variant("grpo"),
    }
    found = runs(
        {k: _watched(variant(m, sizes)) for k, m in arms.items()}, TASK,
        seeds=SEEDS, steps=STEPS, after=_history, problems=100, samples=8,
    )  # fmt: skip
    score = {k: [r.scores["pass@1"] for r in rows] for k, rows in found.items()}
    inside = {k: [r.scores["inside"] for r in rows] for k, rows in found.items()}
    agreed = {when: [r.scores[f"agreement {when}"] for r in found["full"]] for when in ("late", "early")}

    def pair(scores: dict[str, list[float]], first: str, second: str) -> dict[str, list[float]]:
        return {first: scores[first], second: scores[second]}

    return findings(
        [
            Question("Accuracy, the full system against the outcome alone", pair(score, "full", "grpo")),
            Question("Accuracy, adapted tasks", pair(score, "full", "judge")),
            Question("Accuracy, verdicts", pair(score, "judge", "policy")),
            Question("Balanced agreement of the judge with which steps are right", pair(agreed, "late", "early")),
            Question("Share of problems solved between 0.2 and 0.8 of the time", pair(inside, "full", "judge")),
        ],
        task=TASK.id, steps=STEPS, seeds=SEEDS, metric="pass@1", accuracy=score, inside=inside, first_seed=FIRST,
    )  # fmt: skip


def _watched(method: TokenMethod) -> TokenMethod:
    return method.replace(filters=(Recorder(), *method.filters))


def _history(loop: LanguageLoop) -> dict[str, float]:
    """What the recorder of a run saw: the share inside, and balanced agreement early and late."""
    history = loop.method.filters[0].state["history"]
    found = {"inside": float(np.mean([h["inside"] for h in history]))}
    if "right" in history[0]:
        found |= {"agreement early": balanced(history[:SPAN]), "agreement late": balanced(history[-SPAN:])}
    return found


def balanced(history: list[dict[str, float]]) -> float:
    """Mean of the shares of right steps and of wrong steps that the judge saw through; 0.5 is chance."""
    shares = [sum(h[k] for h in history) / max(1, sum(h[f"{k}_seen"] for h in history)) for k in ("right", "wrong")]
    return float(np.mean(shares))
