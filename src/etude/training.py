"""One training run, from names to a finished folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from etude.core.edit import assignments, set_values, stack
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Count, WholeNumber, check, parse
from etude.core.method import Method
from etude.core.part import hints
from etude.core.registry import get_method
from etude.core.task import LanguageTask, Task
from etude.runtime.sinks import SINKS
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
    steps: Count = 150
    seed: WholeNumber = 0
    out: str | None = None
    evaluate: WholeNumber = 100
    checkpoint_every: Count | None = None
    micro_tokens: Count = 8192
    adapter: Literal["lora", "rslora", "dora"] | None = None
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    autocast: bool = False
    gradient_checkpointing: bool = False
    threads: Count | None = None
    sinks: tuple[str, ...] = ()
    quiet: bool = False

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(Options, include_extras=True).items():
            object.__setattr__(self, name, check(name, hint, getattr(self, name)))
        for sink in self.sinks:
            if sink not in SINKS:
                raise UnknownNameError("sink", sink, SINKS)


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
    method: str | Method,
    changes: Sequence[str] | Mapping[str, Any] = (),
    parts: str | Sequence[str] = (),
    reward: Any = None,
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


def compose_task(task: str | Task, changes: Sequence[str] | Mapping[str, Any] = (), reward: Any = None) -> Task:
    """The task with fields set (`task.levels=2,3`); a file's own scoring gives way to a reward function."""
    found = resolve_task(task) if isinstance(task, str) else task
    for change in assignments(changes):
        name, equals, text = change.removeprefix("task.").partition("=")
        if not equals:
            raise ConfigError(f"--set takes PATH=VALUE, as in task.levels=2,3; got {change!r}.")
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
    if sentence := _contradiction(method) or _lacks(method, task):
        raise ConfigError(sentence)


def _contradiction(method: Method) -> str | None:
    """Why the slots cannot work together, whatever the task."""
    assert method.experience is not None and method.objective is not None
    objective, experience = type(method.objective).__name__, type(method.experience).__name__
    if method.objective.uses_behaviour and not method.experience.samples:
        return (
            f"{method.id}: {objective} compares the policy with the one that sampled, and {experience} takes its rows "
            "from data: choose an objective for data (log-likelihood, dpo), or an experience that samples (groups)."
        )
    if method.objective.vanishes_with_advantage and method.advantages is None:
        return f"{method.id}: {objective} learns from advantages, and the slot advantages is empty."
    if method.advantages is not None and not method.rewards:
        return f"{method.id}: there are advantages but no rewards to compute them from; set rewards=task-reward."
    if method.objective.couples == "group" and getattr(method.experience, "size", 2) == 1:
        return f"{method.id}: {objective} compares answers to one problem: set experience.size to 2 or more."
    return None


def _lacks(method: Method, task: Task) -> str | None:
    """What the task does not have and the method learns from: a score, worked answers, pairs."""
    assert method.experience is not None
    if method.experience.samples:
        ask: Callable[[], str | None] | None = getattr(task, "needs_reward", None)
        return ask() if ask else None
    lacks: Callable[[Any, Task], str | None] | None = getattr(method.experience, "lacks", None)
    return lacks(task.problems("train")[0], task) if lacks else None


def prepare(method: Method, task: Task) -> None:
    """Do what may fail before anything is written or a large model loads: read the data, import the rewards."""
    task.problems("train")
    for part in method.rewards:
        part.bind()


def build(method: Method, task: LanguageTask, options: Options) -> LanguageLoop:
    """Model and loop."""
    import torch

    from etude.loops.language import LanguageLoop
    from etude.policies.language import LanguagePolicy

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
