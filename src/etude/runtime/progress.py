"""What a run shows on the terminal, and text made safe to show there."""

from __future__ import annotations

import codecs
import re
import sys
import time
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

if TYPE_CHECKING:
    import rich.progress

LIMIT = 64 * 1024
"""Bytes of a text that are shown."""
PLAIN_EVERY = 10.0
"""Seconds between two lines where there is no terminal."""
DRAW_EVERY = 0.1
"""Seconds between two drawings of the bar."""
LEADING = ("accuracy", "preference_accuracy", "return", "reward", "loss")
"""What leads where a step has no headline: of what learns from data the accuracy on pairs, or the loss."""
SHOWN = {"reward": "reward", "tokens_per_second": "tok/s"}
"""Metrics shown beside the headline, where a loop reports them, and what they are called there."""

# Control characters except tab and newline, C1, marks that reverse the direction of text, line separators.
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str | bytes, limit: int = LIMIT, *, markup: bool = True) -> str:
    """Text from a model, safe to print: no escape sequence, control character or markup in it takes effect.

    Args:
        text: bytes are decoded as UTF-8; what is invalid, in either form, becomes U+FFFD.
        limit: longer text is cut after this many bytes, with a marker that says how long it was.
        markup: escape rich's markup; False for text that is printed without rich.
    """
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    whole = len(data) <= limit
    shown = codecs.getincrementaldecoder("utf-8")("replace").decode(data[:limit], final=whole)
    shown = UNSAFE.sub(lambda m: m[0].encode("unicode_escape").decode(), shown.replace("\r\n", "\n"))
    if markup:
        from rich.markup import escape

        shown = escape(shown)
    return shown if whole else f"{shown}\n... (cut: {len(data):,} bytes in all)"


class Progress:
    """A bar with the metric that matters, speed and the time left; plain lines where there is no terminal.

    Args:
        steps: training steps of the whole run.
        headline: the metric that matters.
        quiet: show no progress; only notes, which say that something went wrong.
        stream: where to, stderr by default.
    """

    def __init__(self, steps: int, headline: str = "", *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.steps, self.headline, self.quiet = steps, headline, quiet
        self._stream = stream or sys.stderr
        self._bar: rich.progress.Progress | None = None
        self._shown_at, self._shown_step = -PLAIN_EVERY, 0
        self._looked: dict[str, float] = {}
        self._pace: deque[tuple[int, float]] = deque(maxlen=20)

    def __enter__(self) -> Self:
        if not self.quiet and self._stream.isatty():
            self._bar = _bar(self._stream)
            self._bar.add_task("", total=self.steps, line="")
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def start(self, step: int, seconds: float) -> None:
        """The run goes on from `step`, having taken `seconds` so far."""
        self._pace.append((step, seconds))
        self._shown_step = step

    def update(self, step: int, metrics: Mapping[str, Any], seconds: float) -> None:
        """Show a finished step; `seconds` is the run's time so far. Draws only as often as anyone can read."""
        self._pace.append((step, seconds))
        if self.quiet or not self._due(step):
            return
        self._shown_at, self._shown_step = time.monotonic(), step
        line = self.line(step, metrics, seconds)
        if self._bar is None:
            print(f"step {step}/{self.steps}  {line}", file=self._stream, flush=True)
        else:
            self._bar.update(self._bar.task_ids[0], completed=step, line=line, refresh=True)

    def looked(self, step: int, numbers: Mapping[str, float]) -> None:
        """Show what an evaluation after this step found; its first number stays in the line."""
        self._looked = dict(list(numbers.items())[:1])
        if not self.quiet:
            self.note(f"step {step}/{self.steps}  evaluated: " + "  ".join(f"{k} {v:.3g}" for k, v in numbers.items()))

    def note(self, sentence: str) -> None:
        """Show a sentence above the bar; shown even when quiet, for it says what went wrong."""
        if self._bar is None:
            print(sentence, file=self._stream, flush=True)
        else:
            self._bar.console.print(sentence, markup=False, highlight=False, emoji=False)

    def _due(self, step: int) -> bool:
        since = time.monotonic() - self._shown_at
        if step >= self.steps or since >= (PLAIN_EVERY if self._bar is None else DRAW_EVERY):
            return True
        return self._bar is None and step * 10 // self.steps > self._shown_step * 10 // self.steps

    def line(self, step: int, metrics: Mapping[str, Any], seconds: float) -> str:
        """What is shown of a step: `pass@1 0.31  reward 0.28  1,234 tok/s  0:01:02, 0:05:00 left`."""
        lead = next((k for k in (self.headline, *LEADING) if _is_number(metrics.get(k))), self.headline)
        same = metrics.get("reward") == metrics.get(lead)  # as where the reward is whether it is right
        names = {lead: lead, **{k: v for k, v in SHOWN.items() if k != lead and not (same and k == "reward")}}
        parts = [_entry(label, metrics[name]) for name, label in names.items() if _is_number(metrics.get(name))]
        parts += [_entry(name, value) for name, value in self._looked.items()]
        left = self.left(step)
        return "  ".join([*parts, _clock(seconds) + (f", {_clock(left)} left" if left is not None else "")])

    def left(self, step: int) -> float | None:
        """Seconds to the end at the pace of the last steps; None before there is one."""
        (first, began), (last, ended) = self._pace[0], self._pace[-1]
        return None if last == first else (self.steps - step) * (ended - began) / (last - first)


class Counter:
    """How many of `total` things are done: a bar on a terminal, elsewhere a line every ten seconds.

    Args:
        what: they are, as in 'episodes'.
        quiet: show nothing.
        stream: where to, stderr by default.
    """

    def __init__(self, what: str, total: int, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.what, self.total, self.quiet, self.done = what, total, quiet, 0
        self._stream = stream or sys.stderr
        self._bar: rich.progress.Progress | None = None
        self._shown_at = time.monotonic()

    def __enter__(self) -> Self:
        if not self.quiet and self._stream.isatty():
            self._bar = _bar(self._stream, self.what)
            self._bar.add_task("", total=self.total, line="")
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self.done, refresh=True)
            self._bar.stop()
            self._bar = None

    def add(self, more: int) -> None:
        """So many more are done. Draws only as often as anyone can read."""
        self.done += more
        since = time.monotonic() - self._shown_at
        if self.quiet or since < (PLAIN_EVERY if self._bar is None else DRAW_EVERY):
            return
        self._shown_at = time.monotonic()
        if self._bar is None:
            print(f"{self.done} of {self.total} {self.what}", file=self._stream, flush=True)
        else:
            self._bar.update(self._bar.task_ids[0], completed=self.done, refresh=True)


def _bar(stream: TextIO, what: str = "step") -> rich.progress.Progress:
    """A bar without a thread of its own, so that workers can be forked while it shows."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn(what), MofNCompleteColumn(), BarColumn(24), TextColumn("{task.fields[line]}", markup=False))
    return Bar(*columns, console=Console(file=stream), auto_refresh=False)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def _entry(label: str, value: float) -> str:
    return f"{value:,.0f} {label}" if label == "tok/s" else f"{label} {value:.3g}"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
