"""What a finished run shows on the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from etude.tasks import LOGS

if TYPE_CHECKING:
    from etude.evaluation.report import Wording
    from etude.runs.training import Result


def result(done: Result, quiet: bool = False, method: str = "") -> None:
    """Samples and scores before and after, where everything is, and what to do next.

    Args:
        method: as the user named it ('file.py:name', 'grpo+clip-cov'), so that what is suggested can be typed.
    """
    if quiet:
        print(*done.notes, sep="\n", end="\n" * bool(done.notes), file=sys.stderr)
        print(done.folder)
        return
    from rich.console import Console

    from etude.evaluation.report_evaluation import doubts
    from etude.runs.saved import run_world
    from etude.runs.worlds import world_of

    console = Console(highlight=False)
    if "after" in done.evaluation:
        if done.evaluation["samples"]["after"]:
            console.print(_samples(done.evaluation))
        config = json.loads((done.folder / "config.json").read_text())
        wording = world_of(run_world(done.folder)).WORDING
        console.print(_scores(done.evaluation, wording, bool(config.get("reward"))))
        for doubt in doubts(done.evaluation["after"]):
            console.print(doubt, markup=False, soft_wrap=True)
    if done.best is not None:
        console.print(done.best.sentence(), markup=False, soft_wrap=True)
    steps = "1 training step" if done.steps == 1 else f"{done.steps} training steps"
    console.print(f"{done.method} on {done.task}: {steps} in {done.seconds:.0f} s")
    console.print(f"  report      {done.folder / 'report.html'}", soft_wrap=True)
    console.print(f"  checkpoint  {done.checkpoint}", soft_wrap=True)
    for note in done.notes:
        console.print(f"\n{note}", style="bold red", markup=False, soft_wrap=True)
    console.print("\nWhat to try next:")
    for line, why in _next(done, method or done.method):
        console.print(f"  {line}", style="bold", markup=False, soft_wrap=True)
        console.print(f"      {why}")


def _next(done: Result, method: str) -> list[tuple[str, str]]:
    """Commands that can be typed as they are, with what they are good for."""
    from etude.runs.saved import run_world
    from etude.runs.worlds import world_of

    config = json.loads((done.folder / "config.json").read_text())
    about = (
        f"etude methods show {quote(method.partition('+')[0])}",
        "what the method does, and what it changed against its parent",
    )
    if "after" not in done.evaluation and config["task"] != LOGS:
        return [about]
    return [*world_of(run_world(done.folder)).suggestions(done, method, config), about]


def _samples(evaluation: dict[str, Any]) -> Any:
    from rich.table import Table

    from etude.runtime.progress import printable

    table = Table(title="The same problems before and after", title_justify="left")
    for name in ("split", "prompt", "before", "after"):
        table.add_column(name, overflow="fold")
    pairs = zip(evaluation["samples"]["before"], evaluation["samples"]["after"])
    for before, after in pairs:
        marks = [
            ("[green]✓[/] " if s["success"] else "[red]✗[/] ") + printable(s["completion"][:200])
            for s in (before, after)
        ]
        table.add_row(before["split"], printable(before["prompt"][-200:]), *marks)
    return table


def _scores(evaluation: dict[str, Any], wording: Wording, rewarded: bool = False) -> Any:
    """The table of scores; `rewarded`: a reward function scored beside the task."""
    from rich.table import Table

    table = Table(title=wording.scores, title_justify="left")
    for name in ("split", "metric", "before", "after"):
        table.add_column(name, overflow="fold")
    for split, after in evaluation["after"].items():
        old = evaluation.get("before", {}).get(split, {})
        shown = [m for m in after if m.startswith(wording.leading)]
        reward, first = next((m for m in after if m.partition("/")[0] == "reward"), ""), next(iter(after))
        same = all(e.get(reward) == e.get(first) for e in (old, after))
        if reward and (rewarded or not same):
            shown.append(reward)
        for metric in [*shown, *(m for m in wording.also if m in after)]:
            table.add_row(split, metric, _interval(old.get(metric)), _interval(after[metric]))
    return table


def _interval(interval: dict[str, Any] | None) -> str:
    if interval is None:
        return ""
    digits = 3 if abs(interval["value"]) < 10 else 1
    value, *ends = (
        "unbounded" if x is None else f"{x:.{digits}f}" for x in (interval["value"], interval["low"], interval["high"])
    )
    return f"{value}  \\[{ends[0]}, {ends[1]}]"


def seeds(results: Sequence[Result]) -> None:
    """Interquartile mean over several seeds."""
    from rich.console import Console

    from etude.evaluation.intervals import bootstrap_interval

    console = Console(highlight=False)
    for split, measured in results[0].evaluation.get("after", {}).items():
        metric = next(iter(measured))
        interval = bootstrap_interval([r.score(metric, split) for r in results])
        console.print(
            f"{split}: interquartile mean of {metric} over {len(results)} seeds {interval.value:.3f} "
            f"(95% bootstrap interval {interval.low:.3f} to {interval.high:.3f})"
        )
