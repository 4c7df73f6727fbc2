"""Logs of a pendulum that a controller by hand swings up, well or badly; what methods learn from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.core.edit import set_values
from etude.core.method import Method
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs
from etude.experiments.cells import recorded, spread
from etude.experiments.on_logs import before_and_after, fingerprint
from etude.tasks.control.pendulum import MAX_TORQUE, PendulumArrays, pendulum

SIZES = {
    "policy.network.hidden": (64, 64), "critic.network.hidden": (64, 64), "value.network.hidden": (64, 64),
    "sampling.batch": 64, "sampling.horizon.gamma": 0.98, "optimizer.lr": 1e-3,
}  # fmt: skip
"""For a small task, as the pendulum's bed has them."""
UPDATES, EPISODES, PLAYED = 5_000, 50, 20
"""Updates of each run, logged episodes of 200 steps for each seed, episodes that are played at its end."""
MEASURE = "return"
NARROW, MIXED = (0.3,), (0.3, 2.0, 8.0)
"""Deviations of what chance adds to the controller's torque, an equal share of the episodes each."""


def controlled(seen: NDArray[np.float32]) -> NDArray[np.float64]:
    """Torques [..., 1] for observations [..., 3]: pump energy until it is nearly up, then hold it there.

    Energy is that of a rod, spin^2 / 2 + 15 (cos angle - 1), 0 when it stands.
    """
    x, y, spin = (seen[..., k].astype(np.float64) for k in range(3))
    low = spin**2 / 2 + 15 * (x - 1) < 0
    pump = np.where(low, 1.0, -1.0) * np.where(spin >= 0, MAX_TORQUE, -MAX_TORQUE)
    hold = -10 * np.arctan2(y, x) - 2 * spin
    return np.where(x > 0.9, hold, pump)[..., None].clip(-MAX_TORQUE, MAX_TORQUE)


def swings(seed: int, noises: Sequence[float], episodes: int = EPISODES) -> dict[str, NDArray[Any]]:
    """Columns of logs [N, ...]: whole episodes of the controller with each of these deviations, one after another."""
    rng = np.random.default_rng(seed)
    environment = PendulumArrays([seed], episodes, "logs")
    scale = np.resize(np.asarray(noises), episodes)[:, None]
    seen, rows = environment.reset()[0], []
    for t in range(environment.limit):
        noise = scale * rng.standard_normal((episodes, 1))
        actions = (controlled(seen) + noise).clip(-MAX_TORQUE, MAX_TORQUE).astype(np.float32)
        step = environment.step(actions[None])
        led = step.observations[0] if step.final is None else step.final
        rows.append((seen, actions, step.rewards[0], led, np.full(episodes, t + 1 == environment.limit)))
        seen = step.observations[0]
    names = ("observations", "actions", "rewards", "next_observations", "timeouts")
    return {k: np.concatenate(np.stack(column, 1)) for k, column in zip(names, zip(*rows, strict=True), strict=True)}


class Run(NamedTuple):
    """A method on the logs of a seed."""

    arm: str
    method: Method
    noises: Sequence[float]
    seed: int


def small(method: Any, **changes: Any) -> Method:
    """The method in the sizes of a small task."""
    parts = {slot for slot in ("policy", "critic", "value") if getattr(method, slot) is not None}
    sizes = {k: v for k, v in SIZES.items() if k.split(".")[0] in {*parts, "sampling", "optimizer"}}
    found: Method = set_values(method, {**sizes, **changes})
    return found


def _played(run: Run) -> list[float]:
    """Mean returns of likeliest actions before and after training."""
    matters = [run.method.to_json(), list(run.noises), UPDATES, EPISODES, PLAYED]
    return recorded(
        f"{run.arm}-{run.seed}", matters,
        lambda: before_and_after(run.method, swings(run.seed, run.noises), pendulum, run.seed, UPDATES, PLAYED),
    )  # fmt: skip


def compared(
    seeds: Sequence[int], method: Method, baseline: Method, noises: Sequence[float], settings: Mapping[str, Any],
    baseline_settings: Mapping[str, Any],
) -> list[Pair]:  # fmt: skip
    """Both methods on the same logs of each seed: returns of likeliest actions after as many updates."""
    arms = {"arm": small(method, **settings), "baseline": small(baseline, **baseline_settings)}
    runs = [Run(f"{name}-{m.id}", m, noises, seed) for name, m in arms.items() for seed in seeds]
    found = spread(_played, runs)
    first, second = found[: len(seeds)], found[len(seeds) :]
    budget = [float(UPDATES)] * len(seeds)
    return pairs(
        seeds, {MEASURE: [after for _, after in first]}, {MEASURE: [after for _, after in second]},
        start={MEASURE: [before for before, _ in second]}, budgets={"updates": (budget, budget)},
        data=[fingerprint(swings(seed, noises)) for seed in seeds],
    )  # fmt: skip


def against_both(first: Sequence[Pair], second: Sequence[Pair], beside: str) -> list[Pair]:
    """Pairs of `compared` of one arm with two baselines, the second one's returns under a name of their own."""
    seeds, mine = [pair.seed for pair in first], [pair.arm[MEASURE] for pair in first]
    both, budget = {MEASURE: first, beside: second}, [float(UPDATES)] * len(first)
    return pairs(
        seeds, {MEASURE: mine, beside: mine},
        {name: [p.baseline[MEASURE] for p in own] for name, own in both.items()},
        start={name: [p.start[MEASURE] for p in own] for name, own in both.items()},
        budgets={"updates": (budget, budget)}, data=[pair.data for pair in first],
    )  # fmt: skip
