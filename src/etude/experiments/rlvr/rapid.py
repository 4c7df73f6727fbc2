"""RAPID's claim: processor time to a fixed accuracy and final accuracy for the same minibatches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from etude.advantages.group import GroupAdvantage, GroupMean
from etude.core.kinds import TokenMethod
from etude.evaluation.pairs import Pair
from etude.experiments.arms import START, pairs, untrained, variant
from etude.experiments.cells import by_label, recorded, spread
from etude.objectives.policy_gradient import PolicyGradient
from etude.tasks.language.compose import Compose

TASK = Compose(levels=(3,))
MINIBATCH, GRADIENT_STEPS, RATE = 16, 32, 2e-4
TARGET = 0.6
WINDOW = 64
"""Problems over which the accuracy of fresh samples is averaged, whatever is sampled at once."""


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Every arm takes the same number of gradient steps on minibatches of the same size."""
    jobs = [Timed(k, m, seed) for seed in seeds for k, m in methods().items()]
    done = by_label([job.label for job in jobs], spread(timed, jobs))
    took, final, sampling = (
        {k: [f[what] for f in found] for k, found in done.items()}
        for what in ("to_target", "pass@1", "share_of_sampling")
    )
    ours, whole = "rapid 4", "rapid 16"
    ones = [1.0] * len(seeds)
    return pairs(
        seeds,
        {"pass@1": final[ours], "time to the accuracy": [a / b for a, b in zip(took[ours], took["grpo"])],
         "pass@1 of 16 without the weights": final["unweighted 16"], "pass@1 of 16": final[whole],
         "share of sampling": sampling[ours]},
        {"pass@1": final["grpo"], "time to the accuracy": ones, "pass@1 of 16 without the weights": final[whole],
         "pass@1 of 16": final[ours], "share of sampling": sampling["grpo"]},
        start={"pass@1": [untrained(variant("grpo"), TASK).pass_at(1)] * len(seeds)},
    )  # fmt: skip


def methods() -> dict[str, TokenMethod]:
    """GRPO samples for every gradient step, RAPID for H of them at once."""
    found = {"grpo": variant("grpo", _sizes(1))} | {f"rapid {h}": variant("rapid", _sizes(h)) for h in (4, 16)}
    advantages = GroupAdvantage(centre=GroupMean(), scale=None)
    found["unweighted 16"] = found["rapid 16"].replace(objective=PolicyGradient(), advantages=advantages)
    return found


def _sizes(h: int) -> dict[str, Any]:
    return {"problems": MINIBATCH * h, "minibatches": h, "optimizer.lr": RATE}


class Timed(NamedTuple):
    """A run to be timed."""

    label: str
    method: TokenMethod
    seed: int


def timed(job: Timed) -> dict[str, float]:
    """Processor seconds until fresh samples have the accuracy, and in all; share of sampling; pass@1 in the end.

    A run that never has it counts with all of its time (`reached` is 0). Checkpoints would be timed too, so a run that
    was stopped begins anew; those that are done stay.
    """
    matters = [job.method.to_json(), repr(TASK), job.seed, GRADIENT_STEPS, TARGET, WINDOW]
    return recorded(f"{job.label} {job.seed}", matters, lambda: _timed(job))


def _timed(job: Timed) -> dict[str, float]:
    import torch

    from etude.evaluation.language import evaluate_split
    from etude.loops.language import LanguageLoop
    from etude.policies.language import LanguagePolicy

    torch.set_num_threads(1)
    policy, steps = LanguagePolicy.load("tiny", device="cpu"), GRADIENT_STEPS // job.method.minibatches
    loop = LanguageLoop(job.method, TASK, policy, seed=job.seed, steps=steps)
    began, used, seen, sampling, whole = time.process_time(), [], [], 0.0, 0.0
    for _ in range(steps):
        used.append(time.process_time() - began)
        found = loop.step().metrics
        seen.append(found["accuracy"])
        sampling += found["seconds/experience"]
        whole += found["seconds/experience"] + found["seconds/update"]
    used.append(time.process_time() - began)
    looked = evaluate_split(policy, TASK, "test", problems=400, samples=2, seed=START)
    seen.append(float(looked.correct.mean()))
    width = max(1, WINDOW // job.method.problems)
    smooth = [float(np.mean(seen[max(0, i + 1 - width) : i + 1])) for i in range(len(seen))]
    reached = [t for t, accuracy in zip(used, smooth) if accuracy >= TARGET]
    return {"to_target": reached[0] if reached else used[-1], "reached": float(bool(reached)), "processor": used[-1],
            "share_of_sampling": sampling / whole, "pass@1": seen[-1]}  # fmt: skip
