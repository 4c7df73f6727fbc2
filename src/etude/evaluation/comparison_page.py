"""`comparison.html`: a comparison on one page, its charts inline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etude.evaluation.page import breakable, escape, facts, page, plain, rows
from etude.evaluation.svg import Bar, Series, svg_bars, svg_curve

if TYPE_CHECKING:
    from etude.evaluation.comparison import Arm, Comparison
    from etude.evaluation.intervals import Interval

FEW = 12
"""Points of a line below which each is marked."""


def render(comparison: Comparison) -> str:
    """The whole page as HTML."""
    names = [arm.name for arm in comparison.arms]
    about = [("metric", comparison.metric), ("tasks", ", ".join(comparison.tasks)), ("better", comparison.direction)]
    sections = [
        f"<h1>{escape(' against '.join([', '.join(names[1:]) or names[0], *names[:1] * (len(names) > 1)]))}</h1>",
        facts(about + [(str(k).replace("_", " "), plain(v)) for k, v in comparison.about.items()]),
        "".join(f'<p class="soft">{escape(note)}</p>' for note in comparison.notes),
        f"<h2>Final scores</h2>{_scores(comparison)}",
        _improvement(comparison),
        _curves(comparison),
        f"<h2>Every run</h2>{_runs(comparison)}",
    ]
    return page(comparison.title, "\n".join(filter(None, sections)))


def _scores(comparison: Comparison) -> str:
    bars = [_bar(arm, i) for i, arm in enumerate(comparison.arms) if not arm.doubt]
    chart = svg_bars(
        bars, title=f"Interquartile mean of {comparison.metric}", x_label=comparison.metric, row=34, width=460
    )
    first = comparison.arms[0].name
    lines = [
        [
            breakable(a.label),
            str(len(a.scores)),
            f"{a.iqm.value:.3f}" if a.doubt else _interval(a.iqm),
            _interval(a.difference) if a.difference else "",
        ]
        for a in comparison.arms
    ]
    table = rows(["", "runs", "interquartile mean", f"mean − {escape(first)}"], lines)
    note = "Bars are 95% bootstrap intervals of the interquartile mean over runs, dots are single runs."
    return f'<div class="beside"><div class="card">{chart}</div>{table}</div><p class="soft">{note}</p>'


def _bar(arm: Arm, index: int) -> Bar:
    return Bar(arm.name, arm.iqm.value, arm.iqm.low, arm.iqm.high, index, tuple(arm.scores.ravel()))


def _improvement(comparison: Comparison) -> str:
    if not comparison.improvement:
        return ""
    bars = [Bar(f"{x} > {y}", p.value, p.low, p.high) for (x, y), p in comparison.improvement.items()]
    title = "Probability that a run of one arm is better than a run of the other"
    chart = svg_bars(bars, title=title, x_label="probability; 0.5 is no difference", span=(0, 1), width=560)
    return f'<h2>Probability of improvement</h2><div class="tiles"><div class="card">{chart}</div></div>'


def _curves(comparison: Comparison) -> str:
    cards = []
    for what, task, bands in comparison.panels():
        series = [
            Series(name, list(band.x), list(band.value), list(band.low), list(band.high), marked=len(band.x) < FEW)
            for name, band in bands.items()
        ]
        title = f"{what} on {task}"
        chart = svg_curve(series, title=title, x_label=comparison.axis, y_label=what, width=540, height=300)
        cards.append(f'<div class="card"><header><b>{escape(title)}</b></header>{chart}</div>')
    note = "Lines are interquartile means over runs, bands their 95% bootstrap intervals."
    if any(arm.evaluated for arm in comparison.arms):
        note += f" Points of {escape(comparison.metric)} are evaluations; lines between them only join them."
    note = f'<p class="soft">{note}</p>'
    title = "Frontiers" if comparison.axis.startswith("KL") else "Learning curves"
    return f'<h2>{title}</h2><div class="grid large">{"".join(cards)}</div>{note}' if cards else ""


def _runs(comparison: Comparison) -> str:
    head = ["", *(f"run {i + 1}" for i in range(max(len(a.scores) for a in comparison.arms)))]
    lines = [
        [f"{breakable(arm.name)} on {breakable(task)}", *(f"{v:.4g}" for v in arm.scores[:, i])]
        for arm in comparison.arms
        for i, task in enumerate(comparison.tasks)
    ]
    return rows(head, lines)


def _interval(interval: Interval) -> str:
    return f'{interval.value:.3f} <span class="range">[{interval.low:.3f}, {interval.high:.3f}]</span>'
