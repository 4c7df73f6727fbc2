"""What rows, scores and updates that run beside each other would save, before anything is built or rented.

The library's own scheduler, with workers that take as long as laws say: answers of log-normal length (8 to 256 tokens),
verifiers of 5 to 30 ms, a filter that drops a quarter of the groups, an update that takes its time. The arms differ in
what may run ahead; `faster` is against the plain loop on the same workers.

    python benchmarks/async_plan.py                 the arms, the planner, and what the scheduler costs per row
    python benchmarks/async_plan.py --wall 0.1      also with workers that really sleep, a tenth as long
    python benchmarks/async_plan.py --png out.png   who did what when, in three of the arms
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from etude.core.draws import Draw
from etude.evaluation.plots import Stretch, schedules
from etude.runtime.clock import Clock, VirtualClock, WallClock, drive
from etude.runtime.crew import LEARN, SAMPLE, Worker
from etude.runtime.flow import Flow, RowState
from etude.runtime.orders import Learn, Load, Sample, Score
from etude.runtime.planning import allocate
from etude.runtime.scheduler import Scheduler
from etude.runtime.simulation import Laws, Simulated, Span
from etude.runtime.store import Taken, balanced

GROUPS, SIZE, STEPS = 16, 8, 20
SAMPLERS, SLOTS, SCORERS, RANKS = 4, 16, 8, 1
TOKEN, UPDATE, LOAD = 0.010, 0.00015, 0.05
"""Seconds of a token of an answer, of a token in the update, and of bringing weights to a sampler."""
DROPPED = 0.25
ARMS = {
    "plain loop": {"streaming": False},
    "rows scored and replaced at once": {},
    "4 groups more than needed": {"extra": 4},
    "bound 1": {"bound": 1},
    "bound 1 and 4 groups more": {"extra": 4, "bound": 1},
    "bound 2": {"bound": 2},
}


def chance(*address: str | int) -> float:
    """A number in [0, 1) of an address."""
    return (Draw.at(0, *address).key % (1 << 53)) / (1 << 53)


def tokens(row: int, tail: bool) -> int:
    """Length of an answer: log-normal with median 48 and sigma 0.9, cut to 8 to 256; without a tail its mean."""
    if not tail:
        return 67
    normal = math.sqrt(-2 * math.log(1 - chance("length", row))) * math.cos(2 * math.pi * chance("angle", row))
    return round(min(256.0, max(8.0, 48 * math.exp(0.9 * normal))))


def laws(tail: bool, scale: float, ranks: int = RANKS) -> Laws:
    """The times of the module's docstring; an update takes as long as the rank that has the most tokens."""

    def update(order: Learn) -> float:
        lengths = [tokens(row, tail) for row in order.rows]
        return UPDATE * max(sum(lengths[i] for i in share) for share in balanced(lengths, ranks))

    def values(order: Sample | Score | Learn) -> dict[str, Any]:
        if isinstance(order, Sample):
            return {"answer": tokens(order.row, tail)}
        return {"reward": chance("reward", order.row)} if isinstance(order, Score) else {"fingerprint": str(order.step)}

    return Laws(
        sample=lambda order: scale * TOKEN * tokens(order.row, tail),
        score=lambda order: scale * (0.005 + 0.025 * chance("verifier", order.row)),
        learn=lambda order: scale * update(order), values=values, load=scale * LOAD,
    )  # fmt: skip


def judge(taken: Taken) -> Sequence[float]:
    """A quarter of the groups teach nothing."""
    return [float(chance("group", taken.groups[0]) >= DROPPED)] * len(taken.rows)


def accept(taken: Taken) -> Sequence[float]:
    """Nothing is dropped."""
    return [1.0] * len(taken.rows)


def simulate(
    clock: Clock, flow: Flow, law: Laws, samplers: int = SAMPLERS, scorers: int = SCORERS, slots: int = SLOTS,
    judge: Callable[[Taken], Sequence[float]] = judge,
) -> tuple[Scheduler, list[Span], float]:  # fmt: skip
    """A run; what everybody did, and how long it took."""
    workers = [
        *(Worker(f"sampler {i}", SAMPLE, slots) for i in range(samplers)), Worker("verifiers", "reward", scorers),
        Worker("learner", LEARN),
    ]  # fmt: skip
    scheduler = Scheduler(
        flow, workers, scores={"reward": ("answer",)}, judged=("reward",), learned=("answer", "reward"), judge=judge,
        tokens=lambda group: 1.0,
    )  # fmt: skip
    simulated, begun = Simulated(clock, law), clock.now()
    drive(scheduler, clock, simulated.do)
    return scheduler, simulated.spans, clock.now() - begun


def arm(changes: dict[str, Any], tail: bool, drops: bool, steps: int = STEPS) -> dict[str, float]:
    """Seconds per step of one arm, who had nothing to do, and how old rows were."""
    flow = Flow(steps=steps, groups=GROUPS, size=SIZE, rounds=20, **changes)
    chosen = judge if drops else accept
    scheduler, spans, seconds = simulate(VirtualClock(), flow, laws(tail, 1.0), judge=chosen)
    busy = {kind: sum(s.end - s.begin for s in spans if isinstance(s.order, kind)) for kind in (Sample, Learn)}
    counts, rows = scheduler.ledger.counts, scheduler.opened * SIZE
    return {
        "seconds_per_step": round(seconds / steps, 3),
        "rows_per_second": round(counts[RowState.ACCEPTED] / seconds, 1),
        "update": round(busy[Learn] / steps, 3),
        "samplers_idle": round(1 - busy[Sample] / seconds / SAMPLERS / SLOTS, 3),
        "learner_idle": round(1 - busy[Learn] / seconds, 3),
        "mean_lag": round(sum(lag * n for lag, n in scheduler.lags.items()) / sum(scheduler.lags.values()), 2),
        "stale": round(scheduler.ledger.reasons["stale"] / rows, 4),
        "aborted": round(counts[RowState.ABORTED] / rows, 4),
    }


def arms(tail: bool, drops: bool = True) -> dict[str, Any]:
    """All arms, with the limit of overlapping the two halves of the plain loop and nothing else."""
    found: dict[str, Any] = {name: arm(changes, tail, drops) for name, changes in ARMS.items()}
    plain = found["plain loop"]["seconds_per_step"]
    for one in found.values():
        one["faster"] = round(plain / one["seconds_per_step"], 2)
    update = found["plain loop"]["update"]
    return {"arms": found, "limit_of_overlap": round(plain / max(plain - update, update), 2)}


def planned(workers: int = 16, steps: int = 10) -> dict[str, Any]:
    """The planner's choice of samplers and learner ranks from profiled times, and what every choice comes to.

    A stage is profiled with the others taking no time and far enough ahead that it never waits for them.
    """
    free = Flow(steps=steps, groups=GROUPS, size=SIZE, rounds=20, bound=2, extra=4)
    most, law = workers - 1, laws(True, 1.0)
    instant = replace(law, learn=lambda order: 0.0)
    sampled = [simulate(VirtualClock(), free, instant, w, slots=8)[2] / steps for w in range(1, most + 1)]
    _, spans, _ = simulate(VirtualClock(), free, law, most, slots=8)
    batches = [s.order for s in spans if isinstance(s.order, Learn)]
    learned = [sum(map(laws(True, 1.0, w).learn, batches)) / steps for w in range(1, most + 1)]
    chosen = allocate({"sample": sampled, "learn": learned}, workers)
    every = {
        w: simulate(VirtualClock(), free, laws(True, 1.0, workers - w), w, slots=8)[2] / steps
        for w in range(1, workers)
    }
    best = min(every.values())
    return {
        "workers": workers, "chosen": chosen.workers, "predicted_seconds": round(chosen.seconds, 3),
        "seconds_by_samplers": {w: round(s, 3) for w, s in every.items()},
        "chosen_over_best": round(every[chosen.workers["sample"]] / best, 3),
    }  # fmt: skip


def overhead() -> dict[str, float]:
    """Microseconds of processor time that the scheduler, the store and the clock take per row, least of three runs."""
    found = {}
    for samplers in (1, 8, 64):
        flow = Flow(steps=4, groups=samplers * 4, size=SIZE, rounds=20, bound=1, extra=samplers)
        taken = []
        for _ in range(3):
            begun = time.process_time()
            scheduler, _, _ = simulate(VirtualClock(), flow, laws(False, 1.0), samplers)
            taken.append((time.process_time() - begun) / scheduler.opened / SIZE)
        found[f"{samplers} samplers of {SLOTS}"] = round(1e6 * min(taken), 1)
    return found


def asleep(scale: float, steps: int = 8) -> dict[str, Any]:
    """The same scheduler on the real clock, with workers that sleep: seconds, and what the simulation says."""
    found = {}
    for name in ("plain loop", "bound 1"):
        flow = Flow(steps=steps, groups=GROUPS, size=SIZE, rounds=20, **ARMS[name])
        seconds = [simulate(clock, flow, laws(True, scale))[2] for clock in (WallClock(), VirtualClock())]
        found[name] = {"slept": round(seconds[0], 3), "simulated": round(seconds[1], 3)}
    ratio = {k: found["plain loop"][k] / found["bound 1"][k] for k in ("slept", "simulated")}
    return {**found, "faster": {k: round(v, 3) for k, v in ratio.items()}}


def picture(path: Path, steps: int = 5) -> Path:
    """Three arms below each other, each step's rows, scores and update in one colour."""
    panels = {}
    for name in ("plain loop", "4 groups more than needed", "bound 1"):
        flow = Flow(steps=steps, groups=GROUPS // 2, size=SIZE // 2, rounds=20, **ARMS[name])
        _, spans, seconds = simulate(VirtualClock(), flow, laws(True, 1.0), 2, 4, slots=8)
        panels[f"{name}: {seconds / steps:.2f} s a step"] = stretches(spans)
    return schedules(panels, path, legend=[f"step {k + 1}" for k in range(steps)])


def stretches(spans: Sequence[Span]) -> list[Stretch]:
    """What workers did, each at the first of its slots that is free; a row has the step that it was begun for."""
    free: dict[tuple[str, int], float] = {}
    steps = {s.order.row: s.order.step for s in spans if isinstance(s.order, Sample)}
    found = []
    for span in sorted(spans, key=lambda s: s.begin):
        order = span.order
        if isinstance(order, Load):
            continue
        lane = next(k for k in range(1 << 16) if free.get((span.worker, k), 0.0) <= span.begin + 1e-9)
        free[span.worker, lane] = span.end
        step = order.step if isinstance(order, (Sample, Learn)) else steps[order.row]
        found.append(Stretch(span.worker, lane, span.begin, span.end, step, span.left))
    return found


def main() -> None:
    """Simulate, print one JSON, and draw where it was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wall", type=float, default=0.0, help="also sleep, so many times as long as the laws say")
    parser.add_argument("--png", type=Path, default=None, help="draw who did what when")
    parser.add_argument("--output", type=Path, default=None, help="write the JSON here too")
    chosen = parser.parse_args()
    found: dict[str, Any] = {
        "long tail": arms(True), "no tail": arms(False), "no tail, nothing dropped": arms(False, False),
        "planner": planned(), "scheduler_us_per_row": overhead(),
    }  # fmt: skip
    if chosen.wall:
        found["asleep"] = asleep(chosen.wall)
    if chosen.png:
        print(picture(chosen.png))
    text = json.dumps(found, indent=1)
    if chosen.output:
        chosen.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
