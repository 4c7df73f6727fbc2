"""The public verbs: train, resume, evaluate, compare; the same from Python and the shell."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from etude.core.errors import CheckpointError, ConfigError
from etude.core.method import Method
from etude.core.task import LanguageTask, Task
from etude.training import KS, Options, Result, build, check_fit, compose_method, compose_task, say


def train(
    method: str | Method = "grpo",
    task: str | Task = "compose",
    *,
    set: Sequence[str] | Mapping[str, Any] = (),
    with_: Sequence[str] = (),
    reward: Any = None,
    **options: Any,
) -> Result:
    """Train a method on a task.

    Args:
        method: a name (`etude methods`), a Method, or 'file.py:name'.
        task: a name (`etude tasks`), a Task, 'data.jsonl', 'reasoning-gym:NAME', or 'file.py:name'.
        set: fields by path, `{"optimizer.lr": 3e-4}` or `["optimizer.lr=3e-4"]`; `task.FIELD` sets the task's.
        with_: parts or methods to stack on the method.
        reward: 'module:function', 'file.py:function', or a Python function over completions.
        options: see `etude.training.Options`: model, steps, seed, out, evaluate, adapter, device, ...

    Raises: EtudeError, a sentence that says what was wrong and what to do.
    """
    chosen = _options(options)
    fields = [f"{k}={v}" for k, v in set.items()] if isinstance(set, Mapping) else list(set)
    composed = compose_method(method, [f for f in fields if not f.startswith("task.")], with_, reward)
    goal = compose_task(task, [f for f in fields if f.startswith("task.")], reward)
    check_fit(composed, goal)
    assert isinstance(goal, LanguageTask)
    from etude.runtime.folder import RunFolder, default_name

    where = Path(chosen.out) if chosen.out else default_name(composed.id, goal.id, chosen.seed)
    config = {
        **dataclasses.asdict(chosen),
        "out": str(where),
        "task": task if isinstance(task, str) else _reference(task),
        "task_fields": [f for f in fields if f.startswith("task.")],
        "reward": _text(reward),
    }
    with RunFolder.create(where, composed.to_json(), config) as folder:
        for sentence in getattr(goal, "warnings", list)():
            say(sentence)
        return _run(folder, composed, goal, chosen)


def resume(folder: str | Path, *, steps: int | None = None, quiet: bool = False) -> Result:
    """Go on with a run that was stopped, to the same numbers as if it never had been.

    Args:
        steps: train to this many steps instead (schedules follow the new number).
    """
    from etude.runtime.folder import RunFolder

    with RunFolder.resume(Path(folder)) as opened:
        config = opened.config
        if steps is not None and steps != config["steps"]:
            opened.change_config(steps=steps)
        known = {f.name for f in dataclasses.fields(Options)}
        values = {k: v for k, v in opened.config.items() if k in known}
        options = Options(**{**values, "sinks": tuple(values["sinks"]), "quiet": quiet})
        if str(config["reward"]).startswith("<"):
            raise CheckpointError(
                f"{folder} was trained with the function {config['reward']}, which only Python can give."
            )
        method = Method.from_json(opened.method_json)
        goal = compose_task(config["task"], config["task_fields"], config["reward"])
        assert isinstance(goal, LanguageTask)
        return _run(opened, method, goal, options)


def _run(folder: Any, method: Method, task: LanguageTask, options: Options) -> Result:
    from etude.evaluation.report import write_report
    from etude.runtime import memory
    from etude.runtime.progress import Progress
    from etude.runtime.run import Run
    from etude.runtime.sinks import open_sinks

    loop = build(method, task, options)
    rows = method.problems * getattr(method.experience, "size", 1)
    say(memory.sentence(loop.policy, rows, 2 * (task.max_tokens or 64)), options.quiet)
    looks = options.evaluate > 0 and method.objective is not None and method.objective.generates
    found = _load_evaluation(folder.path)
    if looks and "before" not in found:
        found = _look(folder, loop, task, options, "before")
    progress = Progress(options.steps, loop.headline, quiet=options.quiet)
    sinks = open_sinks(options.sinks, folder.path, folder.config, folder.step, say) if options.sinks else ()
    run = Run(folder, loop, options.steps, checkpoint_every=options.checkpoint_every, sinks=sinks, progress=progress)
    done = run.execute()
    if looks and "after" not in found:
        found = _look(folder, loop, task, options, "after")
    write_report(folder.path)
    return Result(done.folder, method.id, task.id, done.step, done.seconds, done.checkpoint, found)


def _look(folder: Any, loop: Any, task: LanguageTask, options: Options, when: str) -> dict[str, Any]:
    """Sample the evaluation splits and add what came out to `evaluation.json`."""
    from etude.evaluation.language import evaluate_split, evaluation_splits
    from etude.evaluation.pass_at_k import to_json
    from etude.runtime import disk

    say(f"Sampling {options.evaluate} problems per split {when} training ...", options.quiet)
    found = _load_evaluation(folder.path)
    rewards = () if getattr(task, "scored", True) else loop.method.rewards
    entry: dict[str, Any] = {}
    samples = []
    for split in evaluation_splits(task):
        looked = evaluate_split(loop.policy, task, split, problems=options.evaluate, seed=options.seed, rewards=rewards)
        entry[split] = to_json({k: v for k, v in looked.summary(KS).items() if not k.startswith("avg@")})  # is pass@1
        samples += [_sample(split, episodes[0], task.success(episodes[0])) for episodes in looked.episodes[:3]]
    found[when] = entry
    found.setdefault("samples", {})[when] = samples
    disk.replace_file(folder.path / "evaluation.json", json.dumps(found, indent=1).encode())
    return found


def _sample(split: str, episode: Any, success: bool) -> dict[str, Any]:
    prompt = "".join(s.text for s in episode.segments if not any(s.action_mask))
    return {"split": split, "prompt": prompt, "completion": episode.completion, "success": success}


def _load_evaluation(folder: Path) -> dict[str, Any]:
    path = folder / "evaluation.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def evaluate(
    checkpoint: str | Path,
    task: str | Task | None = None,
    *,
    k: Sequence[int] = (1, 8),
    problems: int = 100,
    samples: int | None = None,
    split: str | None = None,
    seed: int = 0,
    set: Sequence[str] = (),
    temperature: float = 1.0,
    top_p: float = 1.0,
    max_tokens: int | None = None,
) -> dict[str, dict[str, Any]]:
    """pass@k, avg@k and maj@k of a model on a task, with bootstrap intervals over problems.

    Args:
        checkpoint: a run folder (its newest checkpoint), a checkpoint folder, or any causal LM by name or path.
        task: by default the one the run was trained on.
        samples: completions per problem; by default the largest k.

    Returns: {split: {metric: Interval}}.
    """
    import torch

    from etude.evaluation.language import evaluate_split, evaluation_splits
    from etude.experience.groups import Groups
    from etude.policies.language import LanguagePolicy
    from etude.training import _threads

    model, config = locate(checkpoint)
    if task is None and "task" not in config:
        raise ConfigError(f"{checkpoint} does not say which task it was trained on: name one with --task.")
    fields = [*(config.get("task_fields", []) if task is None else []), *set]
    goal = compose_task(task if task is not None else config["task"], fields)
    assert isinstance(goal, LanguageTask)
    policy = LanguagePolicy.load(model)
    torch.set_num_threads(_threads(policy))
    count = samples or max(k)
    if max(k) > count:
        raise ConfigError(f"pass@{max(k)} needs at least {max(k)} samples per problem, got {count}.")
    how = Groups(temperature=temperature, top_p=top_p, max_tokens=max_tokens)
    splits = [split] if split else evaluation_splits(goal)
    looked = [
        evaluate_split(policy, goal, s, problems=problems, samples=count, seed=seed, experience=how) for s in splits
    ]
    return {e.split: dict(e.summary(k, majority=True)) for e in looked}


def locate(checkpoint: str | Path) -> tuple[str, dict[str, Any]]:
    """The model folder and the run's config of a run folder, a checkpoint, or a model by name."""
    from etude.runtime import checkpoints

    path = Path(checkpoint)
    if (path / "checkpoints").is_dir():
        newest, _ = checkpoints.newest(path / "checkpoints")
        return str(newest / "model"), _config(path)
    if (path / "model" / "config.json").is_file():
        return str(path / "model"), _config(path.parent.parent)
    return str(checkpoint), {}


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def _options(values: Mapping[str, Any]) -> Options:
    from etude.core.errors import UnknownNameError

    names = [f.name for f in dataclasses.fields(Options)]
    for key in values:
        if key not in names:
            raise UnknownNameError("option", key, names, f"There are: {', '.join(names)}.")
    chosen = Options(**{k: str(v) if isinstance(v, Path) else v for k, v in values.items()})
    if chosen.steps < 1:
        raise ConfigError(f"steps must be at least 1, got {chosen.steps}.")
    return chosen


def _reference(task: Task) -> str:
    from etude.tasks import resolve_task

    try:
        return task.id if resolve_task(task.id) == task else f"<{type(task).__qualname__}>"
    except ConfigError:
        return f"<{type(task).__qualname__}>"


def _text(reward: Any) -> str | None:
    return reward if reward is None or isinstance(reward, str) else f"<{getattr(reward, '__qualname__', reward)}>"
