"""Runs over enumerable policies: what is exactly true of every member's table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.task import Task
from etude.evaluation.report import Wording
from etude.runs.training import Options, Result
from etude.runs.worlds import OF_LANGUAGE, EvaluationOptions, Measured
from etude.runtime.looks import Look

if TYPE_CHECKING:
    from torch import Tensor

    from etude.evaluation.intervals import Interval
    from etude.loops.enumerable import EnumerableLoop
    from etude.policies.tabular import SoftmaxTree
    from etude.tasks.tabular.enumerable import Enumerable

SEEDS = 64
"""Members where nothing else is said: they are nearly free."""
STEPS, COMPARED_STEPS = 150, 100
READS = frozenset({"seeds"})
EVALUATION_READS: frozenset[str] = frozenset()
EVALUATED = 1
"""Expectations are exact, once."""
WORDING = Wording(
    scores="Exact expectations, means over the seeds, with 95% intervals",
    leading=("pass@",),
    also=("entropy",),
    unread=tuple(sorted({"population", *OF_LANGUAGE})),
)


def measured(task: Task, options: Options | None = None) -> tuple[list[str], list[str]]:
    """Metrics and splits of an evaluation."""
    from etude.policies.enumerated import KS

    return [*(f"pass@{k}" for k in KS), "reward", "entropy"], ["exact"]


def curve(metric: str) -> tuple[str, str, str]:
    """The metric itself, which is exact at every step."""
    return metric, f"{metric} (exact)", "training steps"


def grid(budget: int) -> list[float]:
    """Every training step."""
    return list(range(1, budget + 1))


def budget(task: Task) -> int:
    """Training steps."""
    return STEPS


def compared(task: Task) -> tuple[int, int]:
    """Members and training steps."""
    return SEEDS, COMPARED_STEPS


def suited(method: Method, task: Task) -> tuple[Method, str]:
    """The method as it is."""
    return method, ""


def prepare(method: Method, task: Task, options: Options) -> None:
    """Nothing can fail here that has not been checked."""


def arguments(method: Method, task: Task, options: Options) -> dict[str, Any]:
    """Seeds, one member each."""
    import torch

    torch.set_num_threads(options.threads or 1)
    return {"seeds": range(options.seed, options.seed + (options.seeds or SEEDS))}


def size(loop: EnumerableLoop, method: Method, task: Enumerable) -> str:
    """How much there is to enumerate."""
    return (
        f"{len(loop.seeds)} seeds of a policy over {len(loop.policy.tokens)} responses to each of {task.prompts} "
        "prompts; every figure is exact"
    )


def rate(loop: EnumerableLoop, method: Method) -> str:
    """The usual one of tables."""
    from etude.loops.enumerable import RATE
    from etude.optimizers.adam import rate_sentence

    return rate_sentence(method.slots().get("optimizer"), RATE, "the usual one for tables")


def evaluation(
    loop: EnumerableLoop, task: Enumerable, options: Options, when: str, known: Look | None = None
) -> Measured:
    """Expected reward, pass@k and entropy, with intervals over the seeds."""
    exact = loop.exact() if known is None else known.found
    measures = {k: {**interval.to_json(), "members": exact[k].tolist()} for k, interval in _intervals(exact).items()}
    return Measured({"exact": measures})


def look(loop: EnumerableLoop, task: Enumerable, options: Options) -> Look:
    """What is exactly true of every member."""
    exact = loop.exact()
    means, ends = {k: v.tolist() for k, v in exact.items()}, _intervals(exact)
    return Look({"exact": means}, {k: [i.low, i.high] for k, i in ends.items()}, exact)


def _intervals(exact: Mapping[str, Tensor]) -> dict[str, Interval]:
    from etude.evaluation.intervals import bootstrap_interval, mean

    return {k: bootstrap_interval(v.numpy(), mean, rng=0) for k, v in exact.items()}


def restore(checkpoint: str, config: Mapping[str, Any], task: Enumerable) -> SoftmaxTree:
    """Every member's table."""
    from etude.runtime.checkpoints import load_tensors

    policy = task.policy(config.get("seeds") or SEEDS)
    tensors = load_tensors(Path(checkpoint) / "state.safetensors")
    for k, table in enumerate(policy.logits):
        table.data.copy_(tensors[f"logits.{k}"])
    return policy


def evaluate(
    checkpoint: str, config: Mapping[str, Any], task: Enumerable, options: EvaluationOptions
) -> dict[str, dict[str, Interval]]:
    """What is exactly true of the policies in a checkpoint, means over the seeds."""
    from etude.policies.enumerated import exact

    policy = restore(checkpoint, config, task)
    return {"exact": _intervals(exact(policy, task.table(len(policy.tokens))))}


def about(options: EvaluationOptions) -> str:
    """Nothing was sampled."""
    return "exact, means over the seeds"


def begin(loop: EnumerableLoop, options: Options) -> list[str]:
    """Nothing: tables begin as the task has them."""
    return []


def export(checkpoint: str, config: Mapping[str, Any], out: Path, member: int, merge: bool) -> None:
    """Refused: there is nothing to run."""
    raise ConfigError(
        f"{checkpoint} holds tables of {config['task']}, in state.safetensors; there is no program to export."
    )


def preview(task: Task, split: str | None, count: int) -> Iterable[str]:
    """Splits, fields and a few prompts."""
    from etude.runs.worlds import language

    return language.preview(task, split, count)


def suggestions(done: Result, method: str, config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A comparison."""
    from etude.runs.worlds import language

    return language.comparison(done, method, config, SEEDS)
