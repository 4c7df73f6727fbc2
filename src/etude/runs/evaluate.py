"""The verb evaluate: how good the policy of a checkpoint is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.edit import assignments
from etude.core.errors import ConfigError
from etude.core.task import Task
from etude.policies import bases
from etude.policies.loading import BUILT_IN
from etude.rewards.several import only_python
from etude.runs import given, shorthands
from etude.runs.saved import locate
from etude.runs.training import compose_task, options_of
from etude.runs.worlds import EvaluationOptions, WorldOf, check_evaluation, world_of

if TYPE_CHECKING:
    from etude.evaluation.intervals import Interval


def evaluate(
    checkpoint: Any,
    task: Any = None,
    *,
    tokenizer: object = None,
    set: str | Sequence[str] | Mapping[str, Any] = (),
    **options: object,
) -> dict[str, dict[str, Any]]:
    """How good a policy is, with bootstrap intervals.

    Of a language model pass@k, avg@k and maj@k, over problems; of a run of control the return of sampled and of
    likeliest actions, interquartile means over members.

    Args:
        checkpoint: a run folder (its newest checkpoint), a checkpoint folder, or any causal LM by name or path, or one
            that transformers loaded, with its `tokenizer`. Several in a list: adapters over one base share it.
        task: by default the one the run was trained on; all that `etude.train` takes.
        set: fields of the task, as in `{"task.levels": (3,)}`.
        options: see `etude.runs.worlds.EvaluationOptions`: k, problems, split, reward, temperature, episodes, ...
            Also columns, answer, chat, ..., as in `etude.train`. With `data` a policy of control is judged from logs.

    Returns: {split: {metric: Interval}}; of several, that by checkpoint, and with axes by 'B - A' for each pair: what B
        is worth more than A, problem by problem.
    """
    data = options.pop("data", None)
    where, set = given.home(None), [*shorthands.taken(options), *assignments(set)]
    options |= {} if data is None else {"data": str(data)}
    if isinstance(checkpoint, (list, tuple)):
        goal, names = None if task is None else given.task_of(task, where), [str(c) for c in checkpoint]
        found = evaluations_of(names, goal, options_of(EvaluationOptions, options), set)
        return {name: one.scores for name, one in found.items()}
    place = given.model_of(checkpoint, tokenizer, where)
    goal = None if task is None else given.task_of(task, where)
    return evaluation_of(place, goal, options_of(EvaluationOptions, options), set).scores


HELD_OUT = ("task.heldout=", "task.gamma=")
"""Fields of a run's task that are about its own logs, and of no others that it is judged by."""


@dataclass(frozen=True)
class Evaluated:
    """Scores by split and metric, and the world that says how to speak of them."""

    scores: dict[str, dict[str, Interval]]
    world: WorldOf


def evaluations_of(
    checkpoints: Sequence[str], task: str | Task | None, options: EvaluationOptions,
    changes: str | Sequence[str] | Mapping[str, Any] = (),
) -> dict[str, Evaluated]:  # fmt: skip
    """Evaluate checkpoints one after the other, as `evaluation_of` does; a base of several adapters is loaded once.

    With axes the differences of each pair follow, the later one less the earlier, over the same problems.

    Raises: ConfigError for a video, which is of one, the same checkpoint twice, or differences over several tasks.
    """
    if len(checkpoints) > 1 and options.video is not None:
        raise ConfigError("--video is of one run: evaluate it alone.")
    if len({*checkpoints}) < len(checkpoints):
        raise ConfigError(f"Each checkpoint is evaluated once, got {', '.join(checkpoints)}.")
    if options.axes is not None and task is None:
        _check_same_task(checkpoints)
    with bases.held():
        found = {name: evaluation_of(name, task, options, changes) for name in checkpoints}
    return found if options.axes is None else found | _differences(found)


def _check_same_task(checkpoints: Sequence[str]) -> None:
    """Raise ConfigError for checkpoints that were trained on several tasks, or on several kinds of problems of one."""
    told = {name: locate(name)[1] for name in checkpoints}
    asked = {name: (config.get("task"), list(config.get("task_fields", ()))) for name, config in told.items()}
    first = checkpoints[0]
    if other := next((name for name in checkpoints if asked[name] != asked[first]), None):
        raise ConfigError(
            f"Differences are over the same problems, and {first} and {other} were not trained on the same: name one "
            "task with --task."
        )


def _differences(found: Mapping[str, Evaluated]) -> dict[str, Evaluated]:
    """What each is worth more than each before it, problem by problem."""
    from etude.evaluation.pass_at_k import paired

    return {
        f"{later} - {earlier}": Evaluated(
            {split: paired(own, found[earlier].scores[split]) for split, own in found[later].scores.items()},
            found[later].world,
        )
        for earlier, later in combinations(found, 2)
    }


def evaluation_of(
    checkpoint: str | Path,
    task: str | Task | None,
    options: EvaluationOptions,
    changes: str | Sequence[str] | Mapping[str, Any] = (),
) -> Evaluated:
    """Evaluate a checkpoint on a task, by default its own with these fields changed.

    Raises: ConfigError for a task or reward that is not known, or an option that its world has no use for.
    """
    place, config = locate(checkpoint)
    if str(checkpoint).startswith(("runs/", ".", "/")) and not Path(checkpoint).exists():
        raise ConfigError(f"There is no folder {checkpoint}.")
    if task is None and "task" not in config:
        if not (Path(checkpoint).exists() or str(checkpoint) in BUILT_IN):
            raise ConfigError(f"There is no folder {checkpoint}; of a model of the hub name the task with --task.")
        raise ConfigError(f"{checkpoint} does not say which task it was trained on: name one with --task.")
    said = {"task": (task, config.get("task")), "reward": (options.reward, only_python(config.get("reward")))}
    for what, (named, own) in said.items():
        if named is None and task is None and str(own).startswith("<"):
            raise ConfigError(
                f"{checkpoint} has the {what} {own}, which only lived in Python: give it again, as in "
                f"etude.evaluate({str(checkpoint)!r}, {what}={given.spoken(str(own))})."
            )
    fields, reward = assignments(changes), options.reward
    if task is None:
        task, reward = config["task"], config.get("reward") if reward is None else reward
        own = config.get("task_fields", ())
        fields = [*(f for f in own if options.data is None or not f.startswith(HELD_OUT)), *fields]
    if options.data is not None:
        fields = [*_columns(config, fields), *fields, f"task.data={options.data}"]
    goal = compose_task(task, fields, reward)
    check_evaluation(options, goal)
    world = world_of(goal)
    return Evaluated(dict(world.evaluate(place, config, goal, replace(options, reward=reward))), world)


def _columns(config: Mapping[str, Any], fields: Sequence[str]) -> list[str]:
    """What a run called the columns of its logs, where nothing else is said: those of others are called the same."""
    if any(field.startswith("task.columns=") for field in fields):
        return []
    return [field for field in config.get("task_fields", ()) if field.startswith("task.columns=")]
