"""How often 95% intervals of off-policy estimates hold the truth, where it is known by playing.

Two worlds, a hundred data sets of each: CartPole (choices), whose policy and behaviour are softmaxes of a controller,
and the point maze of a U (numbers), where they are waypoints with blur. Log-probabilities are right, so that what an
interval misses is chance, or a Q that its network cannot say. The truth is the mean of many episodes of the policy.

    python benchmarks/interval_coverage.py [--world cart maze] [--sets 100] [--workers 1] [--out FOLDER] [--output FILE]

What was stopped goes on: every data set is a line of FOLDER/<world>.jsonl, by default in runs/interval-coverage.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from _machine import processor
from gymnasium import spaces
from scipy.stats import binomtest

from etude.core.control import ControlTask
from etude.core.streams import Stream
from etude.evaluation.behaviours import NoisyController
from etude.evaluation.off_policy.episodes import Episodes, Estimate
from etude.evaluation.off_policy.fqe import FQE
from etude.evaluation.off_policy.importance import (
    cumulative_weights,
    per_decision,
    weighted_per_decision,
)  # fmt: skip
from etude.evaluation.off_policy.q_rows import Acts
from etude.evaluation.recording import record
from etude.experience.logs.table import Logs, Spaces
from etude.experiments.on_logs import Columns, columns_of
from etude.runtime.jsonl import JsonLines
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pointmaze_umaze import PointMazeU

EPISODES, PLAYED, AT_A_TIME, DRAWS = 60, 60_000, 2_000, 4
"""Of a data set; by which the truth is known, and together; actions in a state, of policies in numbers."""


class Softmax:
    """Who pushes a cart to where the pole falls, the surer the faster it does; mixed with chance.

    p(right) = (1 - epsilon) sigmoid(20 (angle + 0.2 spin - 0.05)) + epsilon / 2
    """

    def __init__(self, epsilon: float) -> None:
        self.epsilon, self.label = epsilon, f"softmax epsilon={epsilon:g}"

    def begin(self, count: int) -> None:
        """Nothing to remember."""

    def ended(self, done: np.ndarray) -> None:
        """Nothing to forget."""

    def chances(self, seen: np.ndarray) -> np.ndarray:
        """[N, 2] of both choices."""
        right = 1 / (1 + np.exp(-20.0 * (seen[:, 2].astype(np.float64) + 0.2 * seen[:, 3] - 0.05)))
        right = (1 - self.epsilon) * right + self.epsilon / 2
        return np.stack([1 - right, right], -1)

    def act(self, seen: np.ndarray, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
        """As of `Behaviour`."""
        drawn = torch.rand(len(seen), generator=generator, dtype=torch.float64).numpy() < self.chances(seen)[:, 1]
        actions = drawn[:, None].astype(np.float32)
        return actions, self.logp(seen, actions)

    def logp(self, seen: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """[N] of choices [N, 1]."""
        found: np.ndarray = np.log(np.take_along_axis(self.chances(seen), actions.astype(np.int64), 1)[:, 0])
        return found


class World(NamedTuple):
    """A task, whose policy is judged by whose logs, and the discount of what is earned."""

    task: ControlTask
    policy: Any
    behaviour: Any
    gamma: float


def _cart() -> World:
    return World(cartpole, Softmax(0.2), Softmax(0.35), 0.95)


def _maze() -> World:
    task = PointMazeU(starts="drawn", limit=50)
    controlled = partial(NoisyController, task.controller(), task.make([0], 1, "spaces").action_space)
    return World(task, controlled(0.2, 0.5), controlled(0.35, 0.5), 0.95)


WORLDS: dict[str, Callable[[], World]] = {"cart": _cart, "maze": _maze}


@cache
def truths(name: str) -> np.ndarray:
    """[T] what the policy earns in the first 1, 2, ... T steps, by as many episodes of it."""
    world = WORLDS[name]()
    earned = np.zeros(0)
    for part in range(PLAYED // AT_A_TIME):
        for episode in record(world.policy, world.task, part, "truth", episodes=AT_A_TIME):
            earned = np.pad(earned, (0, max(0, episode.steps - len(earned))))
            earned[: episode.steps] += episode.rewards
    found: np.ndarray = (earned / PLAYED * world.gamma ** np.arange(len(earned))).cumsum()
    return found


def logs_of(columns: Columns, task: ControlTask) -> Logs:
    """A table that nobody has to read from a file."""
    made = task.make([0], 1, "spaces")
    actions = columns["actions"].reshape(len(columns["rewards"]), -1).astype(np.float32)
    return Logs(
        Path("made"), Spaces(made.observation_space, made.action_space, task.id), columns["observations"], actions,
        columns["rewards"], columns["terminals"], columns["timeouts"], columns["next_observations"],
    )  # fmt: skip


def acts_of(policy: Any, logs: Logs, seed: int) -> Acts:
    """What the policy does in the states of logs."""
    seen, led = logs.observations, logs.next_observations
    if isinstance(logs.spaces.action_space, spaces.Discrete):
        every = torch.eye(2).expand(len(seen), -1, -1)
        chances = (torch.as_tensor(policy.chances(x)).float() for x in (seen, led))
        done = torch.nn.functional.one_hot(torch.as_tensor(logs.actions[:, 0]).long()).float()
        return Acts(torch.as_tensor(seen), done, every, next(chances), torch.as_tensor(led), every, next(chances), True)
    generator, even = Stream(seed).split("acts").torch, torch.full((len(seen), DRAWS), 1 / DRAWS)
    now, then = (
        torch.stack([torch.as_tensor(policy.act(x, generator)[0]) for _ in range(DRAWS)], 1) for x in (seen, led)
    )
    return Acts(
        torch.as_tensor(seen), torch.as_tensor(logs.actions), now, even, torch.as_tensor(led), then, even
    )  # fmt: skip


def judged(name: str, seed: int) -> dict[str, Any]:
    """What the logs of a seed say, of as many steps as its longest episode has."""
    torch.set_num_threads(1)
    began, world = time.process_time(), WORLDS[name]()
    drawn = columns_of(record(world.behaviour, world.task, 100 + seed, "logs", episodes=EPISODES))
    logs, stream = logs_of(drawn, world.task), Stream(seed, ("judge",))
    episodes, fqe = Episodes.of(logs), FQE()
    q = fqe.fit(episodes, acts_of(world.policy, logs, seed), fqe.counts(episodes.count, stream), world.gamma, stream)
    logp = [who.logp(logs.observations, logs.actions) for who in (world.policy, world.behaviour)]
    weights = cumulative_weights(episodes, logp[0] - logp[1])
    found = {
        "fqe": q.estimate(),
        "doubly-robust": q.doubly_robust(weights),
        "importance-sampling": per_decision(episodes, weights, world.gamma),
        "weighted-importance-sampling": weighted_per_decision(episodes, weights, world.gamma),
    }
    return {
        "seed": seed, "steps": episodes.horizon, "effective": found["importance-sampling"].effective,
        "seconds": time.process_time() - began, **{k: _ends(v) for k, v in found.items()},
    }  # fmt: skip


def truth_at(name: str, steps: int) -> float:
    """What the policy earns in so many steps; nothing is earned beyond its longest episode."""
    known = truths(name)
    return float(known[min(steps, len(known)) - 1])


def _ends(found: Estimate) -> list[float]:
    return [found.value, found.low, found.high]


def coverage(lines: Sequence[dict[str, Any]], truth: np.ndarray) -> dict[str, Any]:
    """Of each estimator how often its interval held the truth [sets], how wide it is, and how far off its middle is."""
    found = {}
    for name in ("fqe", "doubly-robust", "importance-sampling", "weighted-importance-sampling"):
        value, low, high = np.array([line[name] for line in lines]).T
        held = int(((low < truth) & (truth < high)).sum())
        share = binomtest(held, len(lines)).proportion_ci(method="wilson")
        found[name] = {
            "held": held, "of": len(lines), "interval": [round(share.low, 3), round(share.high, 3)],
            "width": round(float((high - low).mean()), 3), "off": round(float((value - truth).mean()), 3),
        }  # fmt: skip
    effective = np.array([line["effective"] for line in lines])
    about = {"truth": round(float(truth.mean()), 3)}
    return {**about, "effective episodes": [round(float(x), 1) for x in np.quantile(effective, (0, 0.5, 1))], **found}


def run(name: str, seeds: Sequence[int], workers: int, folder: Path) -> list[dict[str, Any]]:
    """Lines of the data sets of these seeds; those that are there are not made again."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jsonl"
    there = {line["seed"]: line for line in JsonLines.read(path)} if path.is_file() else {}
    lines, left = JsonLines(path), [seed for seed in seeds if seed not in there]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for k, line in enumerate(pool.map(partial(judged, name), left), 1):
            lines.append(line)
            there[line["seed"]] = line
            print(f"{name} {k}/{len(left)}: {line['seconds']:.0f} s", flush=True)
    return [there[seed] for seed in seeds]


def main() -> None:
    chosen = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen.add_argument("--world", nargs="+", choices=WORLDS, default=list(WORLDS))
    chosen.add_argument("--sets", type=int, default=100)
    chosen.add_argument("--first", type=int, default=0, help="seed of the first set")
    chosen.add_argument("--workers", type=int, default=1)
    chosen.add_argument("--out", type=Path, default=Path("runs/interval-coverage"))
    chosen.add_argument("--output", type=Path)
    asked = chosen.parse_args()
    found = {}
    for name in asked.world:
        lines = run(name, range(asked.first, asked.first + asked.sets), asked.workers, asked.out)
        found[name] = coverage(lines, np.array([truth_at(name, line["steps"]) for line in lines]))
    about = {"processor": processor(), "episodes": EPISODES, "first seed": asked.first}
    text = json.dumps({**about, "worlds": found}, indent=1)
    print(text)
    if asked.output:
        asked.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
