"""Figures: written as PNG, without touching pyplot, or refused in a sentence."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from etude.core.errors import DataError, MissingExtraError
from etude.evaluation import plots
from etude.evaluation.intervals import Band, Interval

CURVES = {"grpo": np.linspace(0, 1, 20).reshape(4, 5), "dapo": np.linspace(0, 2, 20).reshape(4, 5)}
CORRECT = np.random.default_rng(0).random((20, 6)) < 0.4
TWO = [plots.Stretch("learner", 0, 1.0, 2.0, 0), plots.Stretch("sampler", 1, 0.0, 1.5, 1, left=True)]
CROSSED = {
    "a": (Interval(0.5, 0.4, 0.7), Interval(-0.2, -0.3, 0.1)),
    "b": (Interval(0.2, 0.1, 0.3), Interval(0.2, 0.2, 0.2)),
}
FIGURES: dict[str, Callable[[Path], Path]] = {
    "learning": lambda p: plots.learning_curves(CURVES, range(5), p, y_label="pass@1", title="compose"),
    "bars": lambda p: plots.interval_bars({"a": Interval(0.5, 0.4, 0.7), "b": Interval(0.2, 0.2, 0.2)}, p),
    "pass": lambda p: plots.pass_at_k_curve({"before": CORRECT, "after": ~CORRECT}, p, resamples=50),
    "schedules": lambda p: plots.schedules({"plain": TWO, "ahead": TWO[:1]}, p, legend=("step 1", "step 2")),
    "crossed": lambda p: plots.crossed_intervals({("small", "large"): CROSSED}, p, title="effects"),
    "profiles": lambda p: plots.performance_profiles({"a": [0.1, 0.5, 0.9]}, np.linspace(0, 1, 11), p),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_written_and_do_not_change(name: str, tmp_path: Path) -> None:
    first, second = (FIGURES[name](tmp_path / file) for file in ("a.png", "b.png"))
    assert first.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert first.read_bytes() == second.read_bytes()


def test_figures_show_the_statistics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: seen.append(figure) or path)
    FIGURES["learning"](tmp_path)
    FIGURES["pass"](tmp_path)
    learning, attempts = (figure.axes[0] for figure in seen)
    np.testing.assert_allclose(learning.lines[0].get_ydata(), CURVES["grpo"][1:3].mean(0))  # the middle two of four
    assert learning.get_ylabel() == "pass@1" and learning.get_title(loc="left") == "compose"
    assert [t.get_text() for t in learning.get_legend().get_texts()] == ["grpo", "dapo"]
    assert attempts.lines[0].get_ydata()[[0, -1]] == pytest.approx([CORRECT.mean(), CORRECT.any(1).mean()])
    assert [t.get_text() for t in attempts.get_xticklabels()] == ["1", "2", "4", "6"]


def test_panels_can_have_lines_of_their_own_on_one_scale(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: seen.append(figure) or path)
    at = np.array([0.0, 1.0])
    panels = {"pairs": {"DPO": Band(at, at, at, at)}, "samples": {"RLOO": Band(at, 3 * at, 3 * at, 3 * at)}}
    for legends in (False, True):
        plots.draw_panels(panels, tmp_path, x_label="KL", y_label="gold", legends=legends)
    shared, own = (figure.axes for figure in seen)
    assert [ax.lines[0].get_color() for ax in own] == [shared[0].lines[0].get_color()] * 2
    assert shared[0].lines[0].get_color() != shared[1].lines[0].get_color()
    assert [[t.get_text() for t in ax.get_legend().get_texts()] for ax in own] == [["DPO"], ["RLOO"]]
    assert own[0].get_ylim() == own[1].get_ylim() and own[0].get_ylim()[1] >= 3


def test_crossed_intervals_show_both_places_on_equal_axes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Lines: where both are equal, then x interval, y interval and mark of each thing, with its name beside."""
    seen = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: seen.append(figure) or path)
    FIGURES["crossed"](tmp_path)
    (ax,) = seen[0].axes
    _, across, up, mark = (line.get_xydata().tolist() for line in ax.lines[:4])
    assert across == [[0.4, -0.2], [0.7, -0.2]] and up == [[0.5, -0.3], [0.5, 0.1]] and mark == [[0.5, -0.2]]
    assert [t.get_text() for t in ax.texts] == ["a", "b"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("small", "large")
    assert ax.get_xlim() == ax.get_ylim() and ax.get_xlim()[0] < -0.3 < 0.7 < ax.get_xlim()[1]


def test_schedules_show_who_did_what_when(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A row for each lane in the order of names, one axis of time, what was left is pale."""
    seen = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: seen.append(figure) or path)
    FIGURES["schedules"](tmp_path)
    plain, ahead = seen[0].axes
    bars = [(b.get_x(), b.get_width(), b.get_y() + b.get_height() / 2) for b in plain.patches[:2]]
    assert bars == [(1.0, 1.0, 0.0), (0.0, 1.5, 1.0)]
    assert [t.get_text() for t in plain.get_yticklabels()] == ["learner", "sampler"]
    assert plain.get_xlim() == ahead.get_xlim() == (0, 2.0)
    assert plain.patches[0].get_facecolor() != plain.patches[1].get_facecolor()
    assert [t.get_text() for t in plain.get_legend().get_texts()] == ["step 1", "step 2"]


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in [m for m in sys.modules if m.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'etude\[plots\]'"):
        FIGURES["bars"](tmp_path / "a.png")


def test_curves_must_fit_their_steps(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="5 points but there are 4 steps"):
        plots.learning_curves(CURVES, range(4), tmp_path / "a.png")


@pytest.mark.slow
def test_the_room_is_light_to_import() -> None:
    """Neither matplotlib nor scipy nor torch at import, and pyplot never."""
    rooms = ["aggregates", "comparison", "comparison_page", "intervals", "page", "pass_at_k", "plots", "report", "svg"]
    imports = "; ".join(f"import etude.evaluation.{room}" for room in rooms)
    heavy = "[m for m in ('matplotlib', 'scipy', 'torch', 'pandas') if m in sys.modules]"
    code = f"import sys; {imports}; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_line_of_no_difference_is_in_the_picture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: seen.append(figure) or path)
    bars = {"a": Interval(0.5, 0.4, 0.7), "b": Interval(0.3, 0.2, 0.4)}
    plots.interval_bars(bars, tmp_path)
    plots.interval_bars(bars, tmp_path, reference=0.0)
    without, drawn = (figure.axes[0] for figure in seen)
    assert without.get_xlim()[0] > 0.1
    assert drawn.get_xlim()[0] <= 0 and 0.0 in [line.get_xdata()[0] for line in drawn.lines]
