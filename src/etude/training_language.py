"""Runs of language: what fits, the model and the loop, what is sampled before and after."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from etude.core.errors import ConfigError, UnknownNameError
from etude.core.method import Method
from etude.core.streams import Stream
from etude.core.task import LanguageTask, Task
from etude.training import Options

if TYPE_CHECKING:
    from etude.loops.language import LanguageLoop
    from etude.policies.language import LanguagePolicy

SMALL = 20_000_000
"""Parameters up to which one thread is faster than several: the products are too small to divide."""
KS = (1, 8)
STEPS = 150
SEEDS = 3


def measured(task: LanguageTask) -> tuple[list[str], list[str]]:
    """Metrics and splits of an evaluation."""
    from etude.evaluation.language import evaluation_splits

    return [*(f"pass@{k}" for k in KS), "reward"], list(evaluation_splits(task))


def check_fit(method: Method, task: Task) -> None:
    """Raise ConfigError if the task cannot be trained by this method."""
    missing = [s for s in ("experience", "objective", "optimizer", "curriculum") if getattr(method, s) is None]
    if missing:
        raise ConfigError(f"{method.id} has no {missing[0]}, so it cannot be trained.")
    if sentence := contradiction(method) or _lacks(method, task):
        raise ConfigError(sentence)


def contradiction(method: Method) -> str | None:
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
        if sentence := ask() if ask else None:
            return sentence
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
        stream=Stream(options.seed).split("adapter"),
    )  # fmt: skip
    torch.set_num_threads(options.threads or threads(policy))
    assert options.steps is not None
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


def threads(policy: LanguagePolicy) -> int:
    """CPU threads that serve a model of this size best."""
    import os

    small = sum(p.numel() for p in policy.model.parameters()) < SMALL
    return 1 if small else len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def steps(method: Method, task: LanguageTask, options: Options) -> int:
    """Training steps."""
    if options.population or options.seeds not in (None, 1):
        raise ConfigError(
            "A population is for tasks of control; of a language model every seed is a run of its own "
            "(etude train --seeds, etude compare)."
        )
    return options.steps or STEPS


def training_steps(method: Method, steps: int) -> int:
    """The same number."""
    return steps


def sentence(loop: LanguageLoop, method: Method, task: LanguageTask) -> str:
    """Memory that the run will need."""
    from etude.runtime import memory

    rows = method.problems * getattr(method.experience, "size", 1)
    return memory.sentence(loop.policy, rows, 2 * (task.max_tokens or 64))


def looks(method: Method, task: LanguageTask, options: Options) -> bool:
    """Whether what is trained samples, and something says how good the samples are."""
    unscored = bool(getattr(task, "needs_reward", lambda: None)())
    return options.evaluate > 0 and method.objective is not None and method.objective.generates and not unscored


def look(
    loop: LanguageLoop, task: LanguageTask, options: Options, when: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """pass@k and reward on every split that is not trained on."""
    from etude.evaluation.language import evaluate_split, evaluation_splits
    from etude.evaluation.pass_at_k import to_json
    from etude.training import say

    say(f"Sampling {options.evaluate} problems per split {when} training ...", options.quiet)
    rewards = () if getattr(task, "scored", True) else loop.method.rewards
    entry: dict[str, Any] = {}
    samples = []
    for split in evaluation_splits(task):
        looked = evaluate_split(loop.policy, task, split, problems=options.evaluate, seed=options.seed, rewards=rewards)
        entry[split] = to_json({k: v for k, v in looked.summary(KS).items() if not k.startswith("avg@")})  # is pass@1
        samples += [_sample(split, episodes[0], task.success(episodes[0])) for episodes in looked.episodes[:3]]
    return entry, samples


def _sample(split: str, episode: Any, success: bool) -> dict[str, Any]:
    prompt = "".join(s.text for s in episode.segments if not any(s.action_mask))
    return {"split": split, "prompt": prompt, "completion": episode.completion, "success": success}
