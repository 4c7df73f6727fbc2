"""RAPID's claim: processor time to a fixed accuracy and final accuracy for the same minibatches."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from etude.advantages.group import GroupAdvantage, GroupMean
from etude.core.kinds import TokenMethod
from etude.experiments.arms import SEEDS, Question, findings, variant
from etude.experiments.cells import recorded, spread
from etude.objectives.policy_gradient import PolicyGradient

MINIBATCH, GRADIENT_STEPS, RUNS, RATE = 16, 48, 4, 2e-4
TARGET, TOLERANCE = 0.75, 0.03
WINDOW = 64
"""Problems over which the accuracy of fresh samples is averaged, whatever is sampled at once."""


def experiment() -> dict[str, Any]:
    """Every arm takes the same number of gradient steps on minibatches of the same size."""
    jobs = [Timed(k, m, SEEDS + s) for s in range(RUNS) for k, m in methods().items()]
    done = [(job.label, found) for job, found in zip(jobs, spread(timed, jobs))]

    def all_of(what: str) -> dict[str, list[float]]:
        return {k: [float(f[what]) for name, f in done if name == k] for k in methods()}

    whole, final = all_of("to_target"), all_of("pass@1")
    unit = float(np.mean(whole["grpo"]))
    reach = {k: [x / unit for x in v] for k, v in whole.items()}
    questions = [
        Question(f"processor time to {TARGET} accuracy in units of GRPO's",
                 {"rapid 4": reach["rapid 4"], "grpo": reach["grpo"]}, "lower", 0.1),
        Question(f"pass@1, GRPO's less {TOLERANCE}",
                 {"rapid 4": final["rapid 4"], "grpo": [x - TOLERANCE for x in final["grpo"]]}),
        Question("pass@1 with too many minibatches", {"rapid 16": final["rapid 16"], "rapid 4": final["rapid 4"]},
                 "lower"),
        Question("pass@1 without the weights", {"unweighted 16": final["unweighted 16"],
                                                "rapid 16": final["rapid 16"]}, "lower"),
    ]  # fmt: skip
    about = {"minibatch": MINIBATCH, "gradient_steps": GRADIENT_STEPS, "rate": RATE, "target": TARGET, "final": final}
    parts = {what: {k: float(np.mean(v)) for k, v in all_of(what).items()}
             for what in ("to_target", "reached", "processor", "share_of_sampling")}  # fmt: skip
    return findings(questions, task="compose", steps=GRADIENT_STEPS, seeds=RUNS, settings={**about, "means": parts})


def methods() -> dict[str, TokenMethod]:
    """GRPO and group policy gradient sample for every gradient step, RAPID for H of them at once."""
    found = {"grpo": variant("grpo", _sizes(1))}
    found |= {("policy gradient" if h == 1 else f"rapid {h}"): variant("rapid", _sizes(h)) for h in (1, 4, 16)}
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
    matters = [job.method.to_json(), job.seed, GRADIENT_STEPS, TARGET, WINDOW]
    return recorded(f"{job.label} {job.seed}", matters, lambda: _timed(job))


def _timed(job: Timed) -> dict[str, float]:
    import torch

    from etude.evaluation.language import evaluate_split
    from etude.loops.language import LanguageLoop
    from etude.policies.language import LanguagePolicy
    from etude.tasks import resolve_task

    torch.set_num_threads(1)
    task: Any = resolve_task("compose")
    policy, steps = LanguagePolicy.load("tiny", device="cpu"), GRADIENT_STEPS // job.method.minibatches
    loop = LanguageLoop(job.method, task, policy, seed=job.seed, steps=steps)
    began, used, seen, sampling, whole = time.process_time(), [], [], 0.0, 0.0
    for _ in range(steps):
        used.append(time.process_time() - began)
        found = loop.step().metrics
        seen.append(found["accuracy"])
        sampling += found["seconds/experience"]
        whole += found["seconds/experience"] + found["seconds/update"]
    used.append(time.process_time() - began)
    looked = evaluate_split(policy, task, "test", problems=100, samples=8, seed=SEEDS)
    seen.append(float(looked.correct.mean()))
    width = max(1, WINDOW // job.method.problems)
    smooth = [float(np.mean(seen[max(0, i + 1 - width) : i + 1])) for i in range(len(seen))]
    reached = [t for t, accuracy in zip(used, smooth) if accuracy >= TARGET]
    return {"to_target": reached[0] if reached else used[-1], "reached": float(bool(reached)), "processor": used[-1],
            "share_of_sampling": sampling / whole, "pass@1": seen[-1]}  # fmt: skip
