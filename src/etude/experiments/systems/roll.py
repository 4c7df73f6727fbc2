"""The claim of ROLL: the first groups that hold teach no less, and a full batch of them is there sooner.

What is learned is a run of each arm. How soon a batch is full is simulated: the library's own scheduler, with workers
that take as long as laws say, drawn anew for every seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from etude.core.draws import Draw
from etude.evaluation.pairs import Pair
from etude.experiments.arms import Trained, Training, pairs, run, untrained, variant
from etude.experiments.systems.asyncflow import LOAD, TOKEN, UPDATE, length
from etude.filters.informative import InformativeGroups
from etude.runtime.clock import VirtualClock, drive
from etude.runtime.crew import LEARN, SAMPLE, Worker
from etude.runtime.flow import Flow
from etude.runtime.orders import Learn, Sample, Score
from etude.runtime.scheduler import Scheduler
from etude.runtime.simulation import Laws, Simulated
from etude.runtime.store import Taken
from etude.tasks.language.compose import Compose

TASK, STEPS = Compose(levels=(2, 3, 4)), 30
CHANGES = {"problems": 16, "minibatches": 4}
GROUPS, SIZE, EXTRA, SIMULATED, ROUNDS = 16, 8, 4, 10, 20
SAMPLERS, SLOTS, SCORERS = 4, 16, 8
VERIFIED, DROPPED = (0.005, 0.030), 0.4
"""Seconds of a verification, from and to; the share of the groups that the filter drops."""


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Accuracy after as many steps; how often a full batch is there while the plain loop makes one."""
    arms = {
        "first": variant("roll", {**CHANGES, "filters.first-groups.extra": EXTRA, **(arm or {})}),
        "all": variant("grpo", {**CHANGES, **(baseline or {})}, filters=(InformativeGroups(),)),
    }
    found = run(Training(name, method, TASK, seed, STEPS) for seed in seeds for name, method in arms.items())
    first, whole, before = found["first"], found["all"], untrained(arms["all"], TASK)
    plain, streamed, raced = (
        [seconds(seed, **flow) for seed in seeds] for flow in ({"streaming": False}, {}, {"extra": EXTRA})
    )
    steps = {bound: [seconds(s, update=UPDATE, bound=bound, extra=EXTRA) for s in seeds] for bound in (0, 1)}
    measured = {
        "accuracy": [r.pass_at(1) for r in first],
        "accuracy, chains of four": [r.pass_at(1, "level4") for r in first],
        "aborted": [aborted(r) for r in first],
        "speed": [p / r for p, r in zip(plain, raced)],
        "speed, none begun in advance": [p / s for p, s in zip(plain, streamed)],
        "speed, a step ahead": [here / ahead for here, ahead in zip(steps[0], steps[1])],
    }
    held = {
        "accuracy": [r.pass_at(1) for r in whole],
        "accuracy, chains of four": [r.pass_at(1, "level4") for r in whole],
        "aborted": [0.0] * len(seeds),
    }
    start = {"accuracy": [before.pass_at(1)] * len(seeds)}
    budgets = {"steps": ([float(len(r.metrics)) for r in first], [float(len(r.metrics)) for r in whole])}
    return pairs(seeds, measured, held, start=start, budgets=budgets)


def aborted(trained: Trained) -> float:
    """Share of the rows sampled that came too late."""
    return fmean(line["aborted"] / (line["aborted"] + line["rows"]) for line in trained.metrics)


def seconds(seed: int, update: float = 0.0, **changes: Any) -> float:
    """Simulated seconds of a step, whose update takes so long for a token: without one, of a full batch."""
    flow, clock = Flow(steps=SIMULATED, groups=GROUPS, size=SIZE, rounds=ROUNDS, **changes), VirtualClock()
    workers = [Worker(f"sampler {i}", SAMPLE, SLOTS) for i in range(SAMPLERS)]
    workers += [Worker(f"verifier {i}", "reward", 1) for i in range(SCORERS)] + [Worker("learner", LEARN)]
    scheduler = Scheduler(
        flow, workers, scores={"reward": ("answer",)}, judged=("reward",), learned=("answer", "reward"),
        judge=lambda taken: judged(seed, taken), tokens=lambda group: 1.0,
    )  # fmt: skip
    begun = clock.now()
    drive(scheduler, clock, Simulated(clock, laws(seed, update)).do)
    return (clock.now() - begun) / SIMULATED


def judged(seed: int, taken: Taken) -> list[float]:
    """What the filter says of a group: the same in all schedules of a seed."""
    return [float(drawn(seed, "holds", taken.groups[0]) >= DROPPED)] * len(taken.rows)


def laws(seed: int, update: float) -> Laws:
    """How long everything takes, the same answers for all schedules of a seed."""

    def values(order: Sample | Score | Learn) -> dict[str, Any]:
        if isinstance(order, Sample):
            return {"answer": length(seed, order.row)}
        return {"reward": 1.0} if isinstance(order, Score) else {"fingerprint": str(order.step)}

    low, high = VERIFIED
    return Laws(
        sample=lambda order: TOKEN * length(seed, order.row),
        score=lambda order: low + (high - low) * drawn(seed, "verified", order.row),
        learn=lambda order: update * sum(length(seed, row) for row in order.rows), values=values, load=LOAD,
    )  # fmt: skip


def drawn(seed: int, *address: str | int) -> float:
    """A number in [0, 1), always the same for an address."""
    return (Draw.at(seed, *address).key % (1 << 53)) / (1 << 53)
