"""What a finished run shows on the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etude.training import Result


def result(done: Result, quiet: bool = False, method: str = "") -> None:
    """Samples and scores before and after, where everything is, and what to do next.

    Args:
        method: the method as the user named it ('file.py:name'), so that what is suggested can be typed.
    """
    if quiet:
        print(done.folder)
        return
    from rich.console import Console

    console = Console(highlight=False)
    if "after" in done.evaluation:
        console.print(_samples(done.evaluation))
        console.print(_scores(done.evaluation))
    console.print(f"{done.method} on {done.task}: {done.steps} steps in {done.seconds:.0f} s")
    console.print(f"  report      {done.folder / 'report.html'}", soft_wrap=True)
    console.print(f"  checkpoint  {done.checkpoint}", soft_wrap=True)
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
    found = [(f"etude evaluate {quote(str(done.folder))} --k 1,8,64", "how good it is with more samples")]
    samples = json.loads((done.folder / "method.json").read_text())["advantages"] is not None
    named = not any(str(config.get(k)).startswith("<") for k in ("task", "reward"))
    if samples and named:  # another method can be trained on the same task
        other = "dr-grpo" if method != "dr-grpo" else "grpo"
        task = quote(config.get("task", done.task)) + (f" --reward {quote(r)}" if (r := config.get("reward")) else "")
        line = f"etude compare {quote(method)} {other} --task {task} --seeds 3"
        found.append((line, "whether another method is better, with statistics"))
    return [*found, about]


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


def _scores(evaluation: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title="Accuracy of samples, with 95% intervals over problems", title_justify="left")
    for name in ("split", "metric", "before", "after"):
        table.add_column(name)
    for split, after in evaluation["after"].items():
        old = evaluation["before"][split]
        shown = [m for m in after if m.startswith("pass@")]
        if any(e.get("reward") != e.get("pass@1") for e in (old, after)):  # else it says the same once more
            shown.append("reward")
        for metric in shown:
            before = old.get(metric)
            table.add_row(split, metric, _interval(before), _interval(after[metric]))
    return table


def _interval(found: dict[str, Any] | None) -> str:
    return (
        "" if found is None else f"{found['value']:.3f}  [{found['low']:.3f}, {found['high']:.3f}]".replace("[", "\\[")
    )


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
