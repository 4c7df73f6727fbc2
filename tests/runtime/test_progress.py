"""Progress lines, and text of models made harmless."""

from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from etude.runtime import progress
from etude.runtime.progress import Progress, printable


def rendered(text: str) -> str:
    """What rich prints for a string with markup."""
    out = io.StringIO()
    Console(file=out, width=10_000, color_system="truecolor", force_terminal=True).print(
        text, highlight=False, emoji=False, soft_wrap=True, end=""
    )
    return out.getvalue()


def test_escapes_controls_and_markup_are_shown_not_done() -> None:
    assert printable("a\x1b[31mred\x00\x9b\x7f\rb", markup=False) == r"a\x1b[31mred\x00\x9b\x7f\rb"
    assert printable("invoice\u202efdp.exe", markup=False) == r"invoice\u202efdp.exe"
    assert printable("tab\tline\r\nnext\n", markup=False) == "tab\tline\nnext\n"
    assert printable(b"ok \xff\xc3\xa9", markup=False) == "ok \ufffdé"
    assert printable("lone \ud800!", markup=False) == "lone \ufffd\ufffd\ufffd!"
    assert rendered(printable("[red]x[/red] [link=file:///]y[/]")) == "[red]x[/red] [link=file:///]y[/]"


def test_long_text_is_cut_with_a_marker() -> None:
    assert printable("é" * 10, limit=5, markup=False) == "éé\n... (cut: 20 bytes in all)"
    assert printable("é" * 10, limit=20, markup=False) == "é" * 10
    shown = printable("x" * 1_000_000)
    assert shown == "x" * 65536 + "\n... (cut: 1,000,000 bytes in all)"


@pytest.mark.slow
@given(st.text(st.characters(codec=None, categories=None)) | st.binary())
def test_nothing_gets_through(text: str | bytes) -> None:
    shown = printable(text, markup=False)
    assert all(unicodedata.category(c) != "Cc" or c in "\t\n" for c in shown)
    shown.encode()
    assert "\x1b" not in rendered(printable(text))


def lines(steps: int, *, quiet: bool = False, terminal: bool = False, pace: float = 2.0) -> list[str]:
    out = io.StringIO()
    out.isatty = lambda: terminal  # type: ignore[method-assign]
    with Progress(steps, "pass@1", quiet=quiet, stream=out) as shown:
        shown.start(0, 0.0)
        for step in range(1, steps + 1):
            metrics = {"pass@1": step / steps, "reward": 0.25, "tokens_per_second": 1234.5, "kl": 1.0, "accuracy": None}
            shown.update(step, metrics, step * pace)
    return out.getvalue().splitlines()


def test_plain_lines_at_every_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    found = lines(100)
    assert len(found) == 11  # the first step, then one per tenth
    assert found[0] == "step 1/100  pass@1 0.01  reward 0.25  1,234 tok/s  0:00:02, 0:03:18 left"
    assert found[1].startswith("step 10/100  pass@1 0.1 ")
    assert found[-1] == "step 100/100  pass@1 1  reward 0.25  1,234 tok/s  0:03:20, 0:00:00 left"
    monkeypatch.setattr(progress, "PLAIN_EVERY", 0.0)
    assert len(lines(100)) == 100


def test_quiet_prints_nothing_but_notes() -> None:
    assert lines(10, quiet=True) == lines(10, quiet=True, terminal=True) == []
    out = io.StringIO()
    Progress(10, quiet=True, stream=out).note("step-4 is damaged.")
    assert out.getvalue() == "step-4 is damaged.\n"


def test_the_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    text = "\n".join(lines(50, terminal=True))
    assert "50/50" in text and "pass@1 1 " in text and "0:01:40, 0:00:00 left" in text
    assert text.count("pass@1") < 10  # drawn as often as anyone can read, not at every step


def test_time_left_follows_the_recent_pace_and_a_resumed_start() -> None:
    shown = Progress(200, quiet=True)
    shown.start(100, 5000.0)
    assert shown.left(100) is None
    shown.update(101, {}, 5001.0)
    assert shown.left(101) == pytest.approx(99.0)
    for i in range(30):
        shown.update(102 + i, {}, 5001.0 + 3 * (i + 1))
    assert shown.left(131) == pytest.approx(69 * 3.0)


@pytest.mark.parametrize(
    ("metrics", "line"),
    [
        ({"loss": 0.5, "rows": 2}, "loss 0.5"),  # demonstrations
        ({"preference_accuracy": 0.75, "loss": 0.5}, "preference_accuracy 0.75"),  # a reward model
        ({"accuracy": 0.25, "reward": 0.25, "loss": 0.5}, "accuracy 0.25"),  # the reward is whether it is right
        ({"accuracy": 0.25, "reward": -0.5, "loss": 0.5}, "accuracy 0.25  reward -0.5"),
    ],
)
def test_one_number_leads(metrics: dict[str, float], line: str) -> None:
    shown = Progress(10, "accuracy", quiet=True)
    shown.update(1, metrics, 1.0)
    assert shown.line(1, metrics, 1.0) == f"{line}  0:00:01"


def test_an_evaluation_has_a_line_and_stays_in_view() -> None:
    out = io.StringIO()
    shown = Progress(10, "accuracy", stream=out)
    shown.looked(5, {"test/pass@1": 0.5, "test/reward": 0.25})
    assert out.getvalue() == "step 5/10  evaluated: test/pass@1 0.5  test/reward 0.25\n"
    shown.update(6, {"accuracy": 0.75}, 1.0)
    assert out.getvalue().splitlines()[1] == "step 6/10  accuracy 0.75  test/pass@1 0.5  0:00:01"
