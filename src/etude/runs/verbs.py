"""The public verbs: train, resume, evaluate, compare; the same from Python and the shell."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.control import ControlTask
from etude.core.edit import assignments
from etude.core.errors import CheckpointError, ConfigError
from etude.core.fields import Count
from etude.core.fields import check as check_value
from etude.core.fit import check
from etude.core.method import Method
from etude.core.task import LanguageTask, Task
from etude.core.worlds import World
from etude.runs.training import Options, Result, check_options, compose_method, compose_task, say, world_of
from etude.runtime.interrupts import Interrupted

if TYPE_CHECKING:
    from etude.runtime.sources import Inputs


def train(
    method: str | Method = "grpo",
    task: str | Task = "compose",
    *,
    set: str | Sequence[str] | Mapping[str, Any] = (),
    with_: str | Sequence[str] = (),
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
        options: see `etude.runs.training.Options`: model, steps, seed, out, evaluate, adapter, device, ...

    Raises: EtudeError, a sentence that says what was wrong and what to do.
    """
    chosen = _options(options)
    fields = assignments(set)
    goal = compose_task(task, [f for f in fields if f.startswith("task.")], reward)
    composed = compose_method(method, [f for f in fields if not f.startswith("task.")], with_, reward, goal.world)
    check(composed, goal)
    check_options(chosen, goal)
    kind = world_of(goal)
    chosen = dataclasses.replace(chosen, steps=kind.steps(composed, goal, chosen))
    kind.prepare(composed, goal)
    from etude.policies.loading import is_shipped
    from etude.runtime import disk, sources
    from etude.runtime.folder import RunFolder, default_name

    where = Path(chosen.out) if chosen.out else default_name(composed.id, goal.id, chosen.seed)
    parts = [with_] if isinstance(with_, str) else with_
    config = {
        **dataclasses.asdict(chosen),
        "out": str(where),
        "task": task if isinstance(task, str) else _reference(task),
        "task_fields": [f for f in fields if f.startswith("task.")],
        "reward": _text(reward),
    }
    code = [s for s in (method, *parts) if isinstance(s, str)]
    model = "" if goal.world is not World.LANGUAGE or is_shipped(chosen.model) else chosen.model
    new = not where.exists()
    with RunFolder.create(where, composed.to_json(), config) as folder:
        disk.remove(where / "evaluation.json")  # of a run that was killed before it started
        for sentence in goal.warnings():
            say(sentence)
        try:
            return _run(folder, composed, goal, chosen, lambda: sources.of_run(composed, goal, config, code, model))
        except BaseException:
            if new and not any((where / "checkpoints").glob("step-*")):
                disk.remove(where)  # nothing was trained: leave nothing behind
            raise


def resume(
    folder: str | Path, *, steps: int | None = None, accept_changes: bool = False, quiet: bool = False
) -> Result:
    """Go on with a run that was stopped, to the same numbers as if it never had been.

    Args:
        steps: train to this many steps instead (schedules follow the new number).
        accept_changes: go on although data, models or files of your own are no longer what the run was trained with;
            the run records what changed, and at which step.

    Raises: CheckpointError, naming what changed, for a run whose inputs are not as they were.
    """
    from etude.runtime import sources
    from etude.runtime.folder import RunFolder

    threads = _same_threads(Path(folder))
    with RunFolder.resume(Path(folder)) as opened:
        opened.notes += sources.check(opened.path, opened.step, accept_changes)
        found = sources.opened(opened.path)
        opened.notes += found.notes
        config = found.config
        for what in ("task", "reward"):
            if str(config[what]).startswith("<"):
                raise CheckpointError(
                    f"{folder} was trained with the {what} {config[what]}, which only lived in Python: put it in a "
                    f"file and name it as file.py:name to make runs that can be resumed."
                )
        known = {f.name for f in dataclasses.fields(Options)}
        values = {**{k: v for k, v in config.items() if k in known}, "threads": config["threads"] or threads}
        options = _options({**values, "quiet": quiet, "steps": config["steps"] if steps is None else steps})
        method = Method.from_json(found.method)
        goal = compose_task(config["task"], config["task_fields"], config["reward"])
        kind = world_of(goal)
        if steps is not None and kind.training_steps(method, steps) < opened.step:
            raise ConfigError(f"{folder} has {opened.step} training steps already, more than {steps} asks for.")
        kind.prepare(method, goal)
        if options.steps != config["steps"]:
            opened.change_config(steps=options.steps)
        return _run(opened, method, goal, options)


def _same_threads(folder: Path) -> int | None:
    """Compute with as many threads as the run was started with: the last digits depend on it."""
    import torch

    path = folder / "environment.json"
    threads = json.loads(path.read_text()).get("threads") if path.is_file() else None
    if threads:
        torch.set_num_threads(threads)
    return threads


def _run(
    folder: Any, method: Method, task: Task, options: Options, inputs: Callable[[], Inputs] | None = None
) -> Result:
    """Train to the end. `inputs`, of a new run, is asked once the model is there, and recorded."""
    from etude.evaluation.report import write_report
    from etude.loops.differences import never_differed
    from etude.runtime.jsonl import JsonLines
    from etude.runtime.progress import Progress
    from etude.runtime.run import Run
    from etude.runtime.sources import record

    kind = world_of(task)
    assert options.steps is not None
    loop, steps = kind.build(method, task, options), kind.training_steps(method, options.steps)
    if folder.checkpoint is None:
        found_here = kind.found_here(loop)
        folder.record_environment(options.seed, found_here)  # again, now that the number of threads is chosen
    if inputs is not None:
        record(folder.path, inputs())
    say(kind.sentence(loop, method, task), options.quiet)
    looks = kind.looks(method, task, options)
    found = _load_evaluation(folder.path)
    if looks and folder.checkpoint is None:
        found = _look(folder, loop, task, options, "before")
    if "after" in found and folder.step < steps:  # it was sampled at an earlier end
        del found["after"]
        _save_evaluation(folder.path, found)
    progress = Progress(steps, loop.headline, quiet=options.quiet)
    sinks = [s for name in options.sinks for s in _open_sink(name, folder)]
    run = Run(folder, loop, steps, checkpoint_every=options.checkpoint_every, sinks=sinks, progress=progress)
    done = run.execute()
    if looks and "after" not in found:
        try:
            found = _look(folder, loop, task, options, "after")
        except KeyboardInterrupt:
            raise Interrupted(
                f"Stopped while sampling after training. The {done.step} steps are done ({done.checkpoint}); sample "
                f"again with: {folder.resume_command}",
                signal.SIGINT,
            ) from None
    write_report(folder.path)
    flat = never_differed(JsonLines.read(folder.path / "metrics.jsonl"))
    notes = [flat] if flat else []
    return Result(done.folder, method.id, task.id, done.step, done.seconds, done.checkpoint, found, notes)


def _open_sink(name: str, folder: Any) -> list[Any]:
    """The sink, or nothing and a sentence if it cannot be used: that never stops a run."""
    from etude.core.errors import MissingExtraError
    from etude.runtime.sinks import open_sinks

    try:
        return list(open_sinks([name], folder.path, folder.config, folder.step, say))
    except MissingExtraError as error:
        say(f"{error}. The run goes on without it; metrics.jsonl has all its metrics.")
        return []


def _look(folder: Any, loop: Any, task: Task, options: Options, when: str) -> dict[str, Any]:
    """Evaluate, and add what came out to `evaluation.json`."""
    found = _load_evaluation(folder.path)
    found[when], samples = world_of(task).look(loop, task, options, when)
    found.setdefault("samples", {})[when] = samples
    _save_evaluation(folder.path, found)
    return found


def _load_evaluation(folder: Path) -> dict[str, Any]:
    path = folder / "evaluation.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _save_evaluation(folder: Path, found: dict[str, Any]) -> None:
    from etude.runtime import disk

    disk.replace_file(folder / "evaluation.json", json.dumps(found, indent=1).encode())


def evaluate(
    checkpoint: str | Path,
    task: str | Task | None = None,
    *,
    k: Sequence[int] = (1, 8),
    problems: int = 100,
    samples: int | None = None,
    split: str | None = None,
    seed: int = 0,
    set: str | Sequence[str] | Mapping[str, Any] = (),
    reward: Any = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    max_tokens: int | None = None,
    episodes: int = 100,
    video: str | None = None,
    member: int = 0,
) -> dict[str, dict[str, Any]]:
    """How good a policy is, with bootstrap intervals.

    Of a language model pass@k, avg@k and maj@k, over problems; of a run of control the return of sampled and of
    likeliest actions, interquartile means over members.

    Args:
        checkpoint: a run folder (its newest checkpoint), a checkpoint folder, or any causal LM by name or path.
        task: by default the one the run was trained on.
        samples: completions per problem; by default the largest k.
        reward: a function that scores, as in `train`; by default the run's own, if the task is the run's.
        episodes: of each member, in control.
        video: a file for an animated picture (GIF) of one episode of `member`, in control.

    Returns: {split: {metric: Interval}}.
    """
    model, config = locate(checkpoint)
    if str(checkpoint).startswith(("runs/", ".", "/")) and not Path(checkpoint).exists():
        raise ConfigError(f"There is no folder {checkpoint}.")
    if task is None and "task" not in config:
        raise ConfigError(f"{checkpoint} does not say which task it was trained on: name one with --task.")
    for what, given in {"task": task, "reward": reward}.items():
        if given is None and task is None and str(config.get(what)).startswith("<"):
            raise ConfigError(f"{checkpoint} has the {what} {config[what]}, which only Python can give.")
    if task is None:
        task, reward = config["task"], config.get("reward") if reward is None else reward
        fields = [*config.get("task_fields", ()), *assignments(set)]
    else:
        fields = assignments(set)
    goal = compose_task(task, fields, reward)
    if isinstance(goal, ControlTask):
        from etude.runs.control import evaluate as play

        return dict(play(Path(model), config, goal, check_value("episodes", Count, episodes), seed, video, member))
    if video is not None:
        raise ConfigError(f"--video is for tasks of control, and {goal.id} is one of {goal.world}.")
    if goal.world is World.ENUMERABLE:
        from etude.runs.enumerable import evaluate as look

        return dict(look(Path(model), config, goal))
    assert isinstance(goal, LanguageTask)
    import torch

    from etude.evaluation.language import evaluate_split, evaluation_splits
    from etude.experience.groups import Groups
    from etude.policies.language import LanguagePolicy
    from etude.rewards.function import reward_part
    from etude.runs.language import threads

    count = check_value("samples", Count, max(k) if samples is None else samples)
    if max(k) > count:
        raise ConfigError(f"pass@{max(k)} needs at least {max(k)} samples per problem, got {count}.")
    check_value("problems", Count, problems)
    how = Groups(temperature=temperature, top_p=top_p, max_tokens=max_tokens)
    splits = [split] if split else evaluation_splits(goal)
    for name in splits:
        goal.problems(name)
    if reward is None and (sentence := goal.needs_reward()):
        raise ConfigError(sentence)
    rewards = () if reward is None else (reward_part(reward).bind(),)
    policy = LanguagePolicy.load(model)
    torch.set_num_threads(threads(policy))
    looked = [
        evaluate_split(policy, goal, s, problems=problems, samples=count, seed=seed, experience=how, rewards=rewards)
        for s in splits
    ]
    return {e.split: dict(e.summary(k, majority=True)) for e in looked}


def export(checkpoint: str | Path, out: str | Path, *, member: int = 0) -> Path:
    """Write a member's policy, with its normaliser, as a `torch.export` program that runs without etude.

    Args:
        checkpoint: a run folder of control (its newest checkpoint), or a checkpoint in it.
        out: the file, by custom `.pt2`; `torch.export.load(out).module()` maps observations to actions.

    Raises: ConfigError for a run of language (whose checkpoints are Hugging Face folders already), or no such member.
    """
    from etude.evaluation.export import export_policy
    from etude.runs.control import restore

    place, config = locate(checkpoint)
    if not (Path(place) / "policy.safetensors").is_file():
        raise ConfigError(f"{checkpoint} is no run of control; models of language are in checkpoints/step-N/model.")
    goal = compose_task(config["task"], config["task_fields"])
    assert isinstance(goal, ControlTask)
    loop = restore(Path(place), config, goal)
    try:
        export_policy(loop, member, Path(out))
    finally:
        loop.close()
    return Path(out)


def locate(checkpoint: str | Path) -> tuple[str, dict[str, Any]]:
    """The model folder and the run's config of a run folder, a checkpoint, or a model by name."""
    from etude.runtime import checkpoints

    path = Path(checkpoint)
    if (path / "checkpoints").is_dir():
        newest, _ = checkpoints.newest(path / "checkpoints")
        return str(newest / "model" if (newest / "model").is_dir() else newest), _config(path)
    if (path / "policy.safetensors").is_file():
        return str(path), _config(path.parent.parent)
    if (path / "model" / "config.json").is_file():
        return str(path / "model"), _config(path.parent.parent)
    return str(checkpoint), {}


def _config(folder: Path) -> dict[str, Any]:
    """The config of a run, with what it names where that is now."""
    from etude.runtime.sources import opened

    if not (folder / "config.json").is_file():
        return {}
    found = opened(folder)
    for note in found.notes:
        say(note)
    return found.config


def _options(values: Mapping[str, Any]) -> Options:
    from etude.core.errors import UnknownNameError

    names = [f.name for f in dataclasses.fields(Options)]
    for key in values:
        if key not in names:
            raise UnknownNameError("option", key, names, f"There are: {', '.join(names)}.")
    return Options(**{k: str(v) if isinstance(v, Path) else v for k, v in values.items()})


def _reference(task: Task) -> str:
    from etude.tasks import resolve_task

    try:
        return task.id if resolve_task(task.id) == task else f"<{type(task).__qualname__}>"
    except ConfigError:
        return f"<{type(task).__qualname__}>"


def _text(reward: Any) -> str | None:
    return reward if reward is None or isinstance(reward, str) else f"<{getattr(reward, '__qualname__', reward)}>"
