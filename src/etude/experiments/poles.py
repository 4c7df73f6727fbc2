"""Logs of a pole on a cart that a controller by hand holds up, disturbed by chance; what methods learn from them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.core.edit import set_values
from etude.core.method import Method
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs
from etude.experiments.cells import recorded, spread
from etude.tasks.control.cartpole import CartPoleArrays, cartpole

SIZES = {
    "policy.network.hidden": (64, 64), "critic.network.hidden": (64, 64), "sampling.batch": 64, "optimizer.lr": 1e-3
}  # fmt: skip
UPDATES, EPISODES, PLAYED = 5_000, 200, 20
CHANCES = (0.5, 0.5, 0.5, 0.5, 0.001)
"""Of a choice by chance, an equal share of the episodes each."""
LEAN = 0.05
"""The angle, in radians, at which the controller holds the pole instead of upright, so that the cart drifts away."""
MEASURE = "return"


def poles(seed: int, chances: Sequence[float] = CHANCES, episodes: int = EPISODES) -> dict[str, NDArray[Any]]:
    """Columns of logs [N, ...]: whole episodes of a controller with each of these chances to do anything instead.

    It pushes towards where the pole falls from a lean, and does not look where the cart is: it leaves the track.
    """
    rng, environment = np.random.default_rng(seed), CartPoleArrays([seed], episodes, "logs")
    chance = np.resize(np.asarray(chances), episodes)
    seen, rows, going = environment.reset()[0], [], np.ones(episodes, bool)
    while going.any():
        falls = seen[:, 2] + 0.2 * seen[:, 3] > LEAN
        anything = rng.random(episodes) < chance
        actions = np.where(anything, rng.integers(0, 2, episodes), falls)
        step = environment.step(actions[None, :, None].astype(np.float32))
        done, led = step.terminated[0] | step.truncated[0], step.observations[0]
        if step.final is not None:
            led = led.copy()
            led[done] = step.final
        rows.append((seen, actions, step.rewards[0], step.terminated[0], step.truncated[0], led, going.copy()))
        going &= ~done
        seen = step.observations[0]
    names = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations", "going")
    found = {k: np.concatenate(np.stack(x, 1)) for k, x in zip(names, zip(*rows, strict=True), strict=True)}
    kept = found.pop("going")
    return {k: v[kept] for k, v in found.items()}


class Run(NamedTuple):
    """A method on the logs of a seed."""

    arm: str
    method: Method
    seed: int


def _played(run: Run) -> list[float]:
    """Mean returns of likeliest choices before and after training."""
    matters = [run.method.to_json(), list(CHANCES), LEAN, UPDATES, EPISODES, PLAYED]
    return recorded(f"{run.arm}-{run.seed}", matters, lambda: _train(run))


def _train(run: Run) -> list[float]:
    import torch

    from etude.core.population import Member
    from etude.evaluation.control import play
    from etude.loops.off_policy import BLOCK, OffPolicyLoop
    from etude.tasks.control.logged import LoggedTask

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "poles.npz"
        np.savez(path, **poles(run.seed))  # type: ignore[arg-type]  # of numpy's own stubs
        task = LoggedTask(data=str(path), environment=cartpole, allow=("constant-rewards",))
        loop = OffPolicyLoop(run.method, task, [Member(run.seed)], UPDATES // BLOCK)
        found = [float(play(loop, task, PLAYED, deterministic=True).mean())]
        for _ in range(loop.steps):
            loop.step()
        return [*found, float(play(loop, task, PLAYED, deterministic=True).mean())]


def small(method: Any, settings: Mapping[str, Any]) -> Method:
    """The method in the sizes of a small task."""
    slots = {"sampling", "optimizer"} | {k for k in ("policy", "critic") if "network" in _fields(method, k)}
    found: Method = set_values(method, {**{k: v for k, v in SIZES.items() if k.split(".")[0] in slots}, **settings})
    return found


def _fields(method: Any, slot: str) -> Mapping[str, Any]:
    part = getattr(method, slot)
    found: Mapping[str, Any] = {} if part is None else part.fields()
    return found


def compared(
    seeds: Sequence[int], method: Method, baseline: Method, settings: Mapping[str, Any],
    baseline_settings: Mapping[str, Any],
) -> list[Pair]:  # fmt: skip
    """Both methods on the same logs of each seed: returns of likeliest choices after as many updates."""
    arms = {"arm": small(method, settings), "baseline": small(baseline, baseline_settings)}
    found = spread(_played, [Run(f"{name}-{m.id}", m, seed) for name, m in arms.items() for seed in seeds])
    first, second = found[: len(seeds)], found[len(seeds) :]
    budget = [float(UPDATES)] * len(seeds)
    return pairs(
        seeds, {MEASURE: [after for _, after in first]}, {MEASURE: [after for _, after in second]},
        start={MEASURE: [before for before, _ in second]}, budgets={"updates": (budget, budget)},
    )  # fmt: skip
