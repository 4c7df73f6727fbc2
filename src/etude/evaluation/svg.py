"""Charts as inline SVG, without a plotting library: line charts with bands, and interval bars.

Text takes the colour of the page around it; lines take `--series-N` where the page defines it, so one chart is
right on light and dark pages alike. Every chart carries a sentence for those who do not see it.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TypeGuard

from etude.evaluation.ticks import labels, number, ticks

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#AA4499", "#B07D00", "#3B9AC9", "#555555")
"""Okabe and Ito's colours, which the colour-blind can tell apart, the pale ones darkened to be seen on white."""
CHAR = 6.1  # width of a character at the font size below, in pixels, as an estimate
FONT = 'font-family="system-ui,-apple-system,Segoe UI,Roboto,Helvetica,Arial,sans-serif" font-size="11"'


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Args:
        x, y: the points; where y is None or not finite the line has a gap.
        low, high: edges of a band around it.
        faint: a pale thin line without an entry in the legend, for raw values behind their mean.
        marked: a dot at each point, where there are few.
        scattered: dots alone, of points in no order.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    faint: bool = False
    marked: bool = False
    scattered: bool = False


@dataclass(frozen=True)
class Bar:
    """One interval of an interval chart: `name` is its row (bars of one name share it), `series` its colour.

    `points` are shown as small dots below it: the runs that the interval summarises.
    """

    name: str
    value: float
    low: float
    high: float
    series: int = 0
    points: Sequence[float] = ()


def colour(series: int) -> str:
    """The CSS colour of a series: the page's, else the palette's."""
    index = series % len(PALETTE)
    return f"var(--series-{index + 1},{PALETTE[index]})"


def svg_curve(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str = "step",
    y_label: str = "",
    width: int = 360,
    height: int = 200,
) -> str:
    """A line chart as an SVG element: axes with ticks, a band per series that has one, a legend if there are several.

    Args:
        title: read aloud by screen readers, with first and last values; it is not drawn.
        x_label, y_label: with units; drawn below the axis and above it.
        width, height: in pixels; the element shrinks with its container.
    """
    ys = [v for s in series for edge in (s.y, s.low, s.high) if edge is not None for v in edge if _is_number(v)]
    xs = [x for s in series for x in s.x if _is_number(x)]
    if not ys or not xs:
        return _element(width, height, f"{title}: no numbers", [_text(width / 2, height / 2, "no numbers")])
    y_ticks = ticks(min(ys), max(ys), max(2, height // 45))
    left = 10 + CHAR * max(map(len, labels(y_ticks)))
    names = list(dict.fromkeys(s.name for s in series))
    legend, legend_height = _legend(names, left, width)
    frame = _Frame(left, width - 12, 8 + legend_height + (18 if y_label else 0), height - 34, xs, y_ticks)
    body = [*legend, *_y_axis(frame, y_ticks), *_x_axis(frame, x_label)]
    if y_label:
        body.append(_text(0, legend_height + 14, y_label, "start", muted=True))
    for one in series:
        body += _line(one, names.index(one.name), frame)
    return _element(width, height, _sentence(title, series), body)


def svg_bars(
    bars: Sequence[Bar],
    *,
    title: str,
    x_label: str = "",
    legend: Sequence[str] = (),
    width: int = 520,
    row: int = 26,
    span: Sequence[float] = (),
) -> str:
    """Horizontal intervals with a dot at the estimate, a row for each name, above a common axis.

    Args:
        legend: what each series is, where there are several.
        span: what the axis must at least cover (`(0, 1)` for probabilities); the bars themselves otherwise.
    """
    ends = [v for b in bars for v in (b.value, b.low, b.high, *b.points) if math.isfinite(v)] + list(span)
    if not ends:
        return _element(width, 40, f"{title}: no numbers", [_text(width / 2, 20, "no numbers")])
    names = list(dict.fromkeys(b.name for b in bars))
    left = min(16 + CHAR * max(map(len, names)), width / 2)
    keys, top = _legend(legend, left, width)
    bottom = top + 6 + row * len(names)
    frame = _Frame(left, width - 16, top, bottom, ticks(min(ends), max(ends), 5), (0, 1))
    body = [*keys, *_x_axis(frame, x_label, grid=True)]
    for i, name in enumerate(names):
        y = top + 3 + row * (i + 0.5)
        body.append(_text(left - 10, y + 4, _short(name, int(left / CHAR)), "end"))
        body += [_interval(bar, y, frame) for bar in bars if bar.name == name and math.isfinite(bar.value)]
    return _element(width, bottom + (38 if x_label else 22), f"{title}: " + "; ".join(map(_told, bars)), body)


# Axes


class _Frame:
    """The rectangle between the axes, in pixels, and the ranges that it shows."""

    def __init__(
        self, left: float, right: float, top: float, bottom: float, xs: Sequence[float], ys: Sequence[float]
    ) -> None:
        self.left, self.right, self.top, self.bottom = left, right, top, bottom
        self.x0, self.x1, self.y0, self.y1 = min(xs), max(xs), min(ys), max(ys)

    def x(self, value: float) -> float:
        share = (value - self.x0) / (self.x1 - self.x0) if self.x1 > self.x0 else 0.5
        return self.left + share * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - (value - self.y0) / (self.y1 - self.y0) * (self.bottom - self.top)


def _y_axis(frame: _Frame, values: Sequence[float]) -> list[str]:
    body = []
    for value, label in zip(values, labels(values)):
        y = frame.y(value)
        body.append(_rule(frame.left, y, frame.right, y))
        body.append(_text(frame.left - 6, y + 4, label, "end", muted=True))
    return body


def _x_axis(frame: _Frame, label: str, grid: bool = False) -> list[str]:
    inside = [t for t in ticks(frame.x0, frame.x1, 5) if frame.x0 - 1e-9 <= t <= frame.x1 + 1e-9] or [frame.x0]
    body = []
    for value, text in zip(inside, labels(inside)):
        x = frame.x(value)
        body.append(
            _rule(x, frame.top if grid else frame.bottom, x, frame.bottom + (0 if grid else 4), 0.15 if grid else 0.5)
        )
        body.append(_text(x, frame.bottom + 16, text, muted=True))
    return [*body, _text((frame.left + frame.right) / 2, frame.bottom + 31, label, muted=True)] if label else body


# Marks


def _interval(bar: Bar, y: float, frame: _Frame) -> str:
    low, high = (min(max(frame.x(v), frame.left), frame.right) for v in (bar.low, bar.high))
    runs = [f'<circle cx="{frame.x(v):.1f}" cy="{y + 9:.1f}" r="1.8" opacity=".7"/>' for v in bar.points]
    return (
        f'<g style="fill:{colour(bar.series)}"><title>{_escape(_told(bar))}</title>'
        f'<rect x="{low:.1f}" y="{y - 5:.1f}" width="{max(high - low, 1):.1f}" height="10" rx="2" opacity=".35"/>'
        f'<circle cx="{frame.x(bar.value):.1f}" cy="{y:.1f}" r="4"/>{"".join(runs)}</g>'
    )


def _line(series: Series, index: int, frame: _Frame) -> list[str]:
    body = []
    for xs, ys, lows, highs in _pieces(series):
        if lows:
            edge = [*zip(xs, highs), *zip(reversed(xs), reversed(lows))]
            body.append(f'<polygon points="{_points(edge, frame)}" style="fill:{colour(index)};opacity:.18"/>')
        dots = list(zip(xs, ys)) if series.marked or series.scattered or len(xs) == 1 else []
        for x, y in dots:
            where = f'cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}"'
            body.append(f'<circle {where} r="2.5" style="fill:{colour(index)}"/>')
        if len(xs) > 1 and not series.scattered:
            style = "stroke-width:1;opacity:.35" if series.faint else "stroke-width:1.8"
            dash = f' stroke-dasharray="{(2, 6, 9)[index % 3]} 3"' if index >= 4 else ""
            body.append(
                f'<polyline points="{_points(zip(xs, ys), frame)}" fill="none" stroke-linejoin="round"{dash} '
                f'style="stroke:{colour(index)};{style}"/>'
            )
    return body


def _pieces(series: Series) -> Iterable[tuple[list[float], list[float], list[float], list[float]]]:
    """The runs of points without a gap."""
    banded = series.low is not None and series.high is not None
    piece: list[tuple[float | None, ...]] = []
    for point in [*zip(series.x, series.y, *([series.low, series.high] if banded else [])), (None,)]:
        if all(map(_is_number, point)):
            piece.append(point)
        elif piece:
            xs, ys, *band = map(list, zip(*piece))
            yield xs, ys, *(band or ([], []))
            piece = []


def _legend(names: Sequence[str], left: float, width: float) -> tuple[list[str], int]:
    """Names beside short strokes, in as many rows as they need, and their height; nothing for a single series."""
    if len(names) < 2:
        return [], 0
    body, x, y = [], left, 10
    for i, name in enumerate(names):
        need = 24 + CHAR * len(name)
        if x > left and x + need > width:
            x, y = left, y + 15
        body.append(f'<rect x="{x:.1f}" y="{y - 5}" width="14" height="3" rx="1.5" style="fill:{colour(i)}"/>')
        body.append(_text(x + 18, y, name, "start"))
        x += need + 6
    return body, y + 4


def _points(pairs: Iterable[tuple[float, float]], frame: _Frame) -> str:
    return " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in pairs)


def _rule(x1: float, y1: float, x2: float, y2: float, opacity: float = 0.15) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor" '
        f'stroke-opacity="{opacity}"/>'
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", muted: bool = False) -> str:
    style = ' fill-opacity=".65"' if muted else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{_escape(text)}</text>'


def _element(width: int, height: int, sentence: str, body: Iterable[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{_escape(sentence)}" {FONT} '
        f'fill="currentColor" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'style="display:block;max-width:100%;height:auto">'
        f"{''.join(body)}</svg>"
    )


# Words


def _sentence(title: str, series: Sequence[Series]) -> str:
    parts = []
    for one in series:
        values = [v for v in one.y if _is_number(v)]
        if values and not one.faint:
            parts.append(f"{one.name} from {number(values[0])} to {number(values[-1])}, {len(values)} points")
    return f"{title}: " + "; ".join(parts)


def _told(bar: Bar) -> str:
    return f"{bar.name} {number(bar.value)} (from {number(bar.low)} to {number(bar.high)})"


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: max(length - 1, 1)] + "…"


def _escape(text: str) -> str:
    return html.escape(text, quote=True)


def _is_number(value: float | None) -> TypeGuard[float]:
    return isinstance(value, Real) and abs(value) < 1e300
