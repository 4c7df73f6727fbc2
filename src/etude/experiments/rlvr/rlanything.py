"""RLAnything's claim on compose: outcome alone, judge, judge and adapted tasks; what the judge says of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from etude.advantages.group import solved_share
from etude.core.batches import TokenBatch
from etude.core.episodes import Problem
from etude.core.kinds import TokenMethod
from etude.core.slots import Filter
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs, untrained, variant
from etude.experiments.watched import runs, scores
from etude.methods.rlvr.rlanything.adapted_tasks import AdaptedTasks
from etude.methods.rlvr.rlanything.step_judge import judged
from etude.rewards.steps import AtSeparator
from etude.tasks.language.compose import ALPHABET, FUNCTIONS, LENGTHS, Compose

if TYPE_CHECKING:
    from etude.loops.language import LanguageLoop

TASK, STEPS = Compose(levels=(2, 3, 4)), 15
CHANGES = {"problems": 32, "minibatches": 4, "optimizer.lr": 1e-4}
SPAN = 5
"""Steps at the beginning and at the end that are compared."""


def optimal(problem: Problem, completion: str) -> list[bool]:
    """Whether each step applies the right function rightly to the string before it as it was written.

    >>> optimal(Problem("1", "", info={"functions": ("f1", "f3"), "input": "cab"}), "f1:acb>f3:abc>f3:abc")
    [False, True, False]
    """
    functions, before = problem.info["functions"], problem.info["input"]
    found = []
    for k, step in enumerate(completion.split(">")):
        name, _, said = step.strip().partition(":")
        known = k < len(functions) and name == functions[k] and len(before) in LENGTHS and set(before) <= set(ALPHABET)
        found.append(known and said == FUNCTIONS[name](before))
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
        for true, verdict in zip(optimal(episode.problem, episode.completion), verdicts):
            seen[true].append((verdict > 0) == true)
    names = {True: "right", False: "wrong"}
    return {names[k]: float(sum(v)) for k, v in seen.items()} | {f"{names[k]}_seen": len(v) for k, v in seen.items()}


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """The full system, without adapted tasks, without judge as well, and GRPO."""
    full = variant("rlanything", CHANGES)
    judge = full.rewards[0].replace(splitter=AtSeparator(separator=">"))
    full = full.replace(rewards=(judge,))
    still = full.replace(curriculum=AdaptedTasks(adapt=False))
    arms = {
        "full": full,
        "judge": still,
        "policy": still.replace(rewards=(judge.replace(weight=0.0),)),
        "grpo": variant("grpo", CHANGES),
    }
    found = runs({k: _watched(m) for k, m in arms.items()}, TASK, seeds=seeds, steps=STEPS, after=_history)
    score, inside = ({k: scores(v, what) for k, v in found.items()} for what in ("pass@1", "inside"))
    late, early = (scores(found["full"], f"agreement {when}") for when in ("late", "early"))
    return pairs(
        seeds,
        {"pass@1": score["full"], "pass@1 of adapted tasks": score["full"], "pass@1 of verdicts": score["judge"],
         "agreement": late, "share between 0.2 and 0.8": inside["full"]},
        {"pass@1": score["grpo"], "pass@1 of adapted tasks": score["judge"], "pass@1 of verdicts": score["policy"],
         "agreement": early, "share between 0.2 and 0.8": inside["judge"]},
        start={"pass@1": [untrained(variant("grpo"), TASK).pass_at(1)] * len(seeds)},
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
