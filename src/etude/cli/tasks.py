"""`etude tasks`: what there is to get good at."""

from __future__ import annotations

import json as json_module
from typing import Annotated, Any

from cyclopts import App, Parameter

from etude.cli.task_fields import NOTHING, Fields, TaskFields
from etude.core.fields import WholeNumber, check

tasks = App(name="tasks", help="List the tasks; `etude tasks show ID` gives examples of one.")


@tasks.default
def list_tasks(*, json: Annotated[bool, Parameter(negative=())] = False) -> None:
    """List the built-in tasks. Files (data.jsonl) and reasoning-gym:NAME are tasks too.

    Parameters
    ----------
    json
        Print id, family, summary, world, splits and fields of each as JSON.
    """
    from etude.core.registry import family, files, summary

    if json:
        print(json_module.dumps([entry(name) for name in files("tasks")], indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("task", "family", "what"):
        table.add_column(name, no_wrap=name != "what")
    for name in files("tasks"):
        table.add_row(name, family("tasks", name), summary("tasks", name))
    table.add_row(
        "data.jsonl", "", "Your own file (also .csv, .parquet, .gz), a folder of them, or owner/name of the hub."
    )
    table.add_row("CartPole-v1", "", "Any environment of EnvPool or Gymnasium, or your own as file.py:Class.")
    table.add_row("reasoning-gym:NAME", "", "Any data set of the package reasoning-gym (extra 'tasks').")
    Console().print(table)


def entry(name: str) -> dict[str, Any]:
    """A task as `etude tasks --json` shows it."""
    from etude.core.registry import family, load_task, summary

    task = load_task(name)
    return {
        "id": name, "family": family("tasks", name), "summary": summary("tasks", name), "world": task.world,
        "splits": list(task.splits()), "fields": {k: v for k, v in task.to_json().items() if k != "part"},
    }  # fmt: skip


@tasks.command
def show(
    task: str,
    *,
    split: str | None = None,
    count: int = 5,
    model: str | None = None,
    set: Fields = (),
    of_task: TaskFields = NOTHING,
) -> None:
    """A task's splits and a few of its problems; of an environment its spaces.

    Parameters
    ----------
    task
        Its id, data.jsonl, reasoning-gym:NAME, or file.py:name.
    split
        Which split to show; the first by default.
    count
        How many problems.
    model
        Also show the exact text that this model sees of the first problem.
    set
        Fields of the task, as in levels=3. Repeatable.
    """
    from rich.console import Console

    from etude.runs import shorthands
    from etude.runs.presets import of_task as presets_of
    from etude.runs.seen import seen
    from etude.runs.training import compose_task
    from etude.runs.worlds import world_of

    check("count", WholeNumber, count)
    made = compose_task(task, [*shorthands.taken(of_task.given()), *set])
    console = Console(highlight=False)
    for line in world_of(made).preview(made, split, count):
        console.print(line, markup=False, soft_wrap=True)
    for line in seen(made, model, split) if model else ():
        console.print(line, markup=False, soft_wrap=True)
    if named := presets_of(made):
        console.print(f"  presets       {', '.join(preset.method for preset in named)}", markup=False)
