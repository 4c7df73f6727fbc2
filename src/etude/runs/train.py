"""The verbs train and resume: from names to a finished folder, in one session or several."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.core.edit import assignments
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.method import Method
from etude.core.task import Task
from etude.rewards import several
from etude.rewards.function import CallableReward
from etude.rewards.several import Scoring
from etude.runs import calling, given, presets, shorthands
from etude.runs.config import FILE, merged, to_toml
from etude.runs.kinds import check_options, run_of
from etude.runs.logs import same_data
from etude.runs.session import prepare, run
from etude.runs.suiting import suited_method
from etude.runs.training import (
    Options,
    Result,
    compose_task,
    of,
    of_method,
    options_of,
    say,
    with_adapter,
)
from etude.runs.warm import after, start_of
from etude.runs.worlds import world_of
from etude.tasks import LOGS


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
            `datasets.Dataset`, or either by split. 'compose' by default; with `data`, logs alone.
        set: fields by path, `{"optimizer.lr": 3e-4}` or `["optimizer.lr=3e-4"]`; `task.FIELD` sets the task's.
        with_: parts or methods to stack on the method.
        reward: 'module:function', 'file.py:function', or a Python function over completions; several in a list, with
            weights as in ['a.py:f=1.0', 'b.py:g=0.2'] or [(f, 1.0), (g, 0.2)].
        config: a file that says all this by the same names, as every run writes one (run.toml); what is given wins.
        callbacks: objects or classes with `on_step`, `on_evaluation`, ... (`etude.Callback`), or 'my.py:Slack'.
        options: see `etude.runs.training.Options`: model, steps, seed, out, evaluate, adapter, device, ...; a model
            that transformers loaded serves with its `tokenizer`. Also data, heldout (logs), columns, answer,
            chat, system, template_arguments, tools, skip_bad_rows and stream, which are fields of a task.

    Rows and loaded models are written to `given/` beside the run, and so have a name. What else has none (an
    environment of a notebook) is kept as its source, and `resume` asks for it.

    Raises: EtudeError, a sentence that says what was wrong and what to do.
    """
    own = {"method": method, "task": task, "set": set, "with": with_, "reward": reward, "callbacks": callbacks}
    told: dict[str, Any] = {k: v for k, v in own.items() if _said(v)} | options
    if config is not None:
        told = merged(config, told)
    listed = told.get("callbacks", ())
    called, told["callbacks"] = calling.made(listed), calling.names(listed)
    return _start(_of_told(told), called)


def _said(value: object) -> bool:
    """Whether something was given. Of a frame or an array `!= ()` would be asked by elements."""
    return value is not None and not (isinstance(value, tuple) and not value)


def composed_of(config: str | Path) -> Composed:
    """What a file would train, if there is nothing against it; nothing is written.

    Raises: EtudeError, as `train` would.
    """
    composed = _of_told({k: v for k, v in merged(config, {}).items() if k != "callbacks"})
    prepare(composed.method, composed.task, composed.options)
    return composed


def _of_told(told: dict[str, Any]) -> Composed:
    """What a run is made of, from what it was told by name."""
    if told.get("data"):
        told.setdefault("task", LOGS)
    where = given.home(told.get("out"))
    if "model" in told or "tokenizer" in told:
        told["model"] = given.model_of(told.get("model", "tiny"), told.pop("tokenizer", None), where)
    fields, parts = [*shorthands.taken(told), *assignments(told.pop("set", ()))], told.pop("with", ())
    asked = Asked(
        told.pop("method", "grpo"), given.task_of(told.pop("task", "compose"), where), told.pop("reward", None),
        tuple(fields), (parts,) if isinstance(parts, str) else tuple(parts),
    )  # fmt: skip
    return _compose(asked, options_of(Options, told))


@dataclass(frozen=True)
class Asked:
    """What a run was asked for: names or things, fields to set, parts to stack."""

    method: str | Method
    task: str | Task
    reward: Scoring | None
    fields: tuple[str, ...]
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Composed:
    """What a run is made of, before anything is written.

    Args:
        notes: sentences about how it begins.
    """

    method: Method
    task: Task
    options: Options
    asked: Asked
    preset: presets.Preset | None
    notes: tuple[str, ...] = ()


def _compose(asked: Asked, chosen: Options) -> Composed:
    """Method, task and options of a run that fit each other."""
    goal = compose_task(asked.task, of("task", asked.fields), asked.reward)
    preset = _preset(asked.method, goal, asked.reward, chosen)
    begun = asked.method if preset is None else preset.onto(goal.world)
    composed, suited = suited_method(begun, of_method(asked.fields), asked.parts, asked.reward, goal)
    chosen = with_adapter(chosen, of("adapter", asked.fields))
    check(composed, goal)
    check_options(chosen, composed, goal)
    world = world_of(goal)
    notes = [suited] if suited else []
    if chosen.after is not None:
        chosen = after(chosen, composed)
    elif chosen.model != Options.model:
        start, begins = start_of(chosen.model, goal.world)
        chosen = dataclasses.replace(chosen, model=start)
        notes = [*begins, *notes]
    evaluate = world.EVALUATED if chosen.evaluate is None else chosen.evaluate
    steps = chosen.steps or (run_of(composed).budget(composed, goal) if preset is None else preset.steps)
    chosen = run_of(composed).timed(composed, goal, dataclasses.replace(chosen, steps=steps, evaluate=evaluate))
    return Composed(composed, goal, chosen, asked, preset, tuple(notes))


def _start(made: Composed, called: Sequence[Any]) -> Result:
    """Make the folder of a run, with all that it was told, and train."""
    prepare(made.method, made.task, made.options)
    from etude.policies.loading import is_shipped, named
    from etude.runtime import disk, sources
    from etude.runtime.folder import RunFolder, default_name

    method, goal, chosen, asked, preset = made.method, made.task, made.options, made.asked, made.preset
    where = Path(chosen.out) if chosen.out else default_name(method.id, goal.id, chosen.seed)
    name, own_fields = (asked.task, []) if isinstance(asked.task, str) else given.named(asked.task)
    config = {
        **dataclasses.asdict(chosen),
        "out": str(where),
        "callbacks": calling.lasting(chosen.callbacks),
        "task": name,
        "task_fields": [*own_fields, *of("task", asked.fields)],
        "reward": several.text(asked.reward),
        "world": goal.world,
        **({} if preset is None else {"began_with": f"{preset.name}@{preset.fingerprint}"}),
    }
    code = [s for s in (asked.method, *asked.parts) if isinstance(s, str)]
    model = named(chosen.model) if "model" in world_of(goal).READS and not is_shipped(chosen.model) else ""
    new = not where.exists()
    noted = {} if preset is None else {"preset": preset.record(goal.world)}
    with RunFolder.create(where, {**method.to_json(), **noted}, config) as folder:
        disk.remove(where / "evaluation.json")  # of a run that was killed before it started
        repeats = _repeats(where, asked.method, config, asked.parts, [*own_fields, *asked.fields], chosen, preset)
        disk.replace_file(where / FILE, repeats.encode())
        lost = {
            "task": (config["task"], asked.task),
            "reward": (several.only_python(config["reward"]), several.unnamed(asked.reward)),
        }
        unnamed = {k: thing for k, (said, thing) in lost.items() if str(said).startswith("<")}
        given.keep_sources(where, unnamed)
        for sentence in (*made.notes, *goal.warnings()):
            say(sentence)
        if preset is not None:
            say(preset.sentence(chosen.steps == preset.steps), chosen.quiet)
        try:
            return run(folder, method, goal, chosen, called, lambda: sources.of_run(method, goal, config, code, model))
        except BaseException:
            if new and not any((where / "checkpoints").glob("step-*")):
                disk.remove(where)  # nothing was trained: leave nothing behind
            raise


def _preset(method: str | Method, goal: Task, reward: Scoring | None, chosen: Options) -> presets.Preset | None:
    """What a run begins with, of a built-in method on a task that settings were measured on."""
    found = presets.preset_of(method, goal, reward) if chosen.preset else None
    if found is not None and not presets.is_for(found, goal):
        say(presets.other_fields(found), chosen.quiet)
        return None
    return found


def _repeats(
    where: Path, method: str | Method, config: Mapping[str, Any], parts: Sequence[str], fields: Sequence[str],
    chosen: Options, preset: presets.Preset | None,
) -> str:  # fmt: skip
    """The file that does this run again, whatever becomes of its preset.

    A Method of Python's is the one that the run wrote down, parts and all; so is one whose preset had parts stacked on.
    """
    task, reward = config["task"], config["reward"]
    callbacks = tuple(c for c in chosen.callbacks if not c.startswith("<"))
    chosen = dataclasses.replace(chosen, callbacks=callbacks, preset=False)
    if isinstance(method, str) and (preset is None or not parts):
        own = () if preset is None else presets.beside(preset, fields)
        stacked = parts if preset is None else preset.parts
        return to_toml(method, task, [*own, *fields], stacked, reward, chosen)
    written = str(where / "method.json") if reward is None else f"<{getattr(method, 'id', method)}>"
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
    data: str | Path | None = None,
    ranks: int | None = None,
    shard: bool | None = None,
) -> Result:
    """Go on with a run that was stopped, to the same numbers as if it never had been.

    Args:
        steps: train to this many steps instead (schedules follow the new number).
        task, reward: what the run was given in Python and has no name, once more.
        accept_changes: go on although data, models or files of your own are no longer what the run was trained with;
            the run records what changed, and at which step.
        until: end it for now after so many of its steps.
        data: the logs that it learns from, where they are to be sure: others are refused.
        ranks: how many processes take its updates from here on; None: as many as before.
        shard: whether its weights are divided among them; None: as before, where there are several.
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
        values |= {} if ranks is None else {"ranks": ranks}
        values["shard"] = config.get("shard", False) and ranks != 1 if shard is None else shard
        options = options_of(Options, values)
        method = Method.from_json(started.method if reward is None else _with(started.method, reward))
        goal = compose_task(
            config["task"] if task is None else given.task_of(task, given.home(folder)), config["task_fields"],
            config["reward"],
        )  # fmt: skip
        if data is not None:
            same_data(opened.path, goal, str(data))
        if steps is not None and (asked := run_of(method).training_steps(method, steps)) < opened.step:
            those = "" if asked == steps else f", which are {asked} of those"
            raise ConfigError(f"{folder} has {opened.step} training steps already, more than {steps} asks for{those}.")
        if options.steps != config["steps"] and not run_of(method).extends:
            raise ConfigError(
                f"{folder} is a recipe, whose steps are divided among its runs: go on with {config['steps']}, or "
                "start a new one."
            )
        prepare(method, goal, options)
        if options.steps != config["steps"]:
            opened.change_config(steps=options.steps)
        if options.ranks != config.get("ranks"):
            opened.change_config(ranks=options.ranks)
        if options.shard != config.get("shard", False):
            opened.change_config(shard=options.shard)
        called = calling.made(callbacks) or calling.again(config.get("callbacks", ()), opened.notes.append)
        return run(opened, method, goal, options, called)


def _same_threads(folder: Path) -> int | None:
    """Compute with as many threads as the run was started with: the last digits depend on it."""
    import torch

    path = folder / "environment.json"
    threads = json.loads(path.read_text()).get("threads") if path.is_file() else None
    if threads:
        torch.set_num_threads(threads)
    return threads


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
