"""Inline charts: well-formed, in the right place, readable without seeing them."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from etude.evaluation.svg import PALETTE, Bar, Series, svg_bars, svg_curve
from etude.evaluation.ticks import labels, number, ticks

SVG = "{http://www.w3.org/2000/svg}"


def points(element: ET.Element) -> list[tuple[float, float]]:
    return [tuple(map(float, pair.split(","))) for pair in element.attrib["points"].split()]  # type: ignore[misc]


def test_line_runs_from_corner_to_corner() -> None:
    root = ET.fromstring(svg_curve([Series("reward", [0, 10], [0.0, 1.0])], title="reward", width=300, height=200))
    (line,) = root.findall(f"{SVG}polyline")
    (x0, y0), (x1, y1) = points(line)
    rules = [r.attrib for r in root.findall(f"{SVG}line")]
    left, right = min(float(r["x1"]) for r in rules), max(float(r["x2"]) for r in rules)
    assert (x0, x1) == (left, right)
    assert (y0, y1) == (200 - 34, 8)  # 0 and 1 are ticks, so the frame's own edges
    assert root.attrib["aria-label"] == "reward: reward from 0 to 1, 2 points"
    assert root.attrib["role"] == "img"


def test_band_surrounds_its_line() -> None:
    series = Series("a", [0, 1, 2], np.array([1.0, 2.0, 3.0]), np.array([0.5, 1.5, 2.5]), np.array([1.5, 2.5, 3.5]))
    root = ET.fromstring(svg_curve([series], title="t"))
    band, line = points(root.find(f"{SVG}polygon")), points(root.find(f"{SVG}polyline"))  # type: ignore[arg-type]
    for (x, y), above, below in zip(line, band[:3], reversed(band[3:])):
        assert above[0] == below[0] == x
        assert above[1] < y < below[1]  # pixels grow downwards


def test_gaps_and_single_points() -> None:
    nan = float("nan")
    root = ET.fromstring(svg_curve([Series("a", range(6), [1, 2, None, 3, nan, math.inf])], title="t"))
    assert [len(points(p)) for p in root.findall(f"{SVG}polyline")] == [2]
    assert len(root.findall(f"{SVG}circle")) == 1  # the 3 that stands alone


def test_several_series_have_a_legend_and_their_own_colours() -> None:
    root = ET.fromstring(svg_curve([Series("a", [0, 1], [0, 1]), Series("b<", [0, 1], [1, 0])], title="t"))
    texts = [t.text for t in root.findall(f"{SVG}text")]
    assert "a" in texts and "b<" in texts
    styles = [p.attrib["style"] for p in root.findall(f"{SVG}polyline")]
    assert PALETTE[0] in styles[0] and PALETTE[1] in styles[1]
    alone = ET.fromstring(svg_curve([Series("a", [0, 1], [0, 1])], title="t"))
    assert "a" not in [t.text for t in alone.findall(f"{SVG}text")]


@pytest.mark.parametrize("series", [[], [Series("a", [], [])], [Series("a", [1], [None])]])
def test_no_numbers_is_said(series: list[Series]) -> None:
    assert "no numbers" in svg_curve(series, title="t")


def test_text_cannot_leave_its_place() -> None:
    hostile = '"><script>alert(1)</script>'
    chart = svg_curve([Series(hostile, [0, 1], [0, 1])] * 2, title=hostile, y_label=hostile)
    assert "<script" not in chart + svg_bars([Bar(hostile, 0, 0, 1)], title=hostile)


@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=8))
def test_any_numbers_make_a_chart(pairs: list[tuple[float, float]]) -> None:
    xs, ys = [p[0] for p in pairs], [p[1] for p in pairs]
    root = ET.fromstring(svg_curve([Series("a", xs, ys, ys, ys)], title="t"))
    for line in root.findall(f"{SVG}polyline"):
        assert all(-1 <= v <= 361 for xy in points(line) for v in xy)


def test_bars_stand_where_their_numbers_are() -> None:
    bars = [Bar("a", 0.5, 0.25, 1.0), Bar("a", 0.0, 0.0, 0.0, series=1), Bar("b", 1.0, -math.inf, math.inf)]
    root = ET.fromstring(svg_bars(bars, title="t", span=(0, 1), legend=("x", "y"), width=400))
    groups = root.findall(f"{SVG}g")
    centres = [float(g.find(f"{SVG}circle").attrib["cx"]) for g in groups]  # type: ignore[union-attr]
    assert centres[0] == pytest.approx((centres[1] + centres[2]) / 2, abs=0.1)
    rows = [float(g.find(f"{SVG}circle").attrib["cy"]) for g in groups]  # type: ignore[union-attr]
    assert rows[0] == rows[1] < rows[2]  # bars of one name share a row
    box = groups[0].find(f"{SVG}rect").attrib  # type: ignore[union-attr]
    assert float(box["width"]) == pytest.approx(0.75 * (centres[2] - centres[1]), abs=0.1)
    assert groups[0].find(f"{SVG}title").text == "a 0.500 (from 0.250 to 1)"  # type: ignore[union-attr]
    unbounded = groups[2].find(f"{SVG}rect").attrib  # type: ignore[union-attr]
    assert float(unbounded["width"]) == pytest.approx(centres[2] - centres[1], abs=0.1)


def test_a_bar_without_a_value_keeps_its_row_empty() -> None:
    root = ET.fromstring(svg_bars([Bar("a", math.nan, math.nan, math.nan), Bar("b", 1, 0, 2)], title="t"))
    assert len(root.findall(f"{SVG}g")) == 1
    assert {"a", "b"} <= {t.text for t in root.findall(f"{SVG}text")}


def test_runs_are_dots_of_their_bar() -> None:
    root = ET.fromstring(svg_bars([Bar("a", 1, 0, 2, points=(0.0, 1.0, 2.0))], title="t"))
    assert len(root.findall(f"{SVG}g/{SVG}circle")) == 4


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.03, 0.97, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (-3, 3, [-4, -2, 0, 2, 4]),
        (5, 5, [4.4, 4.6, 4.8, 5, 5.2, 5.4, 5.6]),
        (0, 0, [-1, -0.5, 0, 0.5, 1]),
    ],
)
def test_ticks(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == expected


@example(0.0, 5e-324, 2)
@example(1e-310, 2e-310, 8)
@given(st.floats(-1e200, 1e200), st.floats(-1e200, 1e200), st.integers(2, 8))
def test_ticks_cover_the_range(a: float, b: float, count: int) -> None:
    low, high = sorted((a, b))
    found = ticks(low, high, count)
    slack = 1e-6 * max(abs(low), abs(high), 1e-300)
    assert found[0] <= low + slack and high - slack <= found[-1]
    assert 2 <= len(found) <= 2 * count + 3


def test_numbers_as_people_write_them() -> None:
    written = [0.5, 3.0, 12.345, 1234567.0, 0.01234, 4.5e-7, float("nan")]
    assert [number(v) for v in written] == ["0.500", "3", "12.3", "1,234,567", "0.0123", "4.5e-07", "nan"]
    assert labels([0, 0.25, 0.5]) == ["0.00", "0.25", "0.50"]
    assert labels([0, 20_000, 40_000]) == ["0", "20k", "40k"]
    assert labels([0, 2e6]) == ["0", "2M"]
    assert labels([0, 2e-5]) == ["0", "2e-05"]
