"""Figures as PNG files, for papers and talks. Needs the extra 'plots' (matplotlib, imported when a figure is made).

Drawn through matplotlib's objects on the Agg canvas: nobody's pyplot figures, settings or backend are touched.
For charts inside a page, without matplotlib, see `svg_curve`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from etude.core.errors import MissingExtraError
from etude.evaluation.intervals import Band, Interval, Randomness, curve_band, performance_profile
from etude.evaluation.pass_at_k import over_problems, pass_at_k
from etude.evaluation.svg import PALETTE, svg_curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, SOFT, LINE = "#1b1f24", "#5a6470", "#dfe3e8"
DPI = 160


def learning_curves(
    arms: Mapping[str, ArrayLike],
    steps: ArrayLike,
    path_png: Path,
    *,
    y_label: str = "score",
    x_label: str = "training steps",
    title: str = "",
    rng: Randomness = 0,
) -> Path:
    """Interquartile mean over runs along training, with its 95% bootstrap band, a line for each arm.

    Args:
        arms: curves by name, each [runs, points] or [runs, tasks, points].
        steps: [points], where on the x axis each point lies.
        path_png: the file to write.

    Raises MissingExtraError without matplotlib; DataError for curves that do not fit the steps.
    """
    bands = {name: curve_band(curves, steps, rng=rng) for name, curves in arms.items()}
    return draw_panels({title: bands}, path_png, x_label=x_label, y_label=y_label)


def performance_profiles(
    arms: Mapping[str, ArrayLike],
    thresholds: ArrayLike,
    path_png: Path,
    *,
    x_label: str = "score τ",
    title: str = "",
    rng: Randomness = 0,
) -> Path:
    """Fraction of runs above each score, with its 95% band; arms: {name: [runs] or [runs, tasks]}."""
    bands = {name: performance_profile(scores, thresholds, rng=rng) for name, scores in arms.items()}
    return draw_panels({title: bands}, path_png, x_label=x_label, y_label="fraction of runs with score > τ")


def pass_at_k_curve(
    arms: Mapping[str, ArrayLike], path_png: Path, *, title: str = "", resamples: int = 2000, rng: Randomness = 0
) -> Path:
    """pass@k against k = 1, 2, 4, ... n on a doubling axis, with 95% intervals over problems.

    Args:
        arms: `correct` [problems, n] by name, usually {"before": ..., "after": ...}.
    """
    bands = {}
    for name, correct in arms.items():
        n = np.shape(correct)[1]
        ks = [*(2**i for i in range(n.bit_length()) if 2**i < n), n]
        intervals = [over_problems(pass_at_k(correct, k), resamples=resamples, rng=rng) for k in ks]
        bands[name] = Band(np.log2(ks), *np.array([(f.value, f.low, f.high) for f in intervals]).T)
    return draw_panels({title: bands}, path_png, x_label="attempts k", y_label="pass@k", doubling=True)


def interval_bars(
    intervals: Mapping[str, Interval],
    path_png: Path,
    *,
    x_label: str = "interquartile mean",
    title: str = "",
    reference: float | None = None,
) -> Path:
    """One horizontal bar per interval with a mark at the estimate, the first on top.

    Args:
        reference: where a line is drawn across, as at no difference; it is always in the picture.
    """
    figure, (ax,) = _figure(max(0.5 * len(intervals) + 1.3, 2.0), [title])
    ax.use_sticky_edges = False  # else the longest bar ends on the frame
    for i, interval in enumerate(intervals.values()):
        ax.barh(
            i, interval.high - interval.low, left=interval.low, height=0.5, color=_colour(i), alpha=0.35, linewidth=0
        )
        ax.plot([interval.value] * 2, [i - 0.25, i + 0.25], color=_colour(i), linewidth=2.2)
    if reference is not None:
        ax.axvline(reference, color=SOFT, linewidth=1.2, linestyle=(0, (4, 3)))
    ax.set_yticks(range(len(intervals)), list(intervals), color=INK)
    ax.set_ylim(len(intervals) - 0.5, -0.5)
    ax.grid(axis="x", color=LINE, linewidth=0.8)
    ax.set_xlabel(x_label)
    return _save(figure, path_png)


CLOSE = 0.035
"""Share of a side of `crossed_intervals` that a line of text is high."""


def crossed_intervals(
    panels: Mapping[tuple[str, str], Mapping[str, tuple[Interval, Interval]]], path_png: Path, *, title: str = ""
) -> Path:
    """What was measured in two places, a cross with a name for each thing, a panel for each pair of places.

    On the line both places say the same; in the shaded quarters they say the opposite. What lies close to something
    larger that has its name there has none, since nobody could read it.

    Args:
        panels: by the labels of both axes, x first, what there is by name: its interval there and there.
        title: above the first panel.
    """
    figure, axes = _figure(4.4, [title, *[""] * (len(panels) - 1)])
    names = list(dict.fromkeys(name for things in panels.values() for name in things))
    for ax, (labels, things) in zip(axes, panels.items()):
        ends = [x for pair in things.values() for one in pair for x in (one.low, one.high) if np.isfinite(x)]
        low, high = min([0.0, *ends]), max([0.0, *ends])
        low, high = low - 0.06 * (high - low), high + 0.06 * (high - low)
        ax.fill_between([low, 0], 0, high, color=LINE, alpha=0.45, linewidth=0)
        ax.fill_between([0, high], low, 0, color=LINE, alpha=0.45, linewidth=0)
        ax.plot([low, high], [low, high], color=SOFT, linewidth=0.8, linestyle=(0, (4, 3)))
        named = list[tuple[float, float]]()
        for name, (x, y) in sorted(things.items(), key=lambda thing: -max(abs(one.value) for one in thing[1])):
            colour = _colour(names.index(name))
            ax.plot([max(x.low, low), min(x.high, high)], [y.value] * 2, color=colour, linewidth=1.2, alpha=0.6)
            ax.plot([x.value] * 2, [max(y.low, low), min(y.high, high)], color=colour, linewidth=1.2, alpha=0.6)
            ax.plot([x.value], [y.value], marker="o", markersize=4.5, color=colour)
            if all(abs(x.value - a) > 0.25 * (high - low) or abs(y.value - b) > CLOSE * (high - low) for a, b in named):
                named.append((x.value, y.value))
                ax.annotate(name, named[-1], xytext=(4, 4), textcoords="offset points", fontsize=7.5, color=INK)
        ax.set_xlim(low, high)
        ax.set_ylim(low, high)
        ax.set_aspect("equal")
        ax.set_xlabel(labels[0])
        ax.set_ylabel(labels[1])
    return _save(figure, path_png)


def draw_histogram(
    counts: Sequence[int], edges: Sequence[float], path_png: Path, *, x_label: str, title: str = ""
) -> Path:
    """Bars of how many there are between edges, one more than counts."""
    figure, (ax,) = _figure(3.0, [title])
    widths = [b - a for a, b in itertools.pairwise(edges)]
    ax.bar(edges[:-1], counts, width=widths, align="edge", color=_colour(0), edgecolor="white", linewidth=0.8)
    ax.grid(axis="y", color=LINE, linewidth=0.8)
    ax.set_xlabel(x_label)
    ax.set_ylabel("episodes", color=INK)
    return _save(figure, path_png)


class Stretch(NamedTuple):
    """Something that a worker did: from when to when (seconds), its colour, and whether it was left unfinished.

    Stretches of one lane are drawn in one row; lanes of one worker follow each other.
    """

    worker: str
    lane: int
    begin: float
    end: float
    series: int
    left: bool = False


def schedules(
    panels: Mapping[str, Sequence[Stretch]], path_png: Path, *, legend: Sequence[str] = (), x_label: str = "seconds"
) -> Path:
    """Who did what when: a panel for each run, below each other with one axis of time, a row for each lane of a worker.

    Args:
        legend: what each series is; a series beyond it has the colour of series modulo that many.
    """
    figure, axes = _figure(1.0, list(panels), columns=1)
    rows = [sorted({(s.worker, s.lane) for s in stretches}) for stretches in panels.values()]
    figure.set_size_inches(10, 1.1 * len(panels) + 0.09 * sum(map(len, rows)) + 0.3)
    end = max((s.end for stretches in panels.values() for s in stretches), default=1.0)
    for ax, stretches, lanes in zip(axes, panels.values(), rows):
        place = {lane: i for i, lane in enumerate(lanes)}
        for s in stretches:
            look = {"color": LINE} if s.left else {"color": _colour(s.series % max(1, len(legend) or len(PALETTE)))}
            ax.barh(place[s.worker, s.lane], s.end - s.begin, left=s.begin, height=1.0, linewidth=0, **look)
        workers = {w: [place[lane] for lane in lanes if lane[0] == w] for w, _ in lanes}
        ax.set_yticks([float(np.mean(places)) for places in workers.values()], list(workers), color=INK)
        for places in workers.values():
            ax.axhline(max(places) + 0.5, color=LINE, linewidth=0.8)
        ax.set_ylim(len(lanes) - 0.5, -0.5)
        ax.set_xlim(0, end)
    axes[-1].set_xlabel(x_label)
    marks = [axes[0].barh(0, 0, color=_colour(i), label=name) for i, name in enumerate(legend)]
    if marks:
        axes[0].legend(
            handles=marks, frameon=False, labelcolor=INK, fontsize=9, ncols=len(marks), loc="lower right",
            bbox_to_anchor=(1, 0.98), handlelength=1,
        )  # fmt: skip
    return _save(figure, path_png)


def draw_panels(
    panels: Mapping[str, Mapping[str, Band]], path: Path, *, x_label: str, y_label: str, doubling: bool = False,
    legends: bool = False,
) -> Path:  # fmt: skip
    """Lines with bands, a panel for each title (a task, say), three beside each other; colours mean the same in all.

    With `doubling`, x is log2 of what the axis says. With `legends` every panel has lines, colours and a legend of its
    own, on one scale.
    """
    figure, axes = _figure(4.0, list(panels))
    names = list(dict.fromkeys(name for bands in panels.values() for name in bands))
    for ax, bands in zip(axes, panels.values()):
        own = list(bands) if legends else names
        for name, band in bands.items():
            colour, marker = _colour(own.index(name)), "o" if len(band.x) < 12 else None
            ax.fill_between(band.x, band.low, band.high, color=colour, alpha=0.18, linewidth=0)
            ax.plot(band.x, band.value, color=colour, linewidth=2, label=name, marker=marker, markersize=4)
        ax.grid(axis="y", color=LINE, linewidth=0.8)
        ax.set_xlabel(x_label)
        if doubling:
            places = sorted({float(x) for band in bands.values() for x in band.x})
            ax.set_xticks(places, [f"{2**x:.0f}" for x in places])
        if legends:
            ax.sharey(axes[0])
            ax.legend(frameon=False, labelcolor=INK, fontsize=9)
    axes[0].set_ylabel(y_label)
    if len(names) > 1 and not legends:
        axes[0].legend(frameon=False, labelcolor=INK, fontsize=9)
    return _save(figure, path)


def _figure(height: float, titles: Sequence[str], columns: int = 3) -> tuple[Any, list[Any]]:
    """A figure with axes for each title: no frame, quiet ticks, grid behind the lines."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("Drawing a figure", "plots") from error
    columns = min(len(titles), columns)
    rows = -(-len(titles) // columns)
    figure = Figure(figsize=(6.4 if columns == 1 else 4.4 * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(rows, columns, i + 1) for i in range(len(titles))]
    for ax, title in zip(axes, titles):
        ax.set_axisbelow(True)
        for side, spine in ax.spines.items():
            spine.set_visible(side == "bottom")
            spine.set_color(SOFT)
        ax.tick_params(colors=SOFT, length=3, labelsize=9)
        ax.tick_params(axis="y", length=0)
        for label in (ax.xaxis.label, ax.yaxis.label):
            label.set_color(INK)
        ax.set_title(title, loc="left", color=INK, fontsize=11, fontweight="bold")
    return figure, axes


def _save(figure: Figure, path: Path) -> Path:
    path = Path(path)
    figure.savefig(path, dpi=DPI, format="png", metadata={"Software": "etude"})
    return path


def _colour(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


__all__ = [
    "Stretch", "crossed_intervals", "draw_histogram", "draw_panels", "interval_bars", "learning_curves",
    "pass_at_k_curve", "performance_profiles", "schedules", "svg_curve",
]  # fmt: skip
