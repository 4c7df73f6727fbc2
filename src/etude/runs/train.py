"""The verbs train and resume: from names to a finished folder, in one session or several."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.edit import assignments
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fit import check
from etude.core.loop import Loop
from etude.core.method import Method
from etude.core.task import Task
from etude.loops import loop_class
from etude.rewards import several
from etude.rewards.function import CallableReward
from etude.rewards.several import Scoring
from etude.runs import calling, given, shorthands
from etude.runs.config import FILE, merged, to_toml
from etude.runs.kinds import check_options, run_of
from etude.runs.training import (
    Options,
    Result,
    compose_method,
    compose_task,
    of,
    of_method,
    options_of,
    say,
    with_adapter,
)
from etude.runs.warm import start_of
from etude.runs.worlds import world_of
from etude.runtime.interrupts import Interrupted
from etude.runtime.jsonl import JsonLines
from etude.runtime.keeping import Kept
from etude.runtime.looks import Best, Look
from etude.runtime.stopping import Stopping, best_by, parse_stop

if TYPE_CHECKING:
    from etude.runtime.callbacks import Callbacks
    from etude.runtime.folder import RunFolder
    from etude.runtime.progress import Progress
    from etude.runtime.run import RunResult
    from etude.runtime.sources import Inputs


def train(
    method: str | Method | None = None,
    task: Any = None,
    *,
    set: str | Sequence[str] | Mapping[str, Any] = (),
    with_: str | Sequence[str] = (),
    reward: Scoring | None = None,
    config: str | Path | None = None,
    callbacks: str | Sequence[Any] = (),
    **options: object,
) -> Result:
    """Train a method on a task.

    Args:
        method: a name (`etude methods`), a Method, 'file.py:name', or a run's method.json; 'grpo' by default.
        task: a name (`etude tasks`), a Task, 'data.jsonl', 'reasoning-gym:NAME', or 'file.py:name'; a gymnasium.Env
            class, a function that makes such environments, or one that `gym.make` made; rows: dicts, a
            `datasets.Dataset`, or either by split. 'compose' by default.
        set: fields by path, `{"optimizer.lr": 3e-4}` or `["optimizer.lr=3e-4"]`; `task.FIELD` sets the task's.
        with_: parts or methods to stack on the method.
        reward: 'module:function', 'file.py:function', or a Python function over completions; several in a list, with
            weights as in ['a.py:f=1.0', 'b.py:g=0.2'] or [(f, 1.0), (g, 0.2)].
        config: a file that says all this by the same names, as every run writes one (run.toml); what is given wins.
        callbacks: objects or classes with `on_step`, `on_evaluation`, ... (`etude.Callback`), or 'my.py:Slack'.
        options: see `etude.runs.training.Options`: model, steps, seed, out, evaluate, adapter, device, ...; a model
            that transformers loaded serves with its `tokenizer`. Also columns, answer, chat, system,
            template_arguments and skip_bad_rows, which are fields of a task.

    Rows and loaded models are written to `given/` beside the run, and so have a name. What else has none (an
    environment of a notebook) is kept as its source, and `resume` asks for it.

    Raises: EtudeError, a sentence that says what was wrong and what to do.
    """
    own = {"method": method, "task": task, "set": set, "with": with_, "reward": reward, "callbacks": callbacks}
    told: dict[str, Any] = {k: v for k, v in own.items() if v is not None and v != ()} | options
    if config is not None:
        told = merged(config, told)
    listed = told.get("callbacks", ())
    called, told["callbacks"] = calling.made(listed), calling.names(listed)
    where = given.home(told.get("out"))
    if "model" in told or "tokenizer" in told:
        told["model"] = given.model_of(told.get("model", "tiny"), told.pop("tokenizer", None), where)
    fields, parts = [*shorthands.taken(told), *assignments(told.pop("set", ()))], told.pop("with", ())
    return _start(
        told.pop("method", "grpo"), given.task_of(told.pop("task", "compose"), where), told.pop("reward", None), fields,
        [parts] if isinstance(parts, str) else list(parts), options_of(Options, told), called,
    )  # fmt: skip


def _start(
    method: str | Method, task: str | Task, reward: Scoring | None, fields: Sequence[str], parts: Sequence[str],
    chosen: Options, called: Sequence[Any],
) -> Result:  # fmt: skip
    """Make the folder of a run, with all that it was told, and train."""
    goal = compose_task(task, of("task", fields), reward)
    composed = compose_method(method, of_method(fields), parts, reward, goal.world)
    composed, suited = world_of(goal).suited(composed, goal)
    chosen = with_adapter(chosen, of("adapter", fields))
    check(composed, goal)
    check_options(chosen, composed, goal)
    world = world_of(goal)
    if chosen.model != Options.model:
        start, notes = start_of(chosen.model, goal.world)
        chosen = dataclasses.replace(chosen, model=start)
        for note in notes:
            say(note)
    evaluate = world.EVALUATED if chosen.evaluate is None else chosen.evaluate
    chosen = dataclasses.replace(chosen, steps=chosen.steps or world.budget(goal), evaluate=evaluate)
    _prepare(composed, goal, chosen)
    from etude.policies.loading import is_shipped
    from etude.runtime import disk, sources
    from etude.runtime.folder import RunFolder, default_name

    where = Path(chosen.out) if chosen.out else default_name(composed.id, goal.id, chosen.seed)
    name, own_fields = (task, []) if isinstance(task, str) else given.named(task)
    config = {
        **dataclasses.asdict(chosen),
        "out": str(where),
        "callbacks": calling.lasting(chosen.callbacks),
        "task": name,
        "task_fields": [*own_fields, *of("task", fields)],
        "reward": several.text(reward),
        "world": goal.world,
    }
    code = [s for s in (method, *parts) if isinstance(s, str)]
    model = chosen.model if "model" in world_of(goal).READS and not is_shipped(chosen.model) else ""
    new = not where.exists()
    with RunFolder.create(where, composed.to_json(), config) as folder:
        disk.remove(where / "evaluation.json")  # of a run that was killed before it started
        disk.replace_file(where / FILE, _repeats(where, method, config, parts, [*own_fields, *fields], chosen).encode())
        lost = {
            "task": (config["task"], task),
            "reward": (several.only_python(config["reward"]), several.unnamed(reward)),
        }
        unnamed = {k: thing for k, (said, thing) in lost.items() if str(said).startswith("<")}
        given.keep_sources(where, unnamed)
        for sentence in (*goal.warnings(), *([suited] if suited else [])):
            say(sentence)
        try:
            return _run(
                folder, composed, goal, chosen, called, lambda: sources.of_run(composed, goal, config, code, model)
            )
        except BaseException:
            if new and not any((where / "checkpoints").glob("step-*")):
                disk.remove(where)  # nothing was trained: leave nothing behind
            raise


def _repeats(
    where: Path, method: str | Method, config: Mapping[str, Any], parts: Sequence[str], fields: Sequence[str],
    chosen: Options,
) -> str:  # fmt: skip
    """The file that does this run again; a Method of Python's is the one that the run wrote down, parts and all."""
    task, reward = config["task"], config["reward"]
    chosen = dataclasses.replace(chosen, callbacks=tuple(c for c in chosen.callbacks if not c.startswith("<")))
    if isinstance(method, str):
        return to_toml(method, task, fields, parts, reward, chosen)
    written = str(where / "method.json") if reward is None else f"<{method.id}>"
    return to_toml(written, task, config["task_fields"], (), reward, chosen)


def resume(
    folder: str | Path,
    *,
    steps: int | None = None,
    accept_changes: bool = False,
    quiet: bool = False,
    task: Any = None,
    reward: Scoring | None = None,
    callbacks: str | Sequence[Any] = (),
    until: int | None = None,
) -> Result:
    """Go on with a run that was stopped, to the same numbers as if it never had been.

    Args:
        steps: train to this many steps instead (schedules follow the new number).
        task, reward: what the run was given in Python and has no name, once more.
        accept_changes: go on although data, models or files of your own are no longer what the run was trained with;
            the run records what changed, and at which step.
        until: end it for now after so many of its steps.
        callbacks: as in `train`; without any, those that the run was started with by name.

    Raises: CheckpointError, naming what changed, for a run whose inputs are not as they were.
    """
    from etude.runtime import sources
    from etude.runtime.folder import RunFolder

    threads = _same_threads(Path(folder))
    with RunFolder.resume(Path(folder)) as opened:
        opened.notes += sources.check(opened.path, opened.step, accept_changes)
        started = sources.opened(opened.path)
        opened.notes += started.notes
        config = started.config
        wanted = {"task": (config["task"], task), "reward": (several.only_python(config["reward"]), reward)}
        for what, (name, thing) in wanted.items():
            if str(name).startswith("<"):
                thing = several.unnamed(thing) if what == "reward" else thing
                given.given_again(opened.path, what, str(name), thing, accept_changes)
                if what == "reward":
                    _with(started.method, reward or [])  # refuses too few of them before any is kept
                given.keep_sources(opened.path, {what: thing})
            elif thing is not None:
                raise ConfigError(f"{folder} knows its {what} by name, {config[what]}: leave {what} out.")
        known = {f.name for f in dataclasses.fields(Options)}
        values = {**{k: v for k, v in config.items() if k in known}, "threads": config["threads"] or threads}
        values |= {"quiet": quiet, "until": until, "steps": config["steps"] if steps is None else steps}
        options = options_of(Options, values)
        method = Method.from_json(started.method if reward is None else _with(started.method, reward))
        goal = compose_task(
            config["task"] if task is None else given.task_of(task, given.home(folder)), config["task_fields"],
            config["reward"],
        )  # fmt: skip
        if steps is not None and run_of(method).training_steps(method, steps) < opened.step:
            raise ConfigError(f"{folder} has {opened.step} training steps already, more than {steps} asks for.")
        _prepare(method, goal, options)
        if options.steps != config["steps"]:
            opened.change_config(steps=options.steps)
        called = calling.made(callbacks) or calling.again(config.get("callbacks", ()), opened.notes.append)
        return _run(opened, method, goal, options, called)


def _prepare(method: Method, task: Task, options: Options) -> None:
    """Do what may fail before anything is written or a large model loads."""
    loop_class(type(method), task.world)
    _stopping(task, options)
    _best(task, options)
    world_of(task).prepare(method, task, options)
    run_of(method).prepare(method, task)


def _same_threads(folder: Path) -> int | None:
    """Compute with as many threads as the run was started with: the last digits depend on it."""
    import torch

    path = folder / "environment.json"
    threads = json.loads(path.read_text()).get("threads") if path.is_file() else None
    if threads:
        torch.set_num_threads(threads)
    return threads


def _run(
    folder: RunFolder, method: Method, task: Task, options: Options, called: Sequence[Any],
    inputs: Callable[[], Inputs] | None = None,
) -> Result:  # fmt: skip
    """Train to the end. `inputs`, of a new run, is asked once the model is there, and recorded."""
    from etude.runtime.callbacks import Callbacks, RunState
    from etude.runtime.progress import Progress
    from etude.runtime.sources import record

    kind = run_of(method)
    assert options.steps is not None
    loop, steps = kind.build(method, task, options), kind.training_steps(method, options.steps)
    if folder.checkpoint is None:
        folder.record_environment(options.seed, kind.promises(loop))  # again, now that the threads are chosen
        for sentence in world_of(task).begin(loop, options):
            say(sentence, options.quiet)
    if inputs is not None:
        record(folder.path, inputs())
    say(" ".join(filter(None, (kind.sentence(loop, method, task), kind.rate(loop, method, task)))), options.quiet)
    _say_disk(folder, loop, options)
    progress = Progress(steps, loop.headline, quiet=options.quiet)
    callbacks = Callbacks(called, RunState(folder.path, loop, steps), progress.note)
    callbacks.tell("on_start")
    try:
        done = _train(folder, method, task, options, loop, progress, callbacks)
    except BaseException as error:
        callbacks.ended(str(error) or type(error).__name__)
        raise
    callbacks.ended(done.why)
    return _result(done, method, task, options)


def _train(
    folder: RunFolder, method: Method, task: Task, options: Options, loop: Loop, progress: Progress,
    callbacks: Callbacks,
) -> RunResult:  # fmt: skip
    """The evaluation before, the steps, the evaluation after."""
    from etude.runtime.run import Run

    kind, steps = run_of(method), progress.steps
    evaluated = bool(options.evaluate) and kind.acts(method) and not task.needs_reward()
    if evaluated and folder.checkpoint is None:
        callbacks.evaluated(_evaluate(folder, loop, task, options, "before"))
    if folder.step < steps:
        _forget_later(folder.path)
    sinks = [s for name in options.sinks for s in _open_sink(name, folder)]
    every = options.evaluate_every and kind.training_steps(method, options.evaluate_every)
    looks: dict[int, Look] = {}

    def look() -> Look:
        looks.clear()
        return looks.setdefault(loop.finished, world_of(task).look(loop, task, options))

    done = Run(
        folder, loop, steps, checkpoint_every=options.checkpoint_every, sinks=sinks, progress=progress,
        look=look if evaluated else None, look_every=every,
        stopping=_stopping(task, options, options.until and kind.training_steps(method, options.until)),
        callbacks=callbacks, keep=options.keep, best=_best(task, options),
    ).execute()  # fmt: skip
    if evaluated and "after" not in _load_evaluation(folder.path):
        try:
            callbacks.evaluated(_evaluate(folder, loop, task, options, "after", looks.get(done.step)))
        except KeyboardInterrupt:
            raise Interrupted(
                f"Stopped while sampling after training. The {done.step} steps are done ({done.checkpoint}); sample "
                f"again with: {folder.resume_command}",
                signal.SIGINT,
            ) from None
    return done


def _result(done: RunResult, method: Method, task: Task, options: Options) -> Result:
    """What the run left behind, its page among it."""
    from etude.evaluation.report import write_report
    from etude.loops.differences import never_differed

    write_report(done.folder, world_of(task).WORDING)
    flat = never_differed(JsonLines.read(done.folder / "metrics.jsonl"))
    scores = _load_evaluation(done.folder)
    notes = [sentence for sentence in (done.why, flat) if sentence]
    return Result(
        done.folder, method.id, task.id, done.step, done.seconds, done.checkpoint, scores, notes,
        best_evaluation(done.folder, options.stop_when),
    )  # fmt: skip


def best_evaluation(folder: Path, stop_when: str | None) -> Best | None:
    """Of a run with `evaluate_every`; by the metric that patience waits for, else by the first."""
    path = folder / "evaluations.jsonl"
    if not path.is_file():
        return None
    return best_by(list(JsonLines.read(path)), None if stop_when is None else parse_stop(stop_when))


def _stopping(task: Task, options: Options, until: int | None = None) -> Stopping:
    """When the run ends before its last step. Raises ConfigError for an evaluation that is not made on the way."""
    when = None if options.stop_when is None else parse_stop(options.stop_when)
    metrics, (split, *others) = world_of(task).measured(task, options)
    evaluated = {f"{split}/{metric}" for metric in metrics}
    if when is not None and (elsewhere := when.name.partition("/")[0]) in others:
        raise ConfigError(
            f"Evaluations in between are of {split}: stop at {split}/..., or --evaluate-split {elsewhere}."
        )
    if when is not None and when.name in evaluated and options.evaluate_every is None:
        raise ConfigError(f"{when.name} is known after an evaluation: say how often with --evaluate-every N.")
    return Stopping(when, options.minutes, evaluated if options.evaluate_every else (), until)


def _best(task: Task, options: Options) -> Kept | None:
    """Which checkpoint stays for what it scored. Raises ConfigError for a metric that no evaluation on the way has."""
    if options.keep_best is None:
        return None
    metrics, splits = world_of(task).measured(task, options)
    known = [f"{splits[0]}/{metric}" for metric in metrics]
    if options.keep_best not in known:
        raise UnknownNameError(
            "metric to keep the best by", options.keep_best, known, f"There are: {', '.join(known)}."
        )
    if options.evaluate_every is None:
        raise ConfigError(f"{options.keep_best} is known after an evaluation: say how often with --evaluate-every N.")
    return Kept(options.keep_best)


def _say_disk(folder: RunFolder, loop: Loop, options: Options) -> None:
    """How much the checkpoints will take, with a warning if the disk has less."""
    from etude.runtime import disk

    if size := getattr(loop, "checkpoint_bytes", 0):
        count = options.keep + (options.keep_best is not None)
        say(disk.sentence(folder.path, size, count), options.quiet)


def _open_sink(name: str, folder: RunFolder) -> list[Any]:
    """The sink, or nothing and a sentence if it cannot be used: that never stops a run."""
    from etude.core.errors import MissingExtraError
    from etude.runtime.sinks import open_sinks

    try:
        return list(open_sinks([name], folder.path, folder.config, folder.step, say))
    except MissingExtraError as error:
        say(f"{error}. The run goes on without it; metrics.jsonl has all its metrics.")
        return []


def _evaluate(
    folder: RunFolder, loop: Loop, task: Task, options: Options, when: str, known: Look | None = None
) -> dict[str, dict[str, float]]:
    """Evaluate, and add what came out to `evaluation.json`; returns it by split."""
    scores = _load_evaluation(folder.path)
    measured = world_of(task).evaluation(loop, task, options, when, known)
    scores[when] = measured.scores
    scores.setdefault("samples", {})[when] = measured.samples
    scores.setdefault("solved", {})[when] = measured.solved
    _save_evaluation(folder.path, scores)
    return {split: {k: v["value"] for k, v in found.items()} for split, found in measured.scores.items()}


def _forget_later(folder: Path) -> None:
    """Take out what was sampled at an earlier end."""
    scores = _load_evaluation(folder)
    if scores.pop("after", None) is not None:
        _save_evaluation(folder, scores)


def _load_evaluation(folder: Path) -> dict[str, Any]:
    path = folder / "evaluation.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _save_evaluation(folder: Path, scores: dict[str, Any]) -> None:
    from etude.runtime import disk

    disk.replace_file(folder / "evaluation.json", json.dumps(scores, indent=1).encode())


def _with(written: Mapping[str, Any], rewards: Scoring) -> dict[str, Any]:
    """A method as it was written down, with the functions that its rewards had, in their order."""
    functions = several.unnamed(rewards) or ()
    wanted = [r for r in written["rewards"] if r["part"] == CallableReward.name]
    if len(functions) != len(wanted):
        raise ConfigError(
            f"The run had {len(wanted)} rewards that only lived in Python, and was given {len(functions)}."
        )
    left = iter(functions)
    own = [{**r, "function": next(left)} if r in wanted else r for r in written["rewards"]]
    return {**written, "rewards": own}
