"""Comparing arms: interquartile means with intervals, probability of improvement, and curves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from etude.core.errors import ConfigError, DataError, MissingExtraError
from etude.evaluation.aggregates import Array, mean, table
from etude.evaluation.intervals import (
    Band,
    Interval,
    bootstrap_interval,
    curve_band,
    difference_interval,
    probability_of_improvement,
    welch_interval,
    widened,
    won,
)  # fmt: skip

if TYPE_CHECKING:
    from rich.table import Table

Direction = Literal["higher", "lower"]
FEW = 10
"""Runs per arm below which a bootstrap of the difference is too narrow, and Welch's interval is used."""


class Written(NamedTuple):
    """Files that were written, and sentences about those that were not."""

    files: list[Path]
    notes: list[str]


@dataclass(frozen=True)
class Arm:
    """One side of a comparison.

    Args:
        scores: [runs, tasks], final scores.
        iqm: interquartile mean over runs and tasks.
        difference: mean minus that of the first arm; None for the first arm, and where one of the two means nothing.
        curves: interquartile mean along training, by task.
        evaluated: that of the metric wherever the policies were evaluated, by task.
        doubt: why its scores mean nothing; '' where nothing says that.
    """

    name: str
    scores: Array
    iqm: Interval
    difference: Interval | None = None
    curves: Mapping[str, Band] = field(default_factory=dict)
    evaluated: Mapping[str, Band] = field(default_factory=dict)
    doubt: str = ""

    @property
    def label(self) -> str:
        """What it is called where its numbers are shown."""
        return f"{self.name} (means nothing)" if self.doubt else self.name


@dataclass(frozen=True)
class Comparison:
    """Arms on the same tasks; the first is what the others are measured against. Made by `compare_arms`.

    Args:
        improvement: probability that a run of the first of a pair is better than one of the second; of arms that mean
            something.
        curve, axis: what the curves are of, and along what.
        about: what else the page should say (model, steps, seeds, commit).
        notes: what a reader must know to read the numbers.
    """

    metric: str
    direction: Direction
    tasks: tuple[str, ...]
    arms: tuple[Arm, ...]
    improvement: Mapping[tuple[str, str], Interval]
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    curve: str = ""
    axis: str = "training steps"

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values: scores, intervals, curves."""
        return {
            "metric": self.metric, "direction": self.direction, "tasks": list(self.tasks), "about": dict(self.about),
            "arms": {a.name: _arm_json(a, self.tasks) for a in self.arms},
            "improvement": [{"better": x, "than": y, **p.to_json()} for (x, y), p in self.improvement.items()],
            "notes": list(self.notes), "curve": self.curve, "axis": self.axis,
        }  # fmt: skip

    def table(self) -> Table:
        """The comparison as a table for the terminal."""
        from rich.markup import escape
        from rich.table import Table

        first = self.arms[0].name
        caption = escape(" ".join(self.notes)) or None
        grid = Table(title=escape(self.title), caption=caption, title_justify="left", caption_justify="left")
        for heading in ("arm", "runs", "IQM", "95% interval", f"mean - {first}", f"P(better than {first})"):
            grid.add_column(escape(heading), justify="left" if heading == "arm" else "right")
        for arm in self.arms:
            pair = (arm.difference, self.improvement.get((arm.name, first)))
            ends = "" if arm.doubt else _brackets(arm.iqm)
            cells = (str(len(arm.scores)), f"{arm.iqm.value:.3f}", ends, *(str(p or "") for p in pair))
            grid.add_row(escape(arm.label), *cells)
        return grid

    @property
    def title(self) -> str:
        """What is compared, in a line."""
        return f"{self.metric} on {', '.join(self.tasks)} ({self.direction} is better)"

    def panels(self) -> list[tuple[str, str, dict[str, Band]]]:
        """What there is to draw along training: what it is, the task, and each arm's band."""
        drawings = []
        for task in self.tasks:
            drawings.append((self.metric, task, {a.name: a.evaluated[task] for a in self.arms if task in a.evaluated}))
            drawings.append((self.curve, task, {a.name: a.curves[task] for a in self.arms if task in a.curves}))
        return [panel for panel in drawings if panel[2]]

    def write(self, folder: Path) -> Written:
        """Write `comparison.json`, `comparison.html`, and `curves.png` if there are curves and matplotlib is there."""
        from etude.evaluation.comparison_page import render
        from etude.runtime.jsonl import plain

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        data, page = folder / "comparison.json", folder / "comparison.html"
        data.write_text(json.dumps(plain(self.to_json()), indent=1, allow_nan=False), encoding="utf-8")
        page.write_text(render(self), encoding="utf-8")
        return self._draw(folder, Written([data, page], []))

    def _draw(self, folder: Path, written: Written) -> Written:
        from etude.evaluation.plots import draw_panels

        panels = {f"{what} on {task}": bands for what, task, bands in self.panels()}
        if panels:
            path = folder / "curves.png"
            try:
                draw_panels(panels, path, x_label=self.axis, y_label="")
                written.files.append(path)
            except MissingExtraError as error:
                written.notes.append(f"curves.png was left out: {error}")
        return written


def compare_arms(
    scores: Mapping[str, Mapping[str, ArrayLike]],
    curves: Mapping[str, Mapping[str, ArrayLike]] | None = None,
    steps: ArrayLike | None = None,
    *,
    evaluated: Mapping[str, Mapping[str, ArrayLike]] | None = None,
    evaluated_at: ArrayLike | None = None,
    shared: Mapping[str, ArrayLike] | None = None,
    metric: str = "score",
    curve: str = "",
    axis: str = "training steps",
    direction: Direction = "higher",
    about: Mapping[str, Any] | None = None,
    doubts: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Compare arms run on the same tasks, each with as many runs on every task.

    Args:
        scores: final scores [runs] by arm and task, on one scale over tasks (see `aggregates.min_max`).
        curves: [runs, points] by arm and task.
        steps: [points], the training steps of the curves.
        evaluated: [runs, points] of the metric by arm and task, where the policies were evaluated.
        evaluated_at: [points], the training steps of those.
        shared: [draws] by arm, of an error that all its runs share (that they were scored on the same few episodes):
            what an arm would have come to by each draw, which is the same draw in every arm. All intervals of scores
            hold it too; curves do not.
        metric: what the scores are, with its unit.
        curve: what the curves are of; the metric itself unless said otherwise.
        axis: what `steps` count.
        direction: whether 'higher' or 'lower' is better.

        doubts: by arm why its scores mean nothing, of arms where that is so.
        notes: sentences that stand before those about the numbers.

    Raises DataError for arms with other tasks than the first, uneven runs, or scores that are not finite.
    """
    _check_direction(direction)
    tasks = tuple(next(iter(scores.values()), ()))
    if not tasks:
        raise DataError("There is nothing to compare: give the scores of at least one arm on at least one task.")
    tables = {name: _table(name, by_task, tasks) for name, by_task in scores.items()}
    bands, gaps = _bands(curves or {}, steps, resamples, seed)
    points, missing = _bands(evaluated or {}, evaluated_at, resamples, seed)
    first, doubted = next(iter(tables)), doubts or {}

    def sound(x: str, y: str) -> bool:
        return x != y and not {x, y} & doubted.keys()

    common = _Common({name: np.asarray(draws, float) for name, draws in (shared or {}).items()})
    arms = [
        Arm(name, runs, common.of(bootstrap_interval(runs, resamples=resamples, rng=seed), name),
            common.of(difference(runs, tables[first], seed=seed), name, first) if sound(name, first) else None,
            bands.get(name, {}), points.get(name, {}), doubted.get(name, ""))
        for name, runs in tables.items()
    ]  # fmt: skip
    better = 1 if direction == "higher" else -1

    def improved(y: str, x: str) -> Interval:
        interval = probability_of_improvement(better * tables[y], better * tables[x], resamples=resamples, rng=seed)
        return common.of_improvement(interval, better * tables[y], better * tables[x], better, (y, x))

    improvement = {(y, x): improved(y, x) for x, y in combinations(tables, 2) if sound(x, y)}
    said = (*notes, *(f"{name}: {why}." for name, why in doubted.items()), *_cautions(tables), *gaps, *missing)
    return Comparison(metric, direction, tasks, tuple(arms), improvement, about or {}, said, curve or metric, axis)


@dataclass(frozen=True)
class _Common:
    """Draws of the error that the runs of an arm share, by arm; of none, intervals stay as they are."""

    draws: Mapping[str, Array]

    def of(self, interval: Interval, *arms: str) -> Interval:
        """That of an arm, or of an arm minus another, with it."""
        return widened(interval, self._moved(*arms)) if self.draws else interval

    def of_improvement(
        self, interval: Interval, x: Array, y: Array, better: int, arms: tuple[str, str]
    ) -> Interval:  # fmt: skip
        """P(X > Y) as it would be by each draw."""
        if not self.draws:
            return interval
        moved = self._moved(*arms)
        each = [won(x + better * by, y) for by in moved - moved.mean()]
        found = widened(interval, each)
        return replace(found, low=max(0.0, found.low), high=min(1.0, found.high))

    def _moved(self, arm: str, than: str = "") -> Array:
        return self.draws[arm] - self.draws[than] if than else self.draws[arm]


def difference(x: ArrayLike, y: ArrayLike, *, seed: int = 0, level: float = 0.95) -> Interval:
    """mean(x) - mean(y) with Welch's interval below ten runs per arm, else with the stratified bootstrap's."""
    if min(len(table(x)), len(table(y))) < FEW:
        return welch_interval(x, y, level=level)
    return difference_interval(x, y, mean, rng=seed, level=level)


def _brackets(interval: Interval) -> str:
    """The ends of an interval as text."""
    return f"[{interval.low:.3f}, {interval.high:.3f}]"


def _table(name: str, by_task: Mapping[str, ArrayLike], tasks: Sequence[str]) -> Array:
    if set(by_task) != set(tasks):
        raise DataError(f"All arms must have the same tasks; {name} has {sorted(by_task)}, not {sorted(tasks)}.")
    columns = [np.asarray(by_task[task], float) for task in tasks]
    if len({c.shape for c in columns}) > 1 or columns[0].ndim != 1:
        counts = ", ".join(f"{task} {c.shape}" for task, c in zip(tasks, columns))
        raise DataError(f"{name} must have scores [runs], as many on every task, got {counts}.")
    return table(np.stack(columns, 1))


def _bands(
    curves: Mapping[str, Mapping[str, ArrayLike]], steps: ArrayLike | None, resamples: int, seed: int
) -> tuple[dict[str, dict[str, Band]], list[str]]:
    """Curves as bands, without the points at which some run is not finite; and a sentence about each such curve."""
    bands: dict[str, dict[str, Band]] = {}
    notes = []
    for name, by_task in curves.items():
        for task, values in by_task.items():
            runs = np.asarray(values, float)
            x = np.arange(runs.shape[-1]) if steps is None else np.asarray(steps, float)
            whole = np.isfinite(runs).all(0)
            if not whole.all():
                notes.append(
                    f"{name} on {task}: curve without {(~whole).sum()} of {whole.size} points that some run lacks."
                )
                runs, x = runs[:, whole], x[whole] if x.shape == whole.shape else x
            bands.setdefault(name, {})[task] = curve_band(runs, x, resamples=resamples, rng=seed)
    return bands, notes


def _cautions(tables: Mapping[str, Array]) -> list[str]:
    fewest = min(map(len, tables.values()))
    if fewest >= FEW:
        return []
    runs = f"{fewest} run{'s' * (fewest > 1)} per arm"
    return [f"With {runs} bootstrap intervals are too narrow; differences of means use Welch's t interval."]


def _arm_json(arm: Arm, tasks: Sequence[str]) -> dict[str, Any]:
    return {
        "runs": len(arm.scores), "iqm": arm.iqm.to_json(), "mean": float(arm.scores.mean()),
        "difference": arm.difference and arm.difference.to_json(), "doubt": arm.doubt,
        "scores": dict(zip(tasks, arm.scores.T.tolist())),
        "curves": _bands_json(arm.curves), "evaluated": _bands_json(arm.evaluated),
    }  # fmt: skip


def _bands_json(bands: Mapping[str, Band]) -> dict[str, Any]:
    return {t: {k: getattr(band, k).tolist() for k in ("x", "value", "low", "high")} for t, band in bands.items()}


def _check_direction(direction: str) -> None:
    if direction not in ("higher", "lower"):
        raise ConfigError(f"direction must be 'higher' or 'lower', got {direction!r}.")
