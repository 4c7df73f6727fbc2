"""Studies: recipes of training on several beds with the same seeds, as a table of gains. `studies/<id>.toml`:

    title = "Model-Task Alignment Drives Distinct RL Outcomes"
    about = "What is left of learning without the truth, from a start that solves the task and from one that does not."
    paper = "arXiv:2508.21188"
    beds = ["language/compose-aligned", "language/compose-misaligned"]
    baseline = "model-task-alignment"    # what every recipe changes, and is held against
    baseline_set = {}                    # fields of the baseline, and of the recipes that change it
    seeds = 6
    k = 16                               # starts are told apart by their pass@k

    [recipes.random]
    set = { rewards = "random-reward,format-gate" }

    [recipes.negative]
    with = ["negative-only"]

    [recipes.rejection]
    method = "rl-compositionality-rft"   # in place of the baseline
    steps = 30                           # instead of the bed's, where a step costs more, or less

    [factors.learner]                    # or every level of each factor with every one of the others: 'clone, beam'
    clone = {}                           # is a recipe of what both change
    gradient = { method = "grpo", set = { experience = "groups-by-search" } }

    [factors.search]
    beam = { set = { "experience.search" = "beam" } }

Every cell (bed, recipe, seed) is a run folder below `runs/beds/`, shared with claims and cards, so what was stopped
goes on. `studies/<id>/<bed>.jsonl` has a line for each run, and `studies/<id>.json` is the table, derived from them.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import product
from pathlib import Path
from typing import Any

from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Count, WholeNumber
from etude.core.registry import ROOT
from etude.runs.beds import RUNS, Bed, Fields, beside, load_bed, start_of
from etude.runs.contest import Arm, compete
from etude.runs.recipes import made
from etude.runs.study_table import table

PLACES = (ROOT / "studies", ROOT.parent.parent / "studies")
"""Where studies are: inside an installed package, or beside the source."""
LEAST = 2
"""Seeds below which there is no interval."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is changed of the baseline.

    Args:
        method: what it is replaced by, if by anything.
        parts: stacked on it, `with` in a file.
        set: fields, beside the bed's own.
        steps: its budget; 0 for the bed's.
    """

    method: str = ""
    parts: tuple[str, ...] = ()
    set: Fields = field(default_factory=dict)
    steps: WholeNumber = 0

    def both(self, other: Recipe) -> Recipe:
        """What two of them change, this one's fields first.

        Raises: ConfigError for what both say, where only one can be heard.
        """
        twice = [*(self.set.keys() & other.set.keys())]
        twice += [name for name in ("method", "steps") if getattr(self, name) and getattr(other, name)]
        if twice:
            raise ConfigError(f"both say {' and '.join(sorted(twice))}: let one of the factors say it.")
        return Recipe(
            method=self.method or other.method, parts=(*self.parts, *other.parts), set={**self.set, **other.set},
            steps=self.steps or other.steps,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Study:
    """Recipes on beds, read and checked.

    Args:
        baseline: a method, with parts stacked by '+'. baseline_set: fields of it, and of recipes without a method.
        k: starts are told apart by their pass@k, and levels of a test too, if it has so many samples of a problem.
        factors: the levels of each, of whose combinations there are recipes beside those that have a name of their own.
        home: where its runs and its table are kept: beside its file, or for one of the package in `studies/` here.
    """

    id: str
    title: str
    about: str
    beds: tuple[str, ...]
    baseline: str
    recipes: Mapping[str, Recipe]
    home: Path
    paper: str = ""
    baseline_set: Fields = field(default_factory=dict)
    factors: Mapping[str, Sequence[str]] = field(default_factory=dict)
    seeds: Count = 6
    k: Count = 16

    @property
    def path(self) -> Path:
        """Its table."""
        return self.home / f"{self.id}.json"

    def kept_in(self, bed: Bed) -> Path:
        """The lines of a bed's runs."""
        return self.home / self.id / f"{bed.name}.jsonl"

    def arms(self) -> list[Arm]:
        """Every recipe as an arm; the baseline itself is that of the bed."""
        return [
            Arm(
                label=name,
                method="+".join((r.method or self.baseline, *r.parts)),
                changes={**({} if r.method else self.baseline_set), **r.set},
                steps=r.steps,
            )
            for name, r in self.recipes.items()
        ]

    def work(self, seeds: int) -> tuple[int, int]:
        """Runs of so many seeds of every cell, and the steps of all of them together."""
        steps = [own or load_bed(name).steps for name in self.beds for own in (0, *(a.steps for a in self.arms()))]
        return len(steps) * seeds, sum(steps) * seeds

    def bed(self, name: str) -> Bed:
        """A bed as the study has it: with the study's baseline, and without a sweep."""
        return replace(load_bed(name), baseline=self.baseline, baseline_set=self.baseline_set, sweep={})


def studies() -> dict[str, Path]:
    """Every study's file, by its id."""
    return {path.stem: path for place in PLACES for path in sorted(place.glob("*.toml"))}


def load_study(name: str) -> Study:
    """The study of this id, or at the path of a file.

    Raises: UnknownNameError for studies and keys that there are not, with the nearest; ConfigError for other faults.
    """
    known = studies()
    path = Path(name) if name.endswith(".toml") else known.get(name)
    if path is None:
        raise UnknownNameError("study", name, known, "`etude studies` lists them.")
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"There is no study {path}.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}.") from None
    levels = {name: dict(_recipes(path, f"factors.{name}", each)) for name, each in said.pop("factors", {}).items()}
    said["factors"] = {name: tuple(each) for name, each in levels.items()}
    recipes, combined = dict(_recipes(path, "recipes", said.get("recipes", {}))), _combined(path, levels)
    if twice := sorted(recipes.keys() & combined.keys()):
        raise ConfigError(f"{path}: {twice[0]!r} is a recipe and a combination of levels too; give one another name.")
    said["recipes"] = {**recipes, **combined}
    study = made(Study, str(path), {"id": path.stem, "home": beside(path.parent), **said})
    if not study.beds or not study.recipes:
        raise ConfigError(f"{path} must name at least one bed and one recipe.")
    if study.baseline in study.recipes:
        raise ConfigError(f"{path}: the recipe {study.baseline!r} has the name of the baseline; give it another one.")
    return study


def _combined(path: Path, levels: Mapping[str, Mapping[str, Recipe]]) -> dict[str, Recipe]:
    """Every level of each factor with every one of the others, named by them: 'clone, beam'."""
    found: dict[str, Recipe] = {}
    for chosen in product(*(each.items() for each in levels.values())) if levels else ():
        name = ", ".join(level for level, _ in chosen)
        try:
            found[name] = reduce(Recipe.both, (recipe for _, recipe in chosen))
        except ConfigError as error:
            raise ConfigError(f"{path}: the levels of {name!r} {error}") from None
    return found


def _recipes(path: Path, inside: str, said: Mapping[str, Any]) -> Iterator[tuple[str, Recipe]]:
    for name, fields in said.items():
        where = f"{path}, [{inside}.{name}]"
        values = {"parts" if key == "with" else key: value for key, value in dict(fields).items()}
        yield name, made(Recipe, where, values)


# Runs


def run_study(
    study: Study, *, seeds: int | None = None, root: Path = RUNS, workers: int | None = None
) -> dict[str, Any]:
    """Train every cell that is missing, and write the table.

    Raises: ConfigError for fewer than two seeds, and as `contest.compete`.
    """
    from etude.runtime import disk

    count = study.seeds if seeds is None else seeds
    if count < LEAST:
        raise ConfigError(f"A study needs at least {LEAST} seeds for its intervals, got {count}.")
    starts, rows = {}, []
    for name in study.beds:
        bed = study.bed(name)
        lines = compete(bed, study.arms(), study.kept_in(bed), seeds=count, k=study.k, root=root, workers=workers)
        starts[name] = start_scores(study, bed, root)
        rows += table(study, name, lines)
    found = {"study": study.id, "k": study.k, "starts": starts, "rows": rows}
    study.path.parent.mkdir(parents=True, exist_ok=True)
    disk.replace_file(study.path, (json.dumps(found, indent=1) + "\n").encode())
    return found


def recorded(study: Study) -> dict[str, Any] | None:
    """Its table, one's own before that of the package; None if it was never run."""
    shipped = studies().get(study.id, study.path).with_suffix(".json")
    found = next((path for path in (study.path, shipped) if path.is_file()), None)
    return None if found is None else dict(json.loads(found.read_text(encoding="utf-8")))


def start_scores(study: Study, bed: Bed, root: Path) -> dict[str, float]:
    """How good a bed's start is: its metric, or pass@1 and pass@k, by the unbiased estimate, where that is it.

    Nothing where a problem has no samples.
    """
    from etude.core.task import LanguageTask
    from etude.runs.evaluate import evaluate

    if not isinstance(bed.goal, LanguageTask) or bed.goal.together:
        return {}
    found = evaluate(
        start_of(bed, root), bed.goal, k=(1, study.k), problems=bed.test.problems, samples=study.k, split=bed.split
    )  # fmt: skip
    names = [f"pass@{k}" for k in (1, study.k)] if bed.metric.startswith("pass@") else [bed.metric]
    return {name: round(found[bed.split][name].value, 4) for name in names}
