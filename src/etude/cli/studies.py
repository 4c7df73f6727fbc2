"""`etude studies`: recipes of training on several beds, as a table of gains."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

if TYPE_CHECKING:
    from rich.console import Console

    from etude.runs.studies import Study

studies = App(name="studies", help="Recipes on several beds; `show ID` prints a study, `run ID` does what is missing.")


WIDTH = 132
"""Columns of a table, in which no number is cut off; a narrower terminal folds lines."""


@studies.default
def list_studies(*, json: Annotated[bool, Parameter(negative=())] = False) -> None:
    """Every study: its recipes, its beds, and whether it has been run.

    Parameters
    ----------
    json
        As JSON: id, title, paper, about, beds, recipes, seeds, and whether its table is there.
    """
    from etude.runs.studies import load_study, recorded
    from etude.runs.studies import studies as known

    found = [load_study(name) for name in known()]
    if json:
        print(json_module.dumps([_entry(study) for study in found], indent=1))
        return
    for study in found:
        beds = "1 bed" if len(study.beds) == 1 else f"{len(study.beds)} beds"
        cells = f"{len(study.recipes) + 1} recipes x {beds} x {study.seeds} seeds"
        print(f"{study.id:<31} {'done' if recorded(study) else 'not run':<9} {cells}")
        print(f"    {study.about}")


@studies.command
def show(name: str, *, picture: Path | None = None) -> None:
    """A study's file, and its table.

    Parameters
    ----------
    name
        Its id (`etude studies`), or the path of a file.
    picture
        Also draw what each recipe gained, with intervals, to this PNG; of several beds each to one with its name.
    """
    from etude.runs.studies import LEAST, load_study, recorded
    from etude.runs.studies import studies as known

    study = load_study(name)
    print(known().get(name, Path(name)).read_text(encoding="utf-8").rstrip())
    found = recorded(study)
    if found is None:
        print(f"\nNot run yet: etude studies run {name}\n  {_work(study, study.seeds)}")
        if study.seeds > LEAST:
            print(f"  --seeds {LEAST}, the fewest: {_work(study, LEAST)}")
        return
    _print(study, found)
    if picture is not None:
        _draw(study, found, picture)


@studies.command
def run(name: str, *, seeds: int | None = None, runs: Path = Path("runs/beds"), workers: int | None = None) -> None:
    """Train every cell of a study that is missing, one run for each bed, recipe and seed, and write the table.

    Parameters
    ----------
    name
        Its id (`etude studies`), or the path of a file.
    seeds
        Runs of each recipe on each bed; by default what the study says.
    runs
        Where the runs are kept; those that exist are used again, so what was stopped goes on.
    workers
        Runs at a time; all cores by default.
    """
    from etude.runs.studies import load_study, run_study

    study = load_study(name)
    _print(study, run_study(study, seeds=seeds, root=runs, workers=workers))
    print(f"  {study.path}")


def _draw(study: Study, found: dict[str, Any], picture: Path) -> None:
    from etude.evaluation.intervals import Interval
    from etude.evaluation.plots import interval_bars

    for bed in study.beds:
        gains = {row["recipe"]: row["gain"] for row in found["rows"] if row["bed"] == bed and "gain" in row}
        place = picture if len(study.beds) == 1 else picture.with_stem(f"{picture.stem}-{Path(bed).stem}")
        bars = {recipe: Interval(ends[0], ends[1], ends[2], method="paired") for recipe, ends in gains.items()}
        interval_bars(
            bars, place, x_label=f"gain in {study.bed(bed).metric}; the line is {study.baseline}'s", title=bed,
            reference=gains[study.baseline][0],
        )  # fmt: skip
        print(f"  {place}")


def _print(study: Study, found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    console.width = max(console.width, WIDTH)
    for bed in study.beds:
        start = ", ".join(f"{k} {v:.3g}" for k, v in found["starts"].get(bed, {}).items())
        console.print(f"\n{bed}" + (f", from {start}" if start else ""), style="bold")
        shown = Table(box=None, pad_edge=False)
        rows = [row for row in found["rows"] if row["bed"] == bed]
        tokens = any("tokens" in row for row in rows)
        for column in ("recipe", "after", "gain", f"against {study.baseline}", "fell", *["tokens"] * tokens, "seeds"):
            shown.add_column(column, no_wrap=True, justify="left" if column == "recipe" else "right")
        for row in (r for r in rows if "failed" not in r):
            gaps = [_gap(row[k]) if k in row else "" for k in ("gain", "against")]
            used = [f"{row['tokens']:,}" if "tokens" in row else ""] * tokens
            shown.add_row(row["recipe"], f"{row['end']:.3f}", *gaps, f"{row['fell']:.3f}", *used, str(row["seeds"]))
        console.print(shown)
        _print_grid(console, study, rows)
        _print_levels(console, "by level", "levels", rows)
        _print_levels(console, f"by level, pass@{study.k}", "levels_at_k", rows)
        for row in (r for r in rows if "failed" in r):
            console.print(f"{row['recipe']} was left out: {row['failed']}")


def _print_grid(console: Console, study: Study, rows: Sequence[Mapping[str, Any]]) -> None:
    """What is right after training, by the levels of two factors."""
    from rich.table import Table

    from etude.runs.study_table import grid

    found = grid(study, rows)
    if found:
        shown = Table(box=None, pad_edge=False)
        for column in found[0]:
            shown.add_column(column, no_wrap=True, justify="right" if len(shown.columns) else "left")
        for line in found[1:]:
            shown.add_row(*line)
        console.print(shown)


def _print_levels(console: Console, title: str, what: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Shares or pass@k after training by level, and their differences to the baseline."""
    from rich.table import Table

    levels = next((list(row[what]) for row in rows if what in row), [])
    if not levels:
        return
    shown = Table(box=None, pad_edge=False)
    for column in (title, *levels):
        shown.add_column(column, no_wrap=True, justify="left" if column == title else "right")
    for row in (r for r in rows if what in r):
        cells = [row[what][level] for level in levels]
        shown.add_row(row["recipe"], *(f"{c['end']:.3f} {_gap(c['against']) if 'against' in c else ''}" for c in cells))
    console.print(shown)


def _work(study: Study, seeds: int) -> str:
    runs, steps = study.work(seeds)
    return f"{runs:,} runs, {steps:,} training steps in all"


def _entry(study: Study) -> dict[str, Any]:
    from etude.runs.studies import recorded

    told = {k: getattr(study, k) for k in ("id", "title", "paper", "about", "beds", "seeds")}
    return {**told, "recipes": [study.baseline, *study.recipes], "done": recorded(study) is not None}


def _gap(ends: list[float]) -> str:
    value, low, high = ends
    return f"{value:+.3f} ({low:+.3f} to {high:+.3f})"
