"""The claim of h2o: few real logs and a simulator that is wrong, against CQL on the logs and against pooling both."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.core.control import VectorEnvironment
from etude.core.method import Method
from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs
from etude.experiments.cells import recorded, spread
from etude.experiments.swings import MEASURE, PLAYED, small, swings
from etude.learners.q import QFunctions
from etude.tasks.control.pendulum import Pendulum, PendulumArrays, pendulum

EPISODES, STEPS, BEGUN, NOISE = 10, 3_000, 250, (8.0,)
"""Real episodes, steps in the simulator, those before the first update, and what chance adds to the logs' torques."""
BESIDE = f"{MEASURE} beside pooling"
Array = NDArray[Any]


class Run(NamedTuple):
    """A method on the logs of a seed, and in the simulator where it acts."""

    arm: str
    method: Method
    seed: int


class ReversedArrays(PendulumArrays):
    """A pendulum whose motor turns the other way round."""

    def advance(self, states: Array, actions: Array) -> tuple[Array, Array, Array]:
        return super().advance(states, -actions)


class ReversedPendulum(Pendulum):
    """The simulator."""

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        return ReversedArrays(seeds, count, purpose)


def _played(run: Run) -> list[float]:
    """Updates, then mean returns of likeliest actions in the real pendulum, before and after training."""
    return recorded(
        f"h2o-{run.arm}-{run.seed}", [run.method.to_json(), EPISODES, STEPS, PLAYED, NOISE, ReversedArrays.__name__],
        lambda: _train(run),
    )  # fmt: skip


def _train(run: Run) -> list[float]:
    import torch

    from etude.core.population import Member
    from etude.evaluation.control import play
    from etude.loops.off_policy import BLOCK, OffPolicyLoop
    from etude.tasks.control.logged import LoggedTask

    torch.set_num_threads(1)
    method: Any = run.method
    steps = STEPS if method.experience.acts else STEPS - BEGUN
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "real.npz"
        np.savez(path, **swings(run.seed, NOISE, EPISODES))  # type: ignore[arg-type]  # of numpy's own stubs
        task = LoggedTask(data=str(path), environment=ReversedPendulum())
        loop = OffPolicyLoop(method, task, [Member(run.seed)], steps // BLOCK)
        found = [float(play(loop, pendulum, PLAYED, deterministic=True).mean())]
        for _ in range(loop.steps):
            loop.step()
        return [float(loop.updater.updates), *found, float(play(loop, pendulum, PLAYED, deterministic=True).mean())]


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Returns in the real pendulum of all, after as many updates."""
    h2o: Any = get_method("h2o")
    begun = {"experience.warmup": BEGUN, "experience.capacity": 10_000}
    fields = {k: v for k, v in h2o.critic.fields().items() if k in QFunctions().fields() and k != "penalties"}
    pooled = h2o.replace(
        id="pooled",
        critic=QFunctions(**fields),
        learners=h2o.learners[:1],
        order=(("critic", "policy", "temperature"),),
    )
    hidden = {"learners.dynamics-discriminators.network.hidden": (64, 64)}
    arms = [
        ("arm", small(h2o, **{**begun, **hidden, **(arm or {})})),
        ("cql", small(get_method("cql"), **(baseline or {}))),
        ("pooled", small(pooled, **{**begun, **(baseline or {})})),
    ]
    found = spread(_played, [Run(name, method, seed) for name, method in arms for seed in seeds])
    mine, alone, both = (found[k * len(seeds) : (k + 1) * len(seeds)] for k in range(3))
    after = [x[2] for x in mine]
    return pairs(
        seeds, {MEASURE: after, BESIDE: after}, {MEASURE: [x[2] for x in alone], BESIDE: [x[2] for x in both]},
        start={MEASURE: [x[1] for x in alone], BESIDE: [x[1] for x in both]},
        budgets={"updates": ([x[0] for x in mine], [x[0] for x in alone])},
    )  # fmt: skip
