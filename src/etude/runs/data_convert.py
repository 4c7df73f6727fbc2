"""Logs as mapped columns: `etude data convert`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from etude.core.errors import ConfigError
from etude.experience.logs.columns import ABOUT, ColumnFiles
from etude.runs.training import compose_task
from etude.runtime import disk
from etude.tasks import LOGS


def data_convert(
    paths: Sequence[Path], out: Path, task: str | None = None, fields: Sequence[str] = ()
) -> Iterator[str]:
    """Read logs one after another and write them to the folder `out`; a line for each, and one at the end.

    Args:
        task: the environment that they were taken in, whose spaces they must agree with.
        fields: of the logs, as in `task.columns=...`.

    Raises: DataError for logs with faults and for those of different environments; ConfigError for a folder that is
        something else; RunFolderError for a full disk.
    """
    if out.exists() and not (out / ABOUT).is_file():
        raise ConfigError(f"{out} is there and is nothing that `etude data convert` wrote: give --out another name.")
    if any(path.resolve() == out.resolve() for path in paths):
        raise ConfigError(f"{out} is what is read: give --out another name.")
    with disk.when_full(lambda: f"{out} was not written."), ColumnFiles(out) as files:
        for path in paths:
            made: Any = compose_task(task or LOGS, [f"task.data={path}", *fields])
            logs = made.logs()
            files.append(logs)
            line = logs.sentence()
            del logs  # before the next are read
            yield line
    size = sum(p.stat().st_size for p in out.iterdir())
    yield f"{out}: {files.rows:,} steps, {size / 1e6:,.1f} MB. Learn from them with --data {out}."
