"""`etude data convert`: logs that are larger than the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from etude.cli.task_fields import Fields


def convert(
    paths: list[Path],
    *,
    out: Path,
    task: str | None = None,
    columns: str | None = None,
    skip_bad_rows: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    set: Fields = (),
) -> None:
    """Write logs as a file for each column, which `--data` maps: a run takes none of the memory for them.

    Several files are checked and written one after another, so that only the largest of them has to fit into memory.

    Parameters
    ----------
    paths
        All that `train --data` takes; several are one behind the other.
    out
        The folder to write, whole or not at all; give it to `train --data`.
    task
        The environment that they were taken in, whose spaces they must agree with.
    columns
        What the columns of tables are, as in 'obs=x1,x2 action=u reward=r episode=id done=end'.
    skip_bad_rows
        Leave out whole episodes in which something is wrong.
    set
        A field of the logs, as in task.episode_length=200. Repeatable.
    """
    from etude.runs import shorthands
    from etude.runs.data_convert import data_convert

    given = {"columns": columns, "skip_bad_rows": skip_bad_rows}
    fields = [*shorthands.taken({k: v for k, v in given.items() if v}), *set]
    for line in data_convert(paths, out, task, fields):
        print(line)
