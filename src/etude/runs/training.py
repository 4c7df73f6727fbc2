"""What a run is started with: options, a method and a task from names; and its result."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from etude.core.control import ControlTask
from etude.core.edit import assignments, part_named, set_values, stack, with_field
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Count, Ge, Positive, WholeNumber, check, parse
from etude.core.method import Method
from etude.core.part import Part, hints, part_types
from etude.core.registry import compositions, files, get_method, not_for
from etude.core.task import LanguageTask, Task
from etude.core.worlds import World
from etude.policies.adapters import NAMED, Adapter, adapter_of
from etude.policies.engines.addresses import address_of
from etude.rewards.several import Scoring
from etude.runs import shorthands
from etude.runtime.executors.places import place_of
from etude.runtime.looks import Best
from etude.runtime.sinks import SINKS
from etude.runtime.stopping import parse_stop
from etude.tasks import resolve_task


@dataclass(frozen=True)
class Options:
    """What a run is started with besides the method: the names are the command line's.

    Args:
        model: 'tiny', 'tiny-agent', 'blank:LAYERSxWIDTH', a folder, a name of the hub; or a run, whose newest whole
            checkpoint is taken, in control too: its policies, and its critic if that fits.
        steps: training steps of language, environment steps of each member in control; None: 150, or the task's.
        seeds: members of a population in control, with seeds from `seed` on; None: 10.
        population: fields that differ between members, as in 'optimizer.lr=1e-4,3e-4' (control).
        after: a run to go on from, in a folder of one's own: with its optimizer, its reference and all that its parts
            have counted, its model, its seed, from its step on; `steps` are counted from its first.
        anew: what of that begins anew all the same: 'optimizer', 'reference'.
        out: the run's folder; None chooses `runs/<method>-<task>-<seed>`.
        evaluate: problems per split, or episodes per member, sampled before and after training; None: 100, in control
            5 to 20, as a tenth of the training steps has room for; 0 for none.
        evaluate_samples: completions of each of those problems (language).
        evaluate_split: only this split; None: all that are not trained on (language).
        evaluate_temperature: of those completions; at 0 each problem has one, the greedy one, and the metrics are named
            apart, as 'pass@1/greedy' (language).
        evaluate_judge: these evaluations also say how well it judges given solutions: 'plain', or 'self-ref' with a
            solution of its own in view; `judge/f1` of the first wrong step among them (language).
        evaluate_every: also evaluate on the first of these splits each time after so many training steps (in control
            environment steps of each member): lines of `evaluations.jsonl`. None: only before and after.
        stop_when: end the run before its last step once this holds: 'test/pass@1 > 0.9' of those evaluations (in
            control the mean over members), 'reward >= 0.8' of a training step; or once nothing improves, as in 'no
            better test/pass@1 in 5' evaluations, 'no lower loss in 20' steps.
        minutes: end it after so many minutes of a session.
        until: end it for now after so many of `steps`, by which its schedules go; `--resume` goes on.
        keep: how many checkpoints stay, the newest.
        keep_best: a metric of those evaluations, 'test/pass@1': the checkpoint with the highest stays beside them.
        adapter: train a low-rank adapter: 'lora', 'rslora', 'dora', or an `Adapter`; `set` reaches its fields
            (adapter.rank=8).
        threads: CPU threads; None: one for small models, all cores for others.
        on: where episodes are sampled: 'local', in this process; 'processes', in a process beside it, or several as in
            'processes:2'; 'ray:8', on the machines of a Ray cluster, that of RAY_ADDRESS or as in 'ray:8@HOST:PORT'
            (language); in control 'hogwild:2', workers that step on the same numbers without locks.
        bound: how many training steps old rows may be when they are learned from; samplers go on so far ahead of the
            updates. 0: each step waits for rows of its own weights (language). None: as the method says.
        engine: who samples the tokens of training, 'native:http://127.0.0.1:8000' or vLLM or SGLang there (language);
            None: the policy itself.
        ranks: how many processes take each update together, each on a part of the rows; None: this one alone
            (language).
        shard: divide the weights of what is trained among them, with gradients and moments (language).
        callbacks: what is told how the run goes, as 'my.py:Slack' (see `etude.runtime.callbacks`).
        preset: begin with the settings that `configurations/` has for this method on this task, if it has any.
    """

    model: str = "tiny"
    steps: Count | None = None
    seed: WholeNumber = 0
    seeds: Count | None = None
    population: tuple[str, ...] = ()
    after: str | None = None
    anew: tuple[Literal["optimizer", "reference"], ...] = ()
    out: str | None = None
    evaluate: WholeNumber | None = None
    evaluate_samples: Count = 8
    evaluate_split: str | None = None
    evaluate_temperature: Annotated[float, Ge(0)] = 1.0
    evaluate_judge: Literal["plain", "self-ref"] | None = None
    evaluate_every: Count | None = None
    stop_when: str | None = None
    minutes: Positive | None = None
    until: Count | None = None
    checkpoint_every: Count | None = None
    keep: Count = 2
    keep_best: str | None = None
    micro_tokens: Count | None = None
    adapter: Adapter | None = None
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    autocast: bool = False
    gradient_checkpointing: bool = False
    threads: Count | None = None
    on: str = "local"
    bound: WholeNumber | None = None
    engine: str | None = None
    ranks: Count | None = None
    shard: bool = False
    sinks: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()
    preset: bool = True
    quiet: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "adapter", adapter_of(self.adapter))
        for name, hint in get_type_hints(Options, include_extras=True).items():
            object.__setattr__(self, name, check(name, hint, getattr(self, name)))
        for sink in self.sinks:
            if sink not in SINKS:
                raise UnknownNameError("sink", sink, SINKS)
        if self.evaluate_every is not None and self.evaluate == 0:
            raise ConfigError("evaluate_every says when, and evaluate=0 that nothing is evaluated: leave one out.")
        if self.evaluate_judge is not None and self.evaluate == 0:
            raise ConfigError("evaluate_judge is measured in evaluations, and evaluate=0 makes none: leave one out.")
        if self.evaluate_temperature == 0 and self.evaluate_samples != Options.evaluate_samples:
            raise ConfigError(
                "evaluate_temperature=0 takes one completion of each problem: leave out evaluate_samples."
            )
        place_of(self.on)
        if self.engine is not None:
            address_of(self.engine)
        if self.shard and (self.ranks or 1) == 1:
            raise ConfigError(
                "shard divides the weights among ranks, and there is one alone: give ranks of at least two "
                "(--ranks 2 --shard), or leave it out."
            )
        if self.stop_when is not None:
            parse_stop(self.stop_when)
        if self.anew and self.after is None:
            raise ConfigError("anew says what of the run after which this one goes on begins anew: give after=RUN.")


EVERYWHERE = frozenset({
    "steps", "seed", "after", "anew", "out", "evaluate", "evaluate_every", "stop_when", "minutes", "until",
    "checkpoint_every", "keep", "keep_best", "threads", "sinks", "callbacks", "preset", "quiet",
})  # fmt: skip
"""Options that every run reads."""


@dataclass
class Result:
    """What a run left behind.

    Args:
        evaluation: {'before': {split: {metric: Interval JSON}}, 'after': ...}; empty if nothing was sampled.
        notes: sentences about what went wrong without stopping the run.
        best: the best evaluation, of a run with `evaluate_every`.
    """

    folder: Path
    method: str
    task: str
    steps: int
    seconds: float
    checkpoint: Path
    evaluation: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    best: Best | None = None

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Every line of `metrics.jsonl`."""
        from etude.runtime.jsonl import JsonLines

        return list(JsonLines.read(self.folder / "metrics.jsonl"))

    def score(self, metric: str = "pass@1", split: str = "test", when: str = "after") -> float:
        """One number of the evaluation; of control, 'return' (sampled actions) or 'return/deterministic'."""
        measured = self.evaluation[when][split]
        if metric not in measured:
            raise UnknownNameError(
                f"metric of the split {split}", metric, measured, f"There are: {', '.join(measured)}."
            )
        return float(measured[metric]["value"])


T = TypeVar("T")


def options_of(kind: type[T], values: Mapping[str, Any]) -> T:
    """Options by name. Raises UnknownNameError, with the closest, for one that there is not."""
    names = list(get_type_hints(kind))
    for key in values:
        if key not in names:
            raise UnknownNameError("option", key, names, f"There are: {', '.join(names)}.")
    return kind(**{k: str(v) if isinstance(v, Path) else v for k, v in values.items()})


OUTSIDE = ("task", "adapter")
"""What `set` reaches that is no slot of a method."""


def of_method(fields: Sequence[str]) -> list[str]:
    """The assignments to fields of the method."""
    return [f for f in fields if f.partition(".")[0] not in OUTSIDE]


def of(what: str, fields: Sequence[str]) -> list[str]:
    """The assignments to fields of the task, or of the adapter."""
    return [f for f in fields if f.startswith(f"{what}.")]


def with_adapter(options: Options, fields: Sequence[str]) -> Options:
    """The options with fields of the adapter set, of LoRA where no other was asked for (`adapter.rank=8`).

    Raises: UnknownNameError for a field that it does not have, ConfigError for a value that it cannot have.
    """
    chosen = options.adapter or NAMED["lora"]
    for change in fields:
        name, equals, text = change.removeprefix("adapter.").partition("=")
        if not equals:
            raise ConfigError(f"--set takes PATH=VALUE, as in adapter.rank=8; got {change!r}.")
        if name not in hints(Adapter):
            raise UnknownNameError("field of Adapter", name, hints(Adapter), f"It has: {', '.join(hints(Adapter))}.")
        chosen = chosen.replace(**{name: parse(f"Adapter.{name}", hints(Adapter)[name], text)})
    return replace(options, adapter=chosen) if fields else options


def compose_method(
    method: str | Method,
    changes: Sequence[str] | Mapping[str, Any] = (),
    parts: str | Sequence[str] = (),
    reward: Scoring | None = None,
    world: World = World.LANGUAGE,
) -> Method:
    """The method that a run trains in a world: with parts stacked, fields set, the user's reward.

    Whether a task fits it is for `core.fit.check` to say.

    Raises: EtudeError for a name, a field or a value that does not fit, and for parts that contradict each other.
    """
    composed = get_method(method, world) if isinstance(method, str) else method
    if world not in composed.worlds:
        raise ConfigError(_of_another_world(composed, world))
    composed = stack(composed, parts)
    if reward is not None and world == World.CONTROL:
        raise ConfigError(
            "--reward is a function over completions, and in control the environment rewards: change it there, or take "
            "a part that changes what is learned from, as in --with normalize-rewards (`etude parts rewards`)."
        )
    if reward is not None and "rewards" not in composed.slot_names():
        raise ConfigError(
            f"{composed.id} is a {type(composed).__name__}, which has no rewards of its own: set those of the methods "
            "that it trains, as in --set rewards=my_rewards.py:score."
        )
    if reward is not None:
        from etude.core.slots import TokenReward
        from etude.rewards.several import reward_parts

        kept = tuple(
            p for p in composed.slots()["rewards"] if not (isinstance(p, TokenReward) and p.name == "task-reward")
        )
        composed = composed.replace(rewards=(*reward_parts(reward), *kept))
    composed = set_values(composed, changes)
    composed.check()
    return composed


def _of_another_world(method: Method, world: World) -> str:
    """Why a Method object does not fit, and how to get the composition that does, if there is one of its name."""
    if method.id in files("methods") and any(world in m.worlds for m in compositions(method.id)):
        return (
            f"This {method.id} is a {type(method).__name__}, for tasks of {' and '.join(sorted(method.worlds))}; the "
            f'one for {world} is etude.method("{method.id}", world="{world}").'
        )
    return not_for(method.id, [method], world)


def compose_task(
    task: str | Task, changes: Sequence[str] | Mapping[str, Any] = (), reward: Scoring | None = None
) -> Task:
    """The task with fields set (`task.levels=2,3`); with a reward function a file needs no answers."""
    composed, listed = resolve_task(task) if isinstance(task, str) else task, assignments(changes)
    if any(change.startswith("task.data=") for change in listed) and "data" not in composed.fields():
        return _with_logs(composed, listed)
    values: dict[str, Any] = {}
    for change in listed:
        name, equals, text = change.removeprefix("task.").partition("=")
        if not equals:
            raise ConfigError(f"--set takes PATH=VALUE, as in task.levels=2,3; got {change!r}.")
        name, dot, key = name.partition(".")
        if name not in hints(type(composed)):
            raise shorthands.no_field(composed.id, name, hints(type(composed)))
        if kinds := part_types(hints(type(composed))[name])[0]:
            before = values.get(name, composed.fields()[name])
            values[name] = _with_part(f"task.{name}", before, kinds[0], key, text)
            continue
        if dot:
            values[name] = _with_entry(composed, values.get(name, composed.fields()[name]), name, key, text)
            continue
        values[name] = parse(f"{composed.id}.{name}", hints(type(composed))[name], text)
    composed = composed.replace(**values) if values else composed
    return composed.replace(scored=False) if reward is not None and "scored" in composed.fields() else composed


def _with_logs(task: Task, changes: Sequence[str]) -> Task:
    """Logs of what others did in the environment of a task; other fields are the environment's."""
    if isinstance(task, LanguageTask):
        return _with_dialogues(task, changes)
    if not isinstance(task, ControlTask):
        raise ConfigError(f"--data is for logs of steps, and {task.id} is a task of {task.world}: leave it out.")
    from etude.tasks.control.logged import LoggedTask

    own = [c for c in changes if c.removeprefix("task.").partition("=")[0] in hints(LoggedTask)]
    environment = compose_task(task, [c for c in changes if c not in own])
    assert isinstance(environment, ControlTask)
    return compose_task(LoggedTask(environment=environment), own)


def _with_dialogues(task: LanguageTask, changes: Sequence[str]) -> Task:
    """Dialogues that others had in a game; other fields than `data` and `top` are the game's."""
    from etude.experience.dialogues import is_dialogues
    from etude.tasks.agents._dialogues import Dialogues

    own = [c for c in changes if c.removeprefix("task.").partition("=")[0] in ("data", "top")]
    for path in (c.partition("=")[2] for c in own if c.startswith("task.data=")):
        if Path(path).is_file() and not is_dialogues(path):
            raise ConfigError(
                f"--data for {task.id} takes JSON lines of dialogues with rewards ('segments'), which {path} is not; "
                "logs of steps are for tasks of control, and files of problems are tasks themselves (--task)."
            )
    game = compose_task(task, [c for c in changes if c not in own])
    assert isinstance(game, LanguageTask)
    return compose_task(Dialogues(game=game), own)


def _with_part(where: str, before: Part | None, kind: type[Part], key: str, text: str) -> Part | None:
    """A part that a task holds: another one, or none, or with one of its fields set."""
    if not key:
        return None if text == "none" else part_named(text, kind, where)
    if before is None:
        raise ConfigError(f"{where} is empty, so it has no field {key!r}; set the part first, as in {where}=NAME.")
    edited: Part = with_field(before, f"{key}={text}")
    return edited


def _with_entry(task: Task, before: object, name: str, key: str, text: str) -> dict[str, Any]:
    """A table of a task with one entry set, as in `task.arguments.gravity=1.6`: JSON where it is that, else text."""
    if not isinstance(before, dict):
        raise ConfigError(
            f"task.{name} of {task.id} is a value, so it has no entry {key!r}; set it as in task.{name}=VALUE."
        )
    try:
        value = json.loads({"True": "true", "False": "false", "None": "null"}.get(text.strip(), text))
    except ValueError:
        value = text.strip()
    return {**before, key: value}


def say(sentence: str, quiet: bool = False) -> None:
    """A line for the user, on stderr like the progress."""
    if not quiet:
        print(sentence, file=sys.stderr, flush=True)
