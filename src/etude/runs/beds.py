"""Beds: tasks with a start and a fixed test set, on which methods are compared. `beds/<family>/<name>.toml`.

A recipe says what is trained on, from where, how long, and what is measured:

    about = "Two tables, looked up one after the other; the shipped base model gets a third right."
    task = "compose"
    set = { "task.levels" = [2] }        # fields of the task, and of every method that is compared
    model = "tiny"                       # or a [start]: a run that is done once, and begun from
    steps = 40
    baseline = "grpo"
    baseline_set = {}                    # fields of the baseline alone, as its sizes on a small task
    metric = "pass@1"
    bounds = [0.0, 1.0]

    [test]                               # the same problems for every arm and seed
    problems = 400
    samples = 4
    every = 5                            # training steps between two evaluations

    [sweep]                              # what the baseline is tuned over
    "optimizer.lr" = [1e-4, 2e-4, 4e-4]

    [start]
    method = "sft"
    steps = 100
    set = { "optimizer.lr" = 1e-3 }

    [made.proxy]                         # a further run that is done once, here a reward model: `set`, above, hands it
    method = "reward-model"              # on by its name in braces, as in "rewards.reward-model.model" = "{proxy}";
                                         # `task` = "facts" would train it on another task than the bed's
    model = "{start}"
    steps = 60

What was measured on it is its card, `<name>.json` beside the recipe (`cards.py`). Runs are kept below `runs/beds/` and
shared by all that is compared on the bed, as long as recipe, code, processor and kernels are the same.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.core.edit import assignments
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Count, WholeNumber
from etude.core.recipe import NAMED
from etude.core.registry import ROOT
from etude.runs.arms import composition, state
from etude.runs.comparing import evaluations
from etude.runs.jobs import Job, jobs_for, run_jobs
from etude.runs.recipes import made
from etude.runs.training import compose_task

PLACES = (ROOT / "beds", ROOT.parent.parent / "beds")
"""Where recipes are: inside an installed package, or beside the source."""
RUNS = Path("runs/beds")
"""Where the runs of beds are kept."""
TUNING, CONFIRMING = 0, 1000
"""First seeds: settings are chosen on the former, and what is reported was trained with the latter."""

Fields = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Start:
    """A run that is done once, and that every arm begins from, or is handed. It has a seed that no arm has.

    Args:
        model: what it begins from; `{NAME}` is what another such run of the bed made, `{start}` the bed's start.
        task: another one than the bed's; of the same world.
        set: fields of its method and task, over those that the bed sets of its own task.
    """

    method: str
    steps: Count
    model: str = "tiny"
    task: str = ""
    seed: WholeNumber = 99
    set: Fields = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Test:
    """What every run is measured on.

    Args:
        split: of the task; the first that is not trained on by default.
        problems: the first so many of the split; in control episodes of each member.
        samples: of each problem (language).
        every: steps of the budget between two evaluations.
    """

    __test__ = False  # no class of tests, whatever its name looks like
    every: Count
    split: str = ""
    problems: Count = 400
    samples: Count = 4


@dataclass(frozen=True, kw_only=True)
class Bed:
    """A recipe, read and checked.

    Args:
        steps: budget of a run: training steps, in control environment steps of each member.
        baseline_set: fields of the baseline alone, wherever it is trained on the bed.
        metric: what is compared; `bounds` are its floor and ceiling.
        sweep: values of each field that the baseline is tuned over; the best by the area under its curve is taken.
        made: further runs that are done once. `{NAME}` in a value of `set`, `baseline_set` or of another such run's
            `set` is the folder of its model.
    """

    name: str
    about: str
    task: str
    steps: Count
    test: Test
    baseline: str = "grpo"
    baseline_set: Fields = field(default_factory=dict)
    model: str = "tiny"
    start: Start | None = None
    metric: str = "pass@1"
    bounds: tuple[float | None, float | None] = (0.0, 1.0)
    set: Fields = field(default_factory=dict)
    sweep: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    made: Mapping[str, Start] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*_named(self.set), *_named(self.baseline_set), *self.once):
            _ordered(name, self.once, ())
        for own in (start.task for start in self.once.values() if start.task):
            compose_task(own)

    @property
    def once(self) -> dict[str, Start]:
        """Every run that is done once, by the name that it is handed on by."""
        return {**({"start": self.start} if self.start else {}), **self.made}

    @property
    def goal(self) -> Any:
        """Its task, with its fields set."""
        return compose_task(self.task, [f for f in assignments(self.set) if f.startswith("task.")])

    @property
    def looks(self) -> list[int]:
        """Steps after which its runs are evaluated, from 0 on."""
        return [*range(0, self.steps, self.test.every), self.steps]

    @property
    def split(self) -> str:
        """What its runs are tested on."""
        from etude.runs.worlds import world_of

        return self.test.split or world_of(self.goal).measured(self.goal)[1][0]


def beds() -> dict[str, Path]:
    """Every recipe, by family and name: 'language/compose-easy'."""
    return {
        path.relative_to(place).with_suffix("").as_posix(): path
        for place in PLACES
        for path in sorted(place.glob("*/*.toml"))
    }


def beside(path: Path) -> Path:
    """Where what was found out about a recipe is written: beside it, or in the working folder for a package's recipe.

    >>> beside(Path("beds/mine/one.json")).as_posix(), beside(ROOT / "beds" / "mine" / "one.json").as_posix()
    ('beds/mine/one.json', 'beds/mine/one.json')
    """
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def load_bed(name: str) -> Bed:
    """The bed called `name`, as in 'language/compose-easy', or at the path of a recipe.

    Raises: UnknownNameError with the nearest names, for beds and for keys of a recipe; ConfigError for a value that
    does not fit.
    """
    known = beds()
    path = Path(name) if name.endswith(".toml") else known.get(name)
    if path is None:
        raise UnknownNameError("bed", name, known, "`etude beds` lists them.")
    try:
        recipe = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"There is no recipe {path}.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}.") from None
    label = name if path == known.get(name) else path.stem
    inner: dict[str, Any] = {
        key: made(kind, f"{path}, [{key}]", recipe.pop(key)) for key, kind in PARTS.items() if key in recipe
    }
    if "made" in recipe:
        runs = recipe.pop("made")
        inner["made"] = {key: made(Start, f"{path}, [made.{key}]", each) for key, each in runs.items()}
    return made(Bed, str(path), {"name": label, **recipe, **inner})


PARTS: dict[str, type[Test | Start]] = {"test": Test, "start": Start}


# Runs


def runs_of(
    bed: Bed, arm: str, seeds: int, changes: Fields | None = None, *, first: int = CONFIRMING, root: Path = RUNS
) -> list[Job]:
    """The runs of an arm on a bed, from seed `first` on. Its start is made if it is not there.

    Args:
        arm: a method, with parts stacked by '+'.
        changes: fields set beside the bed's own; `{NAME}` is what the bed's run of that name made.
    """
    set_ = assigned(bed, {**bed.set, **(changes or {})}, root)
    flags = ["--evaluate", bed.test.problems, "--evaluate-every", bed.test.every]
    together = bed.goal.together
    flags += [] if together else ["--evaluate-samples", bed.test.samples, "--evaluate-split", bed.split]
    return jobs_for(
        arm, bed.task, start_of(bed, root), seeds, bed.steps, set_, _home(root / bed.name, arm, bed), first,
        together=together, flags=tuple(map(str, flags)),
    )  # fmt: skip


def start_of(bed: Bed, root: Path = RUNS) -> str:
    """The model that the bed's runs begin from: a name, or the folder of its start, which is trained if need be."""
    return bed.model if bed.start is None else _made(bed, bed.start, root)


def model_of(bed: Bed, name: str, root: Path = RUNS) -> str:
    """The folder of the model that the bed's run of this name makes: 'start', or one of `[made]`.

    Raises: UnknownNameError for a run that the bed has not.
    """
    _ordered(name, bed.once, ())
    return _made(bed, bed.once[name], root)


def _made(bed: Bed, start: Start, root: Path) -> str:
    """The folder of the model that such a run makes; it is trained if need be, after those that it names."""
    task = {k: v for k, v in bed.set.items() if k.startswith("task.") and not start.task}
    (model,) = _filled(bed, [start.model], root)
    (job,) = jobs_for(
        start.method, start.task or bed.task, model, 1, start.steps, assigned(bed, {**task, **start.set}, root),
        _home(root / "starts", start.method, bed), start.seed, flags=("--evaluate", "0"),
    )  # fmt: skip
    if not job.finished:
        print(f"Made once, for all that is compared on the bed: {start.method}, {start.steps} steps.", file=sys.stderr)
        run_jobs([job], workers=1)
    (newest,) = sorted((job.folder / "checkpoints").glob("step-*"), key=lambda p: int(p.name.split("-")[1]))[-1:]
    return str(newest / "model")


def assigned(bed: Bed, values: Fields, root: Path) -> tuple[str, ...]:
    """Fields with their values as `--set` has them, those that are made filled in."""
    return tuple(_filled(bed, assignments(values), root))


def _filled(bed: Bed, texts: Sequence[str], root: Path) -> list[str]:
    """Texts in which each `{NAME}` is the folder of what the bed's run of that name made.

    What the runs of a recipe are told (`runs.NAME.set`) may name its own runs, which are left for it to fill in.
    """

    def filled(text: str) -> str:
        own = text.startswith("runs.")
        return NAMED.sub(lambda f: f[0] if own and f[1] not in bed.once else model_of(bed, f[1], root), text)

    return [filled(text) for text in texts]


def _named(values: Fields) -> list[str]:
    return [name for value in values.values() if isinstance(value, str) for name in NAMED.findall(value)]


def _ordered(name: str, known: Mapping[str, Start], waiting: tuple[str, ...]) -> None:
    """Raise ConfigError if a run that is to be done once is not there, or waits for itself."""
    if name not in known:
        raise UnknownNameError("run of a bed", name, known, f"[made.{name}] would make it.")
    if name in waiting:
        raise ConfigError(f"[made.{name}] waits for itself, by {' and '.join(waiting)}: one has to begin without.")
    for other in _named({**known[name].set, "model": known[name].model}):
        _ordered(other, known, (*waiting, name))


def _home(root: Path, arm: str, bed: Bed) -> Path:
    """Where runs of an arm are kept that could be equal."""
    return root / f"{state()}-{composition(arm, bed.goal.world)}"


@dataclass(frozen=True)
class Scores:
    """What runs came to on a bed, seed by seed: [n] each.

    Args:
        start, end: the metric before and after.
        area: its mean along the run, by the trapezoid rule: learning counts, and not only its end.
        curves: [n, points] at steps `at`.
    """

    at: NDArray[np.float64]
    curves: NDArray[np.float64]

    @property
    def start(self) -> NDArray[np.float64]:
        """[n], before the first step."""
        return self.curves[:, 0]

    @property
    def end(self) -> NDArray[np.float64]:
        """[n], after the last."""
        return self.curves[:, -1]

    @property
    def area(self) -> NDArray[np.float64]:
        """[n]."""
        return np.asarray(np.trapezoid(self.curves, self.at, axis=1) / self.at[-1])


def scores_of(bed: Bed, jobs: Sequence[Job], metric: str = "") -> Scores:
    """A metric along finished runs, the bed's own by default."""
    return Scores(np.array(bed.looks, float), np.array(evaluations(jobs, metric or bed.metric, bed.split, bed.looks)))
