"""Runs of control: who is trained together, what is played before and after, what is asked of a checkpoint."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from etude.core.control import ControlTask
from etude.core.errors import ConfigError, DataError
from etude.core.method import Method
from etude.core.worlds import World
from etude.evaluation.report import Wording
from etude.runs.playing import LATEST, Plays
from etude.runs.training import Options, Result
from etude.runs.worlds import OF_LANGUAGE, EvaluationOptions, Measured, parent
from etude.runs.worlds.members import SEEDS, members
from etude.runs.worlds.returns import intervals, played, plays_of
from etude.runtime.looks import Look
from etude.tasks import LOGS
from etude.tasks.control.logged import LoggedTask

if TYPE_CHECKING:
    import torch

    from etude.evaluation.intervals import Interval
    from etude.evaluation.restored import RestoredPolicies
    from etude.experience.logs.table import Logs
    from etude.loops.on_policy import OnPolicyLoop

READS = frozenset({"model", "seeds", "population", "device", "on"})
EVALUATION_READS = frozenset({"seed", "episodes", "video", "member", "data", "gamma"})
WORDING = Wording(
    budget="environment steps each",
    counter="environment_steps",
    scores="Returns with 95% intervals, of several members their interquartile means",
    leading=("return", "logged", "fqe", "weighted-importance-sampling", "doubly-robust"),
    digits=1,
    unread=tuple(sorted(OF_LANGUAGE)),
)
EVALUATED = None
"""As many episodes as a tenth of the training has room for (`runs/playing.py`)."""
POINTS = 100
"""Points of a learning curve."""


def measured(task: ControlTask, options: Options | None = None) -> tuple[list[str], list[str]]:
    """Metrics and splits of an evaluation; where nothing can be played, those that every member has.

    Of what logs say first comes what is exported, which always does what is likeliest.
    """
    if isinstance(task, LoggedTask) and task.heldout:
        return ["fqe/deterministic", "fqe"], ["logs"]
    return ["return", "return/deterministic"], ["test"]


def curve(metric: str) -> tuple[str, str, str]:
    """The return of the episodes that were trained on, which is not what an evaluation measures."""
    return "return", "training return", "environment steps of each member"


def grid(budget: int) -> list[float]:
    """The same points for methods that take environment steps in pieces of different size."""
    return [budget * (i + 1) / POINTS for i in range(POINTS)]


def budget(task: ControlTask) -> int:
    """Environment steps of each member."""
    return task.steps


def compared(task: ControlTask) -> tuple[int, int]:
    """Members and environment steps of each."""
    return SEEDS, task.steps


def suited(method: Method, task: ControlTask) -> tuple[Method, str]:
    """With `multi-input` in the place of perceptrons, and vectors normalised, where a task shows more than a vector."""
    from etude.experience.spaces import observation_shape
    from etude.policies.control.inputs import suited as suit

    environment = task.make([0], 1)
    environment.close()
    changed = suit(method, observation_shape(environment.observation_space))
    if changed == method:
        return method, ""
    paths = ", ".join(f"{path}=multi-input" for path, part in changed.parts().items() if part.name == "multi-input")
    return changed, f"{task.id} shows more than a vector: {paths} (`etude check {task.id}` says how each leaf is read)."


def prepare(method: Method, task: ControlTask, options: Options) -> None:
    """Refuse members that cannot be; make and end an environment, so that one that cannot be made is found here.

    Raises: ConfigError as said there; DataError for logs with faults, to learn from or to judge by.
    """
    members(method, options)
    _elsewhere(method, task, options)
    if isinstance(task, LoggedTask):
        judging = task.judging().logs() if task.heldout else None
        _check_reads(method, task)
        if judging is not None:
            _check_judges(judging, task.logs())
        told = {"evaluate_every": "when returns are", "evaluate": "how many episodes are"}
        for name, what in told.items():
            if getattr(options, name) and "between" not in task.evaluated():
                raise ConfigError(f"{name} says {what} played. {task.needs_reward()}")
    task.make([0], 1).close()


def _check_reads(method: Method, task: LoggedTask) -> None:
    """Read logs. Raises DataError with all that is wrong with them, ConfigError for a method that looks at none, or
    that does not take such actions."""
    from etude.runs.actions_of_logs import check_takes

    if not getattr(method.slots().get("experience"), "reads_logs", False):
        alone = " or say --set experience=logged exploration=none," if "exploration" in method.slots() else ""
        raise ConfigError(
            f"{method.id} acts, and would not read the logs in {task.data}: leave --data out,{alone} or take a method "
            "that learns from logs (bc, td3-bc, iql)."
        )
    check_takes(method, task.logs())


def _check_judges(judging: Logs, own: Logs) -> None:
    """Raise DataError, before anything is trained, for logs that cannot judge what is learned from the own ones."""
    from etude.evaluation.off_policy.judge import check_enough

    if judging.fingerprint == own.fingerprint:
        raise DataError(f"{judging.where} holds what is learned from: judge by logs that nothing is learned from.")
    theirs, ours = ((x.observations.shape[1:], x.actions.shape[1:]) for x in (judging, own))
    if theirs != ours:
        raise DataError(f"{judging.where} has other observations or actions than {own.where}: {theirs}, not {ours}.")
    check_enough(judging)


def arguments(method: Method, task: ControlTask, options: Options) -> dict[str, Any]:
    """The members."""
    import torch

    from etude.runtime.memory import keep_freed

    keep_freed()
    torch.set_num_threads(options.threads or 1)
    torch.backends.cudnn.allow_tf32 = False  # convolutions in float32, too: acting and learning agree to its rounding
    return {"members": members(method, options), **_elsewhere(method, task, options)}


def _elsewhere(method: Method, task: ControlTask, options: Options) -> dict[str, torch.device]:
    """The device that was asked for, if it is not the CPU, as its loop takes it.

    Raises: ConfigError for one that is not here, that has no float64, or that the loop cannot use.
    """
    from etude.loops import loop_class
    from etude.policies.loading import choose_device

    if options.device in ("auto", "cpu"):  # networks of control are small
        return {}
    if options.device.startswith("mps"):
        raise ConfigError("device must be 'cpu' or 'cuda' in control, whose moments are float64; got 'mps'.")
    loop = loop_class(type(method), task.world)
    if "device" not in inspect.signature(loop).parameters:
        raise ConfigError(f"{loop.__name__} trains on the CPU alone: leave --device out.")
    return {"device": choose_device(options.device)}


def begin(loop: OnPolicyLoop, options: Options) -> list[str]:
    """Give the members the policies of another run, if that was asked for."""
    from etude.runs.warm import take_over

    return [] if options.model == Options.model else take_over(loop, Path(options.model))


def size(loop: OnPolicyLoop, method: Method, task: ControlTask) -> str:
    """How many members, of how many parameters."""
    count = loop.population.size
    settings = len({m.label for m in loop.population.members})
    seeds = f"{count // settings} seeds" + (f" of {settings} settings" if settings > 1 else "")
    return f"{count} members ({seeds}) of {loop.trained:,} parameters each"


def rate(loop: OnPolicyLoop, method: Method) -> str:
    """The usual one in control."""
    from etude.optimizers.adam import CONTROL_RATE, rate_sentence

    return rate_sentence(method.slots().get("optimizer"), CONTROL_RATE, "the usual one in control")


def evaluation(
    loop: OnPolicyLoop, task: ControlTask, options: Options, when: str, known: Look | None = None
) -> Measured:
    """Returns of sampled and of likeliest actions, over members, by setting where there are several; what logs say of
    the members where nothing can be played."""
    from etude.runs.judging import judged_members
    from etude.runs.training import say

    if isinstance(task, LoggedTask) and task.environment is None:
        return Measured({"logs": {k: v.to_json() for k, v in judged_members(loop, task, options).items()}})
    if known is None:
        chosen = plays_of(loop, options)
        say(chosen.sentence(when), options.quiet)
        returns = played(loop, task, chosen, "test", options.quiet)
    else:
        returns = known.found
    return Measured({"test": {k: v.to_json() for k, v in intervals(loop, returns).items()}})


def look(loop: OnPolicyLoop, task: ControlTask, options: Options) -> Look:
    """Mean returns of every member, of sampled and of likeliest actions."""
    import numpy as np

    from etude.evaluation.intervals import bootstrap_interval, mean

    returns = played(loop, task, plays_of(loop, options), "test", quiet=True)
    means = {k: np.nanmean(v, 1) for k, v in returns.items()}
    bands = {k: bootstrap_interval(v, mean) for k, v in means.items()} if loop.population.size > 1 else {}
    ends = {k: [i.low, i.high] for k, i in bands.items()}
    return Look({"test": {k: v.tolist() for k, v in means.items()}}, ends, returns)


# A checkpoint


def restore(checkpoint: str, config: Mapping[str, Any], task: ControlTask) -> RestoredPolicies:
    """The actors. Raises ConfigError if they were trained on other observations or actions."""
    import torch

    from etude.evaluation.restored import restore_policies
    from etude.runtime.checkpoints import load_json
    from etude.runtime.sources import opened

    place = Path(checkpoint)
    if not (place / "policy.safetensors").is_file():
        raise ConfigError(f"{checkpoint} is no run of control, and {task.id} is a task of control.")
    inside = place / "method.json"  # in a recipe's checkpoint, of the run that it comes from
    method = Method.from_json(load_json(inside) if inside.is_file() else opened(place.parent.parent).method)
    known = {k: v for k, v in config.items() if k in {f.name for f in dataclasses.fields(Options)}}
    options = Options(**{**known, "population": tuple(known["population"]), "sinks": ()})
    torch.set_num_threads(options.threads or 1)
    return restore_policies(place, method, task, members(method, options))


def evaluate(
    checkpoint: str, config: Mapping[str, Any], task: ControlTask, options: EvaluationOptions
) -> dict[str, dict[str, Interval]]:
    """Play whole episodes with every member of a trained run; with `data` judge one of them from logs too.

    Returns: {'test': {'return' or 'return/deterministic', by setting if several: Interval over members},
        'logs': {estimator: Estimate of the member}}.
    """
    if options.member and options.video is None and options.data is None:
        raise ConfigError(
            "--member says whose episode a picture shows, or whom logs judge: give --video or --data too, or leave it "
            "out."
        )
    if options.data is not None:
        from etude.runs.judging import judged

        return judged(checkpoint, config, task, options)
    if options.gamma is not None:
        raise ConfigError("--gamma is of what is estimated from logs: give --data too, or leave it out.")
    return {"test": played_returns(restore(checkpoint, config, task), task, options)}


def played_returns(policies: RestoredPolicies, task: ControlTask, options: EvaluationOptions) -> dict[str, Interval]:
    """Returns of sampled and of likeliest actions."""
    if options.video is not None:
        from etude.evaluation.animation import animate
        from etude.runs.training import say

        total = animate(policies, task, Path(options.video), options.member, options.seed)
        say(f"{options.video}: an episode of member {options.member} with a return of {total:.1f}.")
    size = policies.population.size
    chosen = Plays([options.episodes] * size, [LATEST] * size)
    returns = played(policies, task, chosen, f"evaluate {options.seed}", quiet=False)
    return intervals(policies, returns)


def about(options: EvaluationOptions) -> str:
    """How many episodes."""
    if options.data is not None:
        return f"member {options.member} judged from {options.data}"
    return f"{options.episodes} episodes of each member"


def export(checkpoint: str, config: Mapping[str, Any], out: Path, member: int, merge: bool) -> None:
    """Write a member's policy, with its normaliser, as a `torch.export` program."""
    from etude.evaluation.export import export_policy
    from etude.runs.training import compose_task

    if merge:
        raise ConfigError(f"--merge is for adapters of language models, and {checkpoint} is a run of control.")
    goal = compose_task(config["task"], config["task_fields"])
    assert isinstance(goal, ControlTask)
    export_policy(restore(checkpoint, config, goal), member, out)


# For people


def preview(task: ControlTask, split: str | None, count: int) -> Iterable[str]:
    """Spaces and budget; there are no problems to show."""
    environment = task.make([0], 1)
    yield f"{task.id}: one step of control at a time"
    yield f"  observations  {environment.observation_space}\n  actions       {environment.action_space}"
    yield f"  budget        {task.steps:,} environment steps"
    environment.close()


BESIDE_LOGS = {"bc": "td3-bc", "bc-discrete": "cql-discrete", "cql-discrete": "bc-discrete"}
"""What a method that learns from logs is compared with; others with `bc`, which imitates them."""


def suggestions(done: Result, method: str, config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """More episodes, or what logs say, and a comparison with the method's parent, or with another where it has none."""
    task, folder = quote(str(config["task"])), quote(str(done.folder))
    own = {f.partition("=")[0]: f.partition("=")[2] for f in config.get("task_fields", ())}
    logs = {name: own[f"task.{name}"] for name in ("data", "heldout", "columns") if f"task.{name}" in own}
    if logs:
        commands = [(f"etude evaluate {folder} --data LOGS", "what logs that it has not seen say that it earns")]
        other = BESIDE_LOGS.get(method, "bc")
        more = "".join(f" --{name} {quote(said)}" for name, said in logs.items())
    else:
        commands = [(f"etude evaluate {folder} --episodes 100", "how good it is over more episodes")]
        other, more = parent(done.folder, World.CONTROL, method) or ("ppo" if method == "a2c" else "a2c"), ""
    if not task.startswith("'<") and (task != LOGS or "heldout" in logs):
        line = f"etude compare {other} {quote(method)} --task {task}{more} --seeds {SEEDS}"
        commands.append((line.replace(f" --task {LOGS}", ""), "which of the two is better, with statistics"))
    return commands
