"""What a finished run shows on the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etude.runs.training import Result


def result(done: Result, quiet: bool = False, method: str = "") -> None:
    """Samples and scores before and after, where everything is, and what to do next.

    Args:
        method: the method as the user named it ('file.py:name'), so that what is suggested can be typed.
    """
    if quiet:
        print(*done.notes, sep="\n", end="\n" * bool(done.notes), file=sys.stderr)
        print(done.folder)
        return
    from rich.console import Console

    console = Console(highlight=False)
    if "after" in done.evaluation:
        if done.evaluation["samples"]["after"]:
            console.print(_samples(done.evaluation))
        config = json.loads((done.folder / "config.json").read_text())
        console.print(_scores(done.evaluation, bool(config.get("reward"))))
    console.print(f"{done.method} on {done.task}: {done.steps} training steps in {done.seconds:.0f} s")
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
    config = json.loads((done.folder / "config.json").read_text())
    about = (f"etude methods show {quote(method)}", "what the method does, and what it changed against its parent")
    if "after" not in done.evaluation:
        return [about]
    if "return" in _metrics(done.evaluation):
        return [*_next_in_control(done, method, config), about]
    exact = "exact" in done.evaluation["after"]
    found = [(f"etude evaluate {quote(str(done.folder))} --k 1,8,64", "how good it is with more samples")]
    found = [] if exact else found
    samples = json.loads((done.folder / "method.json").read_text())["advantages"] is not None
    named = not any(str(config.get(k)).startswith("<") for k in ("task", "reward"))
    if samples and named and not done.notes:  # another method can be trained on the same task
        other = "dr-grpo" if method != "dr-grpo" else "grpo"
        task = quote(config.get("task", done.task)) + (f" --reward {quote(r)}" if (r := config.get("reward")) else "")
        line = f"etude compare {quote(method)} {other} --task {task} --seeds {64 if exact else 3}"
        found.append((line, "whether another method is better, with statistics"))
    return [*found, about]


def _next_in_control(done: Result, method: str, config: dict[str, Any]) -> list[tuple[str, str]]:
    task, other = quote(str(config["task"])), "a2c" if method != "a2c" else "ppo"
    found = [(f"etude evaluate {quote(str(done.folder))} --episodes 100", "how good it is over more episodes")]
    if not task.startswith("'<"):
        line = f"etude compare {quote(method)} {other} --task {task} --seeds 10"
        found.append((line, "whether another method is better, with statistics"))
    return found


def _metrics(evaluation: dict[str, Any]) -> list[str]:
    """Names without settings, in order."""
    names = [m.partition("/")[0] for found in evaluation["after"].values() for m in found]
    return list(dict.fromkeys(names))


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


def _scores(evaluation: dict[str, Any], rewarded: bool = False) -> Any:
    """The table of scores; `rewarded`: a reward function scored beside the task."""
    from rich.table import Table

    control, exact = "return" in _metrics(evaluation), "exact" in evaluation["after"]
    title = "Accuracy of samples, with 95% intervals over problems"
    if control:
        title = "Returns, interquartile means over members, with 95% intervals"
    elif exact:
        title = "Exact expectations, means over the seeds, with 95% intervals"
    table = Table(title=title, title_justify="left")
    for name in ("split", "metric", "before", "after"):
        table.add_column(name, overflow="fold")
    for split, after in evaluation["after"].items():
        old = evaluation["before"][split]
        shown = [m for m in after if m.startswith(("pass@", "return"))]
        said_once = all(e.get("reward") == e.get("pass@1") for e in (old, after))
        if not control and "reward" in after and (rewarded or not said_once):
            shown.append("reward")
        shown += ["entropy"] if exact else []
        for metric in shown:
            before = old.get(metric)
            table.add_row(split, metric, _interval(before), _interval(after[metric]))
    return table


def _interval(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    digits = 3 if abs(found["value"]) < 10 else 1
    value, *ends = (
        "unbounded" if x is None else f"{x:.{digits}f}" for x in (found["value"], found["low"], found["high"])
    )
    return f"{value}  \\[{ends[0]}, {ends[1]}]"


def seeds(results: Sequence[Result]) -> None:
    """Interquartile mean over several seeds."""
    from rich.console import Console

    from etude.evaluation.intervals import bootstrap_interval

    console = Console(highlight=False)
    for split in results[0].evaluation.get("after", {}):
        found = bootstrap_interval([r.score("pass@1", split) for r in results])
        console.print(
            f"{split}: interquartile mean of pass@1 over {len(results)} seeds {found.value:.3f} "
            f"(95% bootstrap interval {found.low:.3f} to {found.high:.3f})"
        )
