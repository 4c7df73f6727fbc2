"""`etude data make`: logs of chance, of a trained policy or of a controller."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from etude.cli.task_fields import Fields

if TYPE_CHECKING:
    from etude.runs.data_make import MadeData

Repeated = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]


def make(
    task: str,
    *,
    out: Path,
    levels: str = "random,medium,expert,replay,mixed",
    size: int = 20_000,
    steps: int | None = None,
    behaviour: str = "auto",
    epsilon: float | None = None,
    seed: int = 0,
    set: Fields = (),
    quiet: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> None:
    """Record whole episodes in Minari's format, a folder for each level, with how likely each action was.

    The same command goes on where it stopped, and two of them come to the same numbers. Needs the extra `data`.

    Parameters
    ----------
    task
        A name (`etude tasks`), an environment of EnvPool or Gymnasium, or file.py:name.
    out
        The folder.
    levels
        random: every action as likely as another. expert: the best of twenty stages of the behaviour, whose score is
        100. medium: the first stage that scores a third of it. replay: an equal share of every stage up to medium.
        mixed: half of the steps chance's, half the expert's. Where they are named also medium-expert: half medium's,
        half the expert's; and undirected, in a point maze: who goes from one cell to another.
    size
        Steps of each level at least, in whole episodes.
    steps
        Environment steps that a method is trained for; by default the task's.
    behaviour
        controller (the task's own, as point mazes have one), sac, dqn or another method that learns from a replay. By
        default the controller where there is one, else sac, or dqn of choices.
    epsilon
        How often a controller that is the expert, or a policy that makes choices, does anything, 0.05 by default.
    seed
        All randomness comes from it.
    set
        A field of the task (task.dense=true) or of the method (optimizer.lr=1e-3). Repeatable.
    quiet
        Print only the folder.
    """
    from etude.runs.data_make import make_data

    made = make_data(
        task, levels=levels, out=out, size=size, steps=steps, behaviour=behaviour, epsilon=epsilon, seed=seed, set=set,
        quiet=quiet,
    )  # fmt: skip
    if quiet:
        print(made.folder)
    else:
        show(made)


def show(made: MadeData) -> None:
    """The levels, and what to type next."""
    from rich.console import Console
    from rich.table import Table

    console, table = Console(highlight=False), Table(box=None, pad_edge=False)
    for name in ("level", "return", "score", "episodes", "steps", "fingerprint"):
        table.add_column(name, justify="left" if name in ("level", "fingerprint") else "right")
    for level, facts in made.levels.items():
        score = "" if facts["score"] is None else f"{facts['score']:.1f}"
        counts = f"{facts['episodes']:,}", f"{facts['steps']:,}"
        table.add_row(level, f"{facts['return']:.4g}", score, *counts, facts["fingerprint"][:12])
    console.print(table)
    if made.returns:
        low, high = made.returns["chance"], made.returns["expert"]
        console.print(f"Score 0 is chance's return, {low:.4g}, and 100 that of the expert of this recipe, {high:.4g}.")
    level = _instructive(made.levels)
    allowed = made.levels[level]["allow"]
    allow = f" --set task.allow={','.join(allowed)}" if allowed else ""
    console.print("\nWhat to try next:")
    method = "bc-discrete" if made.discrete else "iql"
    line = f"  etude train {method} --task {made.task} --data {made.folder / level}{allow}"
    console.print(line, style="bold", markup=False, soft_wrap=True)


def _instructive(levels: Mapping[str, Mapping[str, Any]]) -> str:
    """The level to learn from first: one without faults to be allowed, and where there is more than imitation in it."""
    whole = [level for level, facts in levels.items() if not facts["allow"]] or [*levels]
    return next((level for level in ("mixed", "medium-expert", "replay", "medium") if level in whole), whole[0])
