"""One training run, from names to a finished folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.edit import set_values, stack
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import parse
from etude.core.method import Method
from etude.core.part import hints
from etude.core.registry import get_method
from etude.core.task import LanguageTask, Task
from etude.tasks import resolve_task

if TYPE_CHECKING:
    from etude.loops.language import LanguageLoop
    from etude.policies.language import LanguagePolicy

SMALL = 20_000_000
"""Parameters up to which one thread is faster than several: the products are too small to divide."""
KS = (1, 8)


@dataclass(frozen=True)
class Options:
    """What a run is started with besides the method: the names are the command line's.

    Args:
        steps: training steps.
        out: the run's folder; None chooses `runs/<method>-<task>-<seed>`.
        evaluate: problems per split sampled before and after training; 0 for none.
        adapter: train a low-rank adapter: 'lora', 'rslora' or 'dora'.
        threads: CPU threads; None: one for small models, all cores for others.
    """

    model: str = "tiny"
    steps: int = 200
    seed: int = 0
    out: str | None = None
    evaluate: int = 100
    checkpoint_every: int | None = None
    micro_tokens: int = 8192
    adapter: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    autocast: bool = False
    gradient_checkpointing: bool = False
    threads: int | None = None
    sinks: tuple[str, ...] = ()
    quiet: bool = False


@dataclass
class Result:
    """What a run left behind.

    Args:
        evaluation: {'before': {split: {metric: Interval JSON}}, 'after': ...}; empty if nothing was sampled.
    """

    folder: Path
    method: str
    task: str
    steps: int
    seconds: float
    checkpoint: Path
    evaluation: dict[str, Any] = field(default_factory=dict)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Every line of `metrics.jsonl`."""
        from etude.runtime.jsonl import JsonLines

        return list(JsonLines.read(self.folder / "metrics.jsonl"))

    def score(self, metric: str = "pass@1", split: str = "test", when: str = "after") -> float:
        """One number of the evaluation."""
        return float(self.evaluation[when][split][metric]["value"])


def compose_method(
    method: str | Method, changes: Sequence[str] | Mapping[str, Any] = (), parts: Sequence[str] = (), reward: Any = None
) -> Method:
    """The method that a run trains: by name or as it is, with fields set, parts stacked, and the user's reward."""
    found = get_method(method) if isinstance(method, str) else method
    found = stack(found, parts)
    if reward is not None:
        from etude.core.slots import TokenReward
        from etude.rewards.function import reward_part

        kept = tuple(p for p in found.rewards if not (isinstance(p, TokenReward) and p.name == "task-reward"))
        found = found.replace(rewards=(reward_part(reward), *kept))
    found = set_values(found, changes)
    found.check()
    return found


def compose_task(task: str | Task, changes: Sequence[str] = (), reward: Any = None) -> Task:
    """The task with fields set (`task.levels=2,3`); a file's own scoring gives way to a reward function."""
    found = resolve_task(task) if isinstance(task, str) else task
    for change in changes:
        name, _, text = change.removeprefix("task.").partition("=")
        if name not in hints(type(found)):
            raise UnknownNameError(f"field of task {found.id}", name, hints(type(found)))
        found = found.replace(**{name: parse(f"{found.id}.{name}", hints(type(found))[name], text)})
    return found.replace(scored=False) if reward is not None and "scored" in found.fields() else found


def check_fit(method: Method, task: Task) -> None:
    """Raise ConfigError if the task cannot be trained by this method."""
    if task.loop != "language":
        raise ConfigError(f"Task {task.id} is one of {task.loop}, and no loop for it is installed.")
    missing = [s for s in ("experience", "objective", "optimizer", "curriculum") if getattr(method, s) is None]
    if missing:
        raise ConfigError(f"{method.id} has no {missing[0]}, so it cannot be trained.")
    assert method.experience is not None
    if method.experience.samples and (sentence := _needs_reward(task)):
        raise ConfigError(sentence)


def _needs_reward(task: Task) -> str | None:
    ask: Callable[[], str | None] | None = getattr(task, "needs_reward", None)
    return ask() if ask else None


def build(method: Method, task: LanguageTask, options: Options) -> LanguageLoop:
    """Model and loop. Rewards are bound first, so that a reward that cannot be imported fails before a model loads."""
    import torch

    from etude.loops.language import LanguageLoop
    from etude.policies.language import LanguagePolicy

    for part in method.rewards:
        part.bind()
    pool = task.problems("train")
    policy = LanguagePolicy.load(
        options.model, device=options.device, dtype=options.dtype, adapter=adapter(options.adapter),
        gradient_checkpointing=options.gradient_checkpointing, autocast=options.autocast,
    )  # fmt: skip
    torch.set_num_threads(options.threads or _threads(policy))
    return LanguageLoop(
        method, task, policy, seed=options.seed, steps=options.steps, pool=pool, micro_tokens=options.micro_tokens
    )


def adapter(kind: str | None) -> Any:
    """The low-rank adapter that a name asks for."""
    if kind is None:
        return None
    from etude.policies.loading import Adapter

    kinds = {"lora": Adapter(), "rslora": Adapter(rank_stabilized=True), "dora": Adapter(weight_decomposed=True)}
    if kind not in kinds:
        raise UnknownNameError("adapter", kind, kinds)
    return kinds[kind]


def _threads(policy: LanguagePolicy) -> int:
    import os

    small = sum(p.numel() for p in policy.model.parameters()) < SMALL
    return 1 if small else len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def say(sentence: str, quiet: bool = False) -> None:
    """A line for the user, on stderr like the progress."""
    if not quiet:
        print(sentence, file=sys.stderr, flush=True)
