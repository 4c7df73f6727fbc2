"""The verb tune: many settings, of which the better half trains on, until one is left (successive halving).

K. Jamieson and A. Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016
(arXiv:1502.07943). Round k gives each of the settings S_k that are left r_k = B / (|S_k| ceil(log2 n)) steps more, so
every round costs the same, and keeps the better half; of an odd number the larger half, so that the last round has two.

Runs go on where they stopped, and their schedules know the whole length from the start: what is left at the end is
number by number the run that `best.toml` trains.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from etude.core.edit import assignments
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Count, WholeNumber
from etude.core.fields import check as given_number
from etude.core.fit import check
from etude.core.method import Method
from etude.core.streams import Stream
from etude.core.task import Task
from etude.rewards.several import Scoring
from etude.runs import given, shorthands
from etude.runs.comparing import check_scored, say_waiting
from etude.runs.config import FILE
from etude.runs.jobs import Job, Workers, run_each
from etude.runs.judging import one_discount
from etude.runs.kinds import run_of
from etude.runs.suiting import suited_method
from etude.runs.training import Options, compose_task, of, with_adapter
from etude.runs.tuning import best_setting
from etude.runs.warm import start_of
from etude.runs.worlds import world_of
from etude.runtime import disk
from etude.tasks import USUAL, beside

SEEDS, MEMBERS = 1, 5
"""Runs of each setting, and members of its population where seeds train together."""
TABLE, BEST = "tune.json", "best.toml"
DIGITS = 3
"""Of a number that is drawn from a range."""


@dataclass(frozen=True)
class Rung(Job):
    """A run to be had as far as `until` steps, of `steps` that its schedules go by."""

    until: int = 0

    def command(self) -> list[str]:
        return [*super().command(), "--until", str(self.until)]

    @property
    def target(self) -> int:
        return self.until

    @property
    def finished(self) -> bool:
        """Whether it came that far, and was evaluated there."""
        path = self.folder / "evaluation.json"
        return self.done_steps >= self.until and path.is_file() and "after" in json.loads(path.read_text())


@dataclass
class Tuned:
    """What a search came to.

    Args:
        best: the setting that is left, and its score after the whole run.
        rounds: of each the steps that its runs had by then, and the score of every setting by its number; None for one
            that failed, or that came to a number that means nothing.
        spent: training steps of all settings, in whole runs of one.
        config: the file that trains the best one.
    """

    settings: list[dict[str, str]]
    rounds: list[dict[str, Any]]
    best: int
    score: float
    metric: str
    spent: float
    folder: Path
    config: Path
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def doubted(self) -> list[int]:
        """Settings that came to a number that means nothing, which is worse than all others."""
        none = {int(k) for each in self.rounds for k, v in each["scores"].items() if v is None}
        return sorted(none - set(self.failed))

    def sentence(self) -> str:
        """How much was tried, and what to make of it."""
        failed = f" {len(self.failed)} of them failed." if self.failed else ""
        failed += f" {len(self.doubted)} of them came to a number that means nothing." if self.doubted else ""
        tried = f"{len(self.settings)} settings were tried, in as many steps as {self.spent:.3g} whole runs.{failed}"
        best = (
            f"The best has {self.metric} {self.score:.4g}; as the best of many it is a little better than it would be"
        )
        return f"{tried} {best} with other seeds."


def halvings(count: int) -> list[int]:
    """How many settings each round has.

    >>> halvings(8), halvings(20)
    ([8, 4, 2], [20, 10, 5, 3, 2])
    """
    sizes = [count]
    while sizes[-1] > 2:
        sizes.append(-(-sizes[-1] // 2))
    return sizes


def schedule(count: int, steps: int) -> list[tuple[int, int]]:
    """Settings in each round, and steps that each of them has had at its end: `steps` after the last.

        R_k = sum_{j <= k} floor(B / (|S_j| ceil(log2 n))),   with the budget B for which the last is `steps`

    Raises: ConfigError if a round would have no step of its own.

    >>> schedule(8, 28)  # a budget of B = 96 steps: 4, 8 and 16 more for 8, 4 and 2 settings
    [(8, 4), (4, 12), (2, 28)]
    """
    sizes = halvings(count)
    budget = steps * len(sizes) / sum(1 / size for size in sizes)
    more = [math.floor(budget / (size * len(sizes)) + 1e-9) for size in sizes]
    reached = [*np.cumsum(more[:-1]).tolist(), steps]
    if not all(a < b for a, b in zip([0, *reached], reached)):
        raise ConfigError(f"{steps} steps are too few to tell {count} settings apart: give more, or a smaller budget.")
    return list(zip(sizes, reached))


def settings_of(over: Sequence[str], budget: int, seed: int = 0) -> list[dict[str, str]]:
    """Settings by field, as `--over` describes them; all combinations of choices if they fit into the budget.

    A range is cut into as many pieces as there are settings, each of which has one of them (a Latin hypercube); equal
    on a logarithmic scale where its ends lie a factor of ten or more apart.

    Raises: ConfigError for what describes no values.
    """
    axes = dict(_axis(text) for text in over)
    if len(axes) < len(over):
        raise ConfigError("--over names a field twice: give all its values at once.")
    whole = math.prod(len(v) if isinstance(v, list) else budget for v in axes.values())
    if all(isinstance(v, list) for v in axes.values()) and whole <= budget:
        grids = np.meshgrid(*(np.arange(len(v)) for v in axes.values()), indexing="ij")
        places = np.stack([g.ravel() for g in grids], 1)
        return [{k: v[i] for (k, v), i in zip(axes.items(), row)} for row in places]
    found: list[dict[str, str]] = [{} for _ in range(budget)]
    for name, values in axes.items():
        random = Stream(seed).split("tune", name).numpy
        order, inside = random.permutation(budget), random.random(budget)
        for setting, place, part in zip(found, order, inside):
            setting[name] = values[place % len(values)] if isinstance(values, list) else values((place + part) / budget)
    return found


def _axis(text: str) -> tuple[str, Any]:
    """A field with its choices, or with what makes a value of a number in [0, 1)."""
    name, equals, values = text.partition("=")
    low, dots, high = values.partition("..")
    if not equals or not name or not values:
        raise ConfigError(
            f"--over takes FIELD=LOW..HIGH or FIELD=VALUE,VALUE,..., as in optimizer.lr=1e-5..1e-3; got {text!r}."
        )
    if not dots:
        return name, values.split(",")
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = (0.0, 0.0)
    if not ends[0] < ends[1] < math.inf:
        raise ConfigError(f"--over {text!r}: the range goes from a number to a larger one, as in 1e-5..1e-3.")
    return name, _whole(int(low), int(high)) if low.isdigit() and high.isdigit() else _real(*ends)


def _real(low: float, high: float) -> Any:
    wide = low > 0 and high >= 10 * low
    return lambda u: f"{low * (high / low) ** u if wide else low + (high - low) * u:.{DIGITS}g}"


def _whole(low: int, high: int) -> Any:
    return lambda u: str(low + int(u * (high - low + 1)))


def tune(
    method: str,
    task: Any = USUAL,
    *,
    over: str | Sequence[str],
    budget: int = 20,
    steps: int | None = None,
    seed: int = 0,
    seeds: int | None = None,
    model: Any = "tiny",
    tokenizer: object = None,
    set: Sequence[str] | Mapping[str, Any] = (),
    reward: Scoring | None = None,
    evaluate: int | None = None,
    metric: str | None = None,
    out: str | Path | None = None,
    workers: int | None = None,
    quiet: bool = False,
    **of_task: object,
) -> Tuned:
    """Look for the best setting of a method on a task, by successive halving; the same call goes on where it stopped.

    Args:
        method: a name, with parts stacked by '+', or 'file.py:name'.
        task, model, reward: as in `train`, where they have a name or get one.
        over: fields with a range ('optimizer.lr=1e-5..1e-3') or choices ('objective.high=0.2,0.28').
        budget: how many settings are tried; they cost about log2 of that in whole runs.
        steps: of the run that is left; None: as in `train`. The others stop earlier.
        seed: of the draw, and the first of the runs.
        seeds: runs of each setting; None: 1, in control a population of 5.
        metric: of the evaluation after training; None: the first. Higher is better.
        out: a folder for the runs, `tune.json` and `best.toml`.
        workers: runs at a time; None: all cores.
        of_task: data, heldout, columns, answer, chat, ..., as in `train`.

    Raises: EtudeError for names, fields and values that do not fit, before anything is trained.
    """
    where, task = Path(out).parent if out else Path("runs"), beside(of_task.get("data"), task)
    task, own, rewards, model = given.for_processes(task, reward, model, tokenizer, where / given.FOLDER)
    fields = [*own, *shorthands.alone(of_task), *assignments(set)]
    goal = compose_task(task, of("task", fields), rewards or None)
    check_scored(goal, rewards or None)
    metrics, splits = world_of(goal).measured(goal)
    if metric is not None and metric not in metrics:
        raise UnknownNameError("metric", metric, metrics, f"There are: {', '.join(metrics)}.")
    for number, hint, value in (("steps", Count, steps), ("seeds", Count, seeds), ("evaluate", Count, evaluate)):
        if value is not None:
            given_number(number, hint, value)
    given_number("seed", WholeNumber, seed)
    if budget < 2:
        raise ConfigError(f"--budget is how many settings are tried, at least 2; got {budget}.")
    settings = settings_of([over] if isinstance(over, str) else list(over), budget, seed)
    if len(settings) < 2:
        raise ConfigError("--over leaves a single setting: give it a range, or several values.")
    whole = steps or world_of(goal).budget(goal)
    search = _Search(
        goal, method, settings, schedule(len(settings), whole), metric or metrics[0], splits[0],
        Path(out or f"runs/tune-{method.replace('/', '-')}-{goal.id}-{seed}"),
        {"method": method, "task": task, "model": model, "steps": whole, "seed": seed, "rewards": rewards,
         "set": fields, "seeds": seeds or (MEMBERS if goal.together else SEEDS), "evaluate": evaluate},
    )  # fmt: skip
    search.check()
    say_waiting(goal, quiet)
    with Workers(workers) as pool:
        return search.run(pool, quiet)


@dataclass
class _Search:
    """A search from its plan to its end; what it has found so far is in its folder."""

    goal: Task
    method: str
    settings: list[dict[str, str]]
    plan: list[tuple[int, int]]
    metric: str
    split: str
    folder: Path
    told: dict[str, Any]
    rounds: list[dict[str, Any]] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)

    def check(self) -> None:
        """Compose every setting, and see whether the folder is of this search. Raises EtudeError."""
        (name, *parts), methods = self.method.split("+"), list[Method]()
        for setting in self.settings:
            fields = [f for f in self._fields(setting) if not f.startswith("task.")]
            composed, _ = suited_method(name, fields, parts, self.told["rewards"] or None, self.goal)
            check(
                composed, compose_task(self.told["task"], [f for f in self._fields(setting) if f.startswith("task.")])
            )
            methods.append(composed)
            reached = [run_of(composed).training_steps(composed, until) for _, until in self.plan]
            if len(dict.fromkeys(reached)) < len(reached):
                raise ConfigError(f"{self.plan[-1][1]} steps are too few: rounds would end at the same training step.")
        self.told["set"] = [*self.told["set"], *one_discount(methods, self.goal)]
        model = self.told["model"]
        start = model if model == Options.model else start_of(model, self.goal.world)[0]
        options = Options(model=start, evaluate=self.told["evaluate"])
        run_of(methods[0]).ready(methods[0], self.goal, with_adapter(options, of("adapter", self.told["set"])))
        path = self.folder / TABLE
        if path.is_file():
            found = json.loads(path.read_text())
            if other := [k for k, v in self._record()["search"].items() if found["search"].get(k) != v]:
                raise ConfigError(
                    f"{self.folder} holds a search with another {' and '.join(other)}: choose another --out."
                )
            self.rounds = found["rounds"]
            self.failed = {int(k): v for k, v in found["failed"].items()}
        elif self.folder.is_file() or (self.folder.is_dir() and any(self.folder.iterdir())):
            raise ConfigError(f"{self.folder} holds something that is no search: choose another --out.")

    def run(self, pool: Workers, quiet: bool) -> Tuned:
        """Train round by round; a round that is in the table is not trained again."""
        self._save()  # what is stopped in its first round goes on as well
        for number, (count, until) in enumerate(self.plan):
            if number < len(self.rounds):
                continue
            left = self._left(number, count)
            jobs = {i: self._jobs(i, until) for i in left}
            faults = run_each([job for each in jobs.values() for job in each], pool, quiet)
            self.failed |= {i: faults[job] for i, each in jobs.items() for job in each if job in faults}
            scores = {str(i): None if i in self.failed else self._score(jobs[i]) for i in left}
            self.rounds.append({"steps": until, "scores": scores})
            self._save()
        best = self._left(len(self.plan), 1)[0]
        if best in self.failed:
            raise ConfigError(f"Every setting that was left failed; the first: {self.failed[best]}")
        if self.rounds[-1]["scores"][str(best)] is None:
            raise ConfigError(f"{self.metric} means nothing for all settings that were left: {self._doubt(best)}.")
        return self._result(best)

    def _left(self, number: int, count: int) -> list[int]:
        """Numbers of the settings that a round has: the best of the round before."""
        if not number:
            return list(range(len(self.settings)))
        scores = {i: -math.inf if s is None else s for i, s in self.rounds[number - 1]["scores"].items()}
        chosen: list[int] = []
        while len(chosen) < count:
            chosen.append(int(best_setting(scores)))
            del scores[str(chosen[-1])]
        return sorted(chosen)

    def _fields(self, setting: Mapping[str, str]) -> list[str]:
        return [*self.told["set"], *(f"{k}={v}" for k, v in setting.items())]

    def _jobs(self, number: int, until: int) -> list[Rung]:
        told, home = self.told, self.folder / f"setting-{number:02}"
        flags = () if told["evaluate"] is None else ("--evaluate", str(told["evaluate"]))
        together = self.goal.together
        places = {told["seed"]: home} if together else {
            s: home / f"seed-{s}" for s in range(told["seed"], told["seed"] + told["seeds"])
        }  # fmt: skip
        return [
            Rung(self.method, told["task"], told["model"], s, told["steps"], tuple(self._fields(self.settings[number])),
                 place, tuple(told["rewards"]), told["seeds"] if together else 0, flags, until=until)
            for s, place in places.items()
        ]  # fmt: skip

    def _score(self, jobs: Sequence[Rung]) -> float | None:
        """Mean over the seeds; None where one of them is said to mean nothing."""
        values: list[float] = []
        for job in jobs:
            entry = json.loads((job.folder / "evaluation.json").read_text())["after"][self.split][self.metric]
            if entry.get("reason"):
                return None
            values += entry.get("members", [entry["value"]])
        return float(np.mean(values))

    def _doubt(self, number: int) -> str:
        """What its run says of that."""
        found = json.loads((self._jobs(number, self.plan[-1][1])[0].folder / "evaluation.json").read_text())
        return str(found["after"][self.split][self.metric]["reason"])

    def _record(self) -> dict[str, Any]:
        search = {**self.told, "settings": self.settings, "metric": f"{self.split}/{self.metric}"}
        return {"search": json.loads(json.dumps(search)), "rounds": self.rounds, "failed": self.failed}

    def _save(self) -> None:
        disk.make_folder(self.folder)
        disk.replace_file(self.folder / TABLE, json.dumps(self._record(), indent=1).encode())

    def _result(self, best: int) -> Tuned:
        """Write the best one down as a file for `--config`."""
        last = self._jobs(best, self.plan[-1][1])[0]
        done = [0, *(each["steps"] for each in self.rounds)]
        spent = sum((b - a) * len(each["scores"]) for a, b, each in zip(done, done[1:], self.rounds))
        score = float(self.rounds[-1]["scores"][str(best)])
        found = Tuned(
            self.settings, self.rounds, best, score, f"{self.split}/{self.metric}",
            spent / self.told["steps"], self.folder, self.folder / BEST, self.failed,
        )  # fmt: skip
        about = (
            f"# The best setting of {self.folder}: {found.metric} {score:.4g} among {len(self.settings)} settings.\n"
        )
        disk.replace_file(found.config, (about + (last.folder / FILE).read_text(encoding="utf-8")).encode())
        return found
