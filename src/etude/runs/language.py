"""Runs of language: what fits, the model and the loop, what is sampled before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from etude.core.errors import UnknownNameError
from etude.core.method import Method
from etude.core.slots import Reward
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.runs.training import Options

if TYPE_CHECKING:
    from etude.loops.language import LanguageLoop
    from etude.policies.language import LanguagePolicy

SMALL = 20_000_000
"""Parameters up to which one thread is faster than several: the products are too small to divide."""
KS = (1, 8)
STEPS = 150
SEEDS = 3
READS = frozenset({"model", "micro_tokens", "adapter", "device", "dtype", "autocast", "gradient_checkpointing"})


def measured(task: LanguageTask) -> tuple[list[str], list[str]]:
    """Metrics and splits of an evaluation."""
    from etude.evaluation.language import evaluation_splits

    return [*(f"pass@{k}" for k in KS), "reward"], list(evaluation_splits(task))


def curve(metric: str) -> tuple[str, str, str]:
    """The reward of what was sampled for training, which is not what an evaluation measures."""
    return "reward", "training reward", "training steps"


def prepare(method: Method, task: LanguageTask) -> None:
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
    return options.steps or STEPS


def training_steps(method: Method, steps: int) -> int:
    """The same number."""
    return steps


def sentence(loop: LanguageLoop, method: Method, task: LanguageTask) -> str:
    """Memory that the run will need."""
    from etude.runtime import memory

    rows = method.problems * method.experience.rows_per_problem
    return memory.sentence(loop.policy, rows, 2 * (task.max_tokens or 64))


def found_here(loop: Any) -> dict[str, Any]:
    """Nothing is tried."""
    return {}


def looks(method: Method, task: LanguageTask, options: Options) -> bool:
    """Whether what is trained samples, and something says how good the samples are."""
    unscored = bool(task.needs_reward())
    return options.evaluate > 0 and method.objective is not None and method.objective.generates and not unscored


def look(
    loop: LanguageLoop, task: LanguageTask, options: Options, when: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """pass@k and reward on every split that is not trained on."""
    from etude.evaluation.language import evaluate_split, evaluation_splits
    from etude.evaluation.pass_at_k import to_json
    from etude.runs.training import say

    say(f"Sampling {options.evaluate} problems per split {when} training ...", options.quiet)
    rewards = scorers(loop.method, task)
    entry: dict[str, Any] = {}
    samples = []
    for split in evaluation_splits(task):
        looked = evaluate_split(loop.policy, task, split, problems=options.evaluate, seed=options.seed, rewards=rewards)
        entry[split] = to_json({k: v for k, v in looked.summary(KS).items() if not k.startswith("avg@")})  # is pass@1
        samples += [_sample(split, episodes[0], task.success(episodes[0])) for episodes in looked.episodes[:3]]
    return entry, samples


def scorers(method: Method, task: LanguageTask) -> list[Reward]:
    """What the reward of an evaluation is: that of the reward functions; without any, what the task pays."""
    from etude.rewards.function import FunctionReward

    own = [p for p in method.rewards if isinstance(p, Reward) and p.judges]
    return [p for p in own if isinstance(p, FunctionReward)] or (own if task.judged_by_reward else [])


def _sample(split: str, episode: Any, success: bool) -> dict[str, Any]:
    prompt = "".join(s.text for s in episode.segments if not any(s.action_mask))
    return {"split": split, "prompt": prompt, "completion": episode.completion, "success": success}
