"""Runs over enumerable policies: what fits, the loop, and what is exactly true before and after."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.method import Method
from etude.core.task import Task
from etude.runs.training import Options

if TYPE_CHECKING:
    from etude.evaluation.intervals import Interval
    from etude.loops.enumerable import EnumerableLoop

SEEDS = 64
"""Members where nothing else is said: they are nearly free."""
STEPS = 150
READS = frozenset({"seeds"})


def measured(task: Task) -> tuple[list[str], list[str]]:
    """Metrics and splits of an evaluation."""
    from etude.loops.enumerable import KS

    return [*(f"pass@{k}" for k in KS), "reward", "entropy"], ["exact"]


def curve(metric: str) -> tuple[str, str, str]:
    """The metric itself, which is exact at every step."""
    return metric, f"{metric} (exact)", "training steps"


def prepare(method: Method, task: Task) -> None:
    """Nothing can fail here that has not been checked."""


def steps(method: Method, task: Task, options: Options) -> int:
    """Training steps."""
    return options.steps or STEPS


def training_steps(method: Method, steps: int) -> int:
    """The same number."""
    return steps


def build(method: Method, task: Any, options: Options) -> EnumerableLoop:
    """Policies and loop."""
    import torch

    from etude.loops.enumerable import EnumerableLoop

    torch.set_num_threads(options.threads or 1)
    assert options.steps is not None
    seeds = range(options.seed, options.seed + (options.seeds or SEEDS))
    return EnumerableLoop(method, task, seeds=seeds, steps=options.steps)


def sentence(loop: EnumerableLoop, method: Method, task: Any) -> str:
    """How much there is to enumerate."""
    return (
        f"{len(loop.seeds)} seeds of a policy over {len(loop.policy.tokens)} responses to each of {task.prompts} "
        "prompts; every figure is exact."
    )


def found_here(loop: Any) -> dict[str, Any]:
    """Nothing is tried."""
    return {}


def looks(method: Method, task: Task, options: Options) -> bool:
    """Exact figures cost nothing."""
    return options.evaluate > 0


def look(loop: EnumerableLoop, task: Any, options: Options, when: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Expected reward, pass@k and entropy, with intervals over the seeds."""
    members = {k: v.tolist() for k, v in loop.exact().items()}
    return {"exact": {k: {**interval.to_json(), "members": members[k]} for k, interval in _intervals(loop).items()}}, []


def _intervals(loop: EnumerableLoop) -> dict[str, Interval]:
    from etude.evaluation.intervals import bootstrap_interval, mean

    return {k: bootstrap_interval(v.numpy(), mean, rng=0) for k, v in loop.exact().items()}


def evaluate(place: Path, config: Mapping[str, Any], task: Any) -> dict[str, dict[str, Interval]]:
    """What is exactly true of the policies in a checkpoint, means over the seeds."""
    from etude.core.method import Method
    from etude.loops.enumerable import EnumerableLoop
    from etude.runtime.sources import opened

    method = Method.from_json(opened(place.parent.parent).method)
    seeds = range(config["seed"], config["seed"] + (config.get("seeds") or SEEDS))
    loop = EnumerableLoop(method, task, seeds=seeds, steps=config["steps"])
    loop.load(place)
    return {"exact": _intervals(loop)}
