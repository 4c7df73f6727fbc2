"""Several methods on equal terms: train what is missing, side by side, then compare with statistics."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.edit import assignments
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Count, check
from etude.core.fit import check as check_fit
from etude.rewards.several import Scoring
from etude.runs import given, shorthands
from etude.runs.jobs import Job, jobs_for, run_jobs
from etude.tasks import USUAL, beside
from etude.tasks.control.logged import LoggedTask

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.core.task import Task
    from etude.evaluation.comparison import Comparison
    from etude.runs.presets import Preset
    from etude.runs.training import Options


def final_scores(jobs: Sequence[Job], metric: str, split: str) -> list[float]:
    """A number of every seed from the evaluation of finished runs. Raises ConfigError naming what there is."""
    return [score for job in jobs for score in _numbers(_final(job, metric, split))]


def _final(job: Job, metric: str, split: str) -> dict[str, Any]:
    """What the evaluation after a finished run says. Raises ConfigError naming what there is."""
    after = json.loads((job.folder / "evaluation.json").read_text())["after"]
    if split not in after or metric not in after[split]:
        there = sorted({f"{s}: {', '.join(after[s])}" for s in after})
        raise ConfigError(f"The evaluation in {job.folder} has no {metric} on {split}; it has {'; '.join(there)}.")
    found: dict[str, Any] = after[split][metric]
    return found


def _estimated(arms: Mapping[str, Sequence[Job]], metric: str, split: str) -> dict[str, Any]:
    """What has to be known about scores that were not played but estimated from logs, as `compare_arms` takes it.

    That is what each arm's first member would have come to by each resample of the episodes, the same for all arms, and
    whose estimates mean nothing.
    """
    entries = {arm: [_final(job, metric, split) for job in jobs] for arm, jobs in arms.items()}
    draws = {arm: each[0].get("resamples", []) for arm, each in entries.items()}
    if not all(draws.values()):
        return {}
    doubts = {arm: each[0]["reason"] for arm, each in entries.items() if each[0]["reason"]}
    note = (
        f"Scores are estimates from logs; intervals hold chance in seeds and, by {len(next(iter(draws.values())))} "
        "resamples of the episodes, in the logs, and not what is wrong with Q (docs/how-much-to-believe.md)."
    )
    return {"shared": draws, "doubts": doubts, "notes": [note]}


def evaluations(jobs: Sequence[Job], metric: str, split: str, at: Sequence[float]) -> list[list[float]]:
    """A number of every seed when it was evaluated before, during and after training; nan where it was not.

    Args:
        at: [points] in the unit of the budget; values in between are interpolated, where an arm's training steps are of
            another size.
    """
    import numpy as np

    pairs: list[list[float]] = []
    for job in jobs:
        steps, members = _evaluated(job, metric, split)
        pairs += [np.interp(at, steps, values).tolist() for values in members]
    return pairs


def _evaluated(job: Job, metric: str, split: str) -> tuple[list[float], list[list[float]]]:
    """When a run was evaluated, [points] from 0 to its budget, and what each of its seeds came to, [seeds, points]."""
    from etude.runtime.jsonl import JsonLines

    sides = json.loads((job.folder / "evaluation.json").read_text())
    trained, looks = (
        list(JsonLines.read(path)) if (path := job.folder / f"{name}.jsonl").is_file() else []
        for name in ("metrics", "evaluations")
    )
    last = trained[-1]["step"] if trained else job.steps
    middle = [line for line in looks if line["step"] < last]
    before, after = (sides.get(when, {}).get(split, {}).get(metric, {}) for when in ("before", "after"))
    values = [line.get(split, {}).get(metric, math.nan) for line in middle]
    columns = [c if isinstance(c, list) else [c] for c in (_numbers(before), *values, _numbers(after))]
    seeds = max(map(len, columns))
    whole = [c if len(c) == seeds else [math.nan] * seeds for c in columns]
    steps = [0.0, *(float(line["step"]) * job.steps / last for line in middle), float(job.steps)]
    return steps, [list(row) for row in zip(*whole)]


def _numbers(entry: Mapping[str, Any]) -> list[float]:
    """What an evaluation says of every seed."""
    return [float(x) for x in entry.get("members", [entry.get("value", math.nan)])]


def curves(jobs: Sequence[Job], steps: Sequence[float], metric: str) -> list[list[float]]:
    """A metric of every seed at these steps; nan where there is none.

    In control, where methods take environment steps in pieces of different size, values in between are interpolated.
    """
    import numpy as np

    from etude.runtime.jsonl import JsonLines

    curves: list[list[float]] = []
    for job in jobs:
        lines = list(JsonLines.read(job.folder / "metrics.jsonl"))
        if not job.members:
            own = [line.get(metric) for line in lines]
            curves.append([math.nan if v is None else float(v) for v in own])
            continue
        rows = [(x.get("environment_steps", x["step"]), x["members"][metric]) for x in lines if metric in x["members"]]
        at, values = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
        curves += [np.interp(steps, at, values[:, m]).tolist() for m in range(values.shape[1])]
    return curves


def check_scored(goal: Task, reward: Scoring | None) -> None:
    """Raise ConfigError for a task that does not say how good an outcome is, where no reward function does either."""
    if reward is None and "after" not in goal.evaluated() and (sentence := goal.needs_reward()):
        sentence = goal.judged_by() if isinstance(goal, LoggedTask) else sentence
        raise ConfigError(f"Runs are told apart by what they come to in the end, and nothing says it here. {sentence}")


def say_waiting(goal: Task, quiet: bool) -> None:
    """Where runs do more than their steps, say why the bar will stand still at its end."""
    from etude.runs.training import say

    if isinstance(goal, LoggedTask) and goal.heldout:
        say("Each run is judged from the held-out logs once its steps are done; the bar waits for that.", quiet)


def _begin_arms(
    methods: Sequence[str], goal: Task, reward: str | Sequence[str] | None, preset: bool
) -> tuple[dict[str, Method], dict[str, Preset]]:
    """The method of each arm before any field is set, with its parts stacked.

    Returns: them, and the presets that they begin with, of all of them or of none.

    Raises: ConfigError unless there are two, each once, that learn in the task's world.
    """
    from etude.runs.presets import for_all
    from etude.runs.training import compose_method, say

    if isinstance(methods, str) or len(methods) < 2:
        raise ConfigError("Comparing takes at least two methods, as in: etude compare grpo dr-grpo --task compose.")
    if len(dict.fromkeys(methods)) < len(methods):
        raise ConfigError(f"A method can be compared only with others; {', '.join(methods)} has one twice.")
    begun, sentence = for_all(methods, goal, reward) if preset else ({}, "")
    if sentence:
        say(sentence)
    arms = {}
    for arm in methods:
        name, *parts = arm.split("+")
        start = begun[arm].onto(goal.world) if begun else name
        arms[arm] = compose_method(start, (), parts, reward, goal.world)
    return arms, begun


def _fields_of(arms: Mapping[str, Method], fields: Sequence[str]) -> dict[str, list[str]]:
    """What is set in each arm: without fields of a part that it does not have and another arm has, which is said.

    So one command sizes the critics of those that have one, beside a method that has none.
    """
    from etude.runs.training import say

    parts, paths = {arm: _paths(method) for arm, method in arms.items()}, [f.partition("=")[0] for f in fields]
    own: dict[str, list[str]] = {arm: [] for arm in arms}
    for item, path in zip(fields, paths, strict=True):
        part = path.rpartition(".")[0]
        having = [arm for arm in arms if part in parts[arm]]
        told = any(part == other or part.startswith(f"{other}.") for other in paths)  # the part itself is set
        for arm in arms:
            if having and arm not in having and not told:
                say(f"{arm} has no {part}: {item} is not set there.")
            else:
                own[arm].append(item)
    return own


def _paths(method: Method) -> set[str]:
    """Where its parts are, by place (rewards.0) and by name (rewards.task-reward)."""
    parts = method.parts()

    def named(path: str) -> str:
        steps = path.split(".")
        return ".".join(parts[".".join(steps[: i + 1])].name if s.isdigit() else s for i, s in enumerate(steps))

    return {*parts, *map(named, parts)}


def _set_arms(arms: Mapping[str, Method], goal: Task, fields: Mapping[str, Sequence[str]]) -> dict[str, Method]:
    """The arms with fields set. Raises: ConfigError unless all of them can be trained on the task."""
    from etude.runs.suiting import suited_method
    from etude.runs.training import of_method

    found = {arm: suited_method(method, of_method(fields[arm]), (), None, goal)[0] for arm, method in arms.items()}
    for method in found.values():
        check_fit(method, goal)
    return found


def _check_measures(arms: Mapping[str, Method], goal: Task, options: Options, metric: str, split: str) -> None:
    """Raise ConfigError unless all arms can be measured by this metric on this split; do what else may fail."""
    from etude.runs.kinds import check_options, run_of
    from etude.runs.worlds import world_of

    world = world_of(goal)
    for arm, method in arms.items():
        kind = run_of(method)
        if not kind.acts(method):
            raise ConfigError(f"{arm} trains a scorer, which samples nothing, so it has no {metric} to compare.")
        kind.check(method, goal)
        check_options(options, method, goal)
        kind.ready(method, goal, options)
    known, splits = world.measured(goal)
    if metric not in known:
        raise UnknownNameError("metric after training", metric, known, f"There are: {', '.join(known)}.")
    if split not in splits:
        raise UnknownNameError("evaluated split", split, splits, f"There are: {', '.join(splits)}.")


@dataclass
class Compared:
    """The comparison, and the files that show it."""

    comparison: Comparison
    folder: Path
    files: list[Path]
    notes: list[str]


def compare(
    methods: Sequence[str], task: Any = USUAL, *, model: Any = "tiny", tokenizer: object = None,
    seeds: int | None = None, steps: int | None = None, metric: str | None = None, split: str | None = None,
    out: Path | str = "runs", set: str | Sequence[str] | Mapping[str, Any] = (), reward: Scoring | None = None,
    workers: int | None = None, evaluate: int | None = None, evaluate_every: int | None = None, preset: bool = False,
    on: str = "local", frontier: str | None = None, quiet: bool = False, **of_task: object,
) -> Compared:  # fmt: skip
    """Train what is missing, then compare the methods' final scores and learning curves.

    Args:
        methods: names; parts stack with +, as in 'grpo+kl-to-reference'. The first is the baseline.
        task, model: all that `etude.train` takes and that has a name, or gets one; with `data` and no task logs alone,
            of which `heldout` has to say what the methods come to.
        seeds: runs of each, 3 by default; in control members of each, 10 by default.
        steps: 100 training steps by default; in control environment steps of each member (updates, from logs), by
            default the task's.
        metric, split: what is compared, from the evaluation after training; 'pass@1', in control 'return'.
        reward: the function that scores, for all of them: 'file.py:function' or 'module:function'; several in a list,
            with weights as in 'file.py:function=0.2'.
        evaluate: problems of each split, in control episodes of each member, that every run is evaluated on.
        evaluate_every: also evaluate each time after so many steps (of the unit of `steps`), for the curves; what
            learns from logs alone, and what it is compared with, every tenth of its steps where nobody says.
        preset: begin each with its settings for this task (`runs/presets.py`), and take the most steps that one of them
            asks for; where an arm has none, all are trained as published, and a sentence says so.
        on: where runs are done: 'local', or 'ray' ('ray@HOST:PORT'), on all machines of a cluster.
        frontier: a field and its values, 'rewards.kl-penalty.coefficient=0.01,0.05,0.2': each method is run with each
            of them, and they are compared at equal KL divergence from the start (`evaluation/frontiers.py`).
        of_task: data, heldout, columns, answer, chat, ..., as in `etude.train`.

    Raises: ConfigError for fewer than two methods or an unknown name, before anything is trained.
    """
    from etude.runs.frontiers import at_equal_divergence, traced
    from etude.runs.judging import one_discount
    from etude.runs.spread import check as check_place
    from etude.runs.spread import workers_of
    from etude.runs.training import Options, compose_task, of, with_adapter
    from etude.runs.warm import start_of
    from etude.runs.worlds import world_of

    check_place(on)
    task = beside(of_task.get("data"), task)
    fields = [*shorthands.alone(of_task), *assignments(set)]
    numbers = {
        "seeds": seeds, "steps": steps, "workers": workers, "evaluate": evaluate, "evaluate_every": evaluate_every,
    }  # fmt: skip
    for name, number in numbers.items():
        check(name, Count, 1 if number is None else number)
    task, own, rewards, model = given.for_processes(task, reward, model, tokenizer, Path(out) / given.FOLDER)
    fields, scored = [*own, *fields], rewards or None
    goal = compose_task(task, of("task", fields), scored)
    check_scored(goal, scored)
    (known, splits), usual = world_of(goal).measured(goal), world_of(goal).compared(goal)
    settings = traced(frontier, goal)
    plain, begun = _begin_arms(methods, goal, scored, preset)
    own_fields = _fields_of(plain, fields)
    told_to = [{arm: [*those, *each] for arm, those in own_fields.items()} for each in settings]
    composed, *_ = [_set_arms(plain, goal, those) for those in told_to]  # all of them fit
    discount = one_discount(composed.values(), goal)
    told_to = [{arm: [*own, *discount] for arm, own in those.items()} for those in told_to]
    seeds, steps = seeds or usual[0], steps or max((p.steps for p in begun.values()), default=usual[1])
    metric, split = metric or known[0], split or splits[0]
    model = model if model == Options.model else start_of(model, goal.world)[0]
    options = Options(model=model, evaluate=evaluate, evaluate_every=evaluate_every)
    _check_measures(composed, goal, with_adapter(options, of("adapter", fields)), metric, split)
    every = _every(composed, goal, Options(steps=steps, evaluate=evaluate, evaluate_every=evaluate_every))
    told = {"--evaluate": evaluate, "--evaluate-every": every}
    flags = tuple(x for flag, number in told.items() if number for x in (flag, str(number)))
    marks = {arm: each.fingerprint for arm, each in begun.items()}
    arms = {
        arm: [jobs_for(arm, task, model, seeds, steps, those[arm], Path(out), rewards=rewards,
                       together=goal.together, flags=flags, preset=marks.get(arm, "")) for those in told_to]
        for arm in methods
    }  # fmt: skip
    say_waiting(goal, quiet)
    with workers_of(on, workers) as those:
        run_jobs([j for several in arms.values() for jobs in several for j in jobs], those, quiet)
    if frontier:
        comparison = at_equal_divergence(arms, goal, model, metric, split, evaluate)
    else:
        looks = [*range(0, steps, every or steps), steps]
        comparison = _comparison({a: s[0] for a, s in arms.items()}, composed, goal, steps, metric, split, looks)
    label = "-vs-".join(a.replace("+", "_") for a in methods) + "-at-equal-kl" * bool(frontier)
    folder = Path(out) / f"compare-{label}-{goal.id}".replace("/", "-").replace(":", "-")
    written = comparison.write(folder)
    return Compared(comparison, folder, list(written.files), list(written.notes))


def _every(arms: Mapping[str, Method], goal: Task, options: Options) -> int | None:
    """After how many steps all arms are evaluated: where nobody says, what one of them chooses holds for the others."""
    from etude.runs.kinds import run_of

    chosen = (run_of(method).timed(method, goal, options).evaluate_every for method in arms.values())
    return next((every for every in chosen if every is not None), None)


def _comparison(
    arms: Mapping[str, list[Job]], composed: Mapping[str, Method], goal: Task, steps: int, metric: str, split: str,
    looks: Sequence[float],
) -> Comparison:  # fmt: skip
    """Statistics of finished runs: final scores, what was evaluated at `looks`, learning curves."""
    from etude.evaluation.comparison import compare_arms
    from etude.runs.kinds import run_of
    from etude.runs.worlds import world_of

    world = world_of(goal)
    grid = world.grid(steps)
    scores = {arm: {goal.id: final_scores(jobs, metric, split)} for arm, jobs in arms.items()}
    name, curve, usual = world.curve(metric)
    axis = " or ".join(dict.fromkeys(run_of(method).counts(method, usual) for method in composed.values()))
    sampling = [arm for arm, method in composed.items() if run_of(method).samples(method)]
    lines = {arm: {goal.id: curves(arms[arm], grid, name)} for arm in sampling}
    title, on_the_way = f"{metric} ({split})", "between" in goal.evaluated()
    points = {
        a: {goal.id: evaluations(jobs, metric, split, looks)}
        for a, jobs in arms.items()
        if on_the_way and curve != title
    }
    return compare_arms(
        scores, lines, grid, evaluated=points, evaluated_at=looks, metric=title, curve=curve, axis=axis,
        **_estimated(arms, metric, split),
    )  # fmt: skip
