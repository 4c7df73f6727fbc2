"""The claim of AsyncFlow: rows that are a step older teach no less, and a schedule that rests on that is faster.

What is learned is a run of each arm. How fast it would be is simulated: the library's own scheduler, with workers that
take as long as laws say, drawn anew for every seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from etude.core.draws import Draw
from etude.evaluation.pairs import Pair
from etude.experiments.arms import Training, pairs, run, untrained, variant
from etude.runtime.clock import VirtualClock, drive
from etude.runtime.crew import LEARN, SAMPLE, Worker
from etude.runtime.flow import Flow, RowState
from etude.runtime.orders import Learn, Sample, Score
from etude.runtime.scheduler import Scheduler
from etude.runtime.simulation import Laws, Simulated
from etude.tasks.language.compose import Compose

TASK, STEPS = Compose(levels=(3,)), 30
CHANGES = {"problems": 16, "minibatches": 4}
GROUPS, SIZE, SLOTS, SCORERS, SIMULATED = 16, 8, 16, 8, 20
TOKEN, VERIFIED, UPDATE, LOAD = 0.010, 0.020, 0.0006, 0.05
"""Seconds of a token of an answer, of a verification, of a token in the update, and of bringing weights to the sampler:
so sampling and the update take about as long as each other, as in `benchmarks/async.py`."""


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Accuracy after as many steps; rows that are learned from in a second, over those of the plain loop."""
    arms = {
        "ahead": variant("asyncflow", {**CHANGES, **(arm or {})}),
        "fresh": variant("grpo", {**CHANGES, **(baseline or {})}),
    }
    found = run(Training(name, method, TASK, seed, STEPS) for seed in seeds for name, method in arms.items())
    before = untrained(arms["fresh"], TASK).pass_at(1)
    ends = {name: [r.pass_at(1) for r in runs] for name, runs in found.items()}
    separated, streamed, ahead = (
        [rows_per_second(seed, **flow) for seed in seeds]
        for flow in ({"streaming": False}, {"streaming": True}, {"bound": 1})
    )
    measured = {
        "accuracy": ends["ahead"],
        "speed": [a / s for a, s in zip(ahead, separated)],
        "speed, rows scored as they end": [a / s for a, s in zip(streamed, separated)],
        "lag": [fmean(line["lag"] for line in r.metrics[STEPS // 2 :]) for r in found["ahead"]],
    }
    budgets = {"completions": ([r.completions for r in found["ahead"]], [r.completions for r in found["fresh"]])}
    held = {"accuracy": ends["fresh"], "lag": [0.0] * len(seeds)}
    return pairs(seeds, measured, held, start={"accuracy": [before] * len(seeds)}, budgets=budgets)


def rows_per_second(seed: int, **changes: Any) -> float:
    """Rows that are learned from in a simulated second, where one sampler, a verifier and a learner have workers."""
    flow, clock = Flow(steps=SIMULATED, groups=GROUPS, size=SIZE, **changes), VirtualClock()
    workers = [Worker("sampler", SAMPLE, SLOTS), Worker("verifier", "reward", SCORERS), Worker("learner", LEARN)]
    scheduler = Scheduler(
        flow, workers, scores={"reward": ("answer",)}, judged=("reward",), learned=("answer", "reward"),
        judge=lambda taken: [1.0] * len(taken.rows), tokens=lambda group: 1.0,
    )  # fmt: skip
    begun = clock.now()
    drive(scheduler, clock, Simulated(clock, laws(seed)).do)
    return scheduler.ledger.counts[RowState.ACCEPTED] / (clock.now() - begun)


def laws(seed: int) -> Laws:
    """How long everything takes, the same answers for all schedules of a seed."""

    def values(order: Sample | Score | Learn) -> dict[str, Any]:
        if isinstance(order, Sample):
            return {"answer": length(seed, order.row)}
        return {"reward": 1.0} if isinstance(order, Score) else {"fingerprint": str(order.step)}

    return Laws(
        sample=lambda order: TOKEN * length(seed, order.row), score=lambda order: VERIFIED,
        learn=lambda order: UPDATE * sum(length(seed, row) for row in order.rows), values=values, load=LOAD,
    )  # fmt: skip


def length(seed: int, row: int) -> int:
    """Tokens of an answer: log-normal with median 48 and sigma 0.9, cut to 8 to 256."""
    draw = Draw.at(seed, "length", row)
    first, second = ((draw.child(name).key % (1 << 53)) / (1 << 53) for name in ("radius", "angle"))
    normal = math.sqrt(-2 * math.log(1 - first)) * math.cos(2 * math.pi * second)
    return round(min(256.0, max(8.0, 48 * math.exp(0.9 * normal))))
