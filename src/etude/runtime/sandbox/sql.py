"""Databases that policies ask in SQL: read-only, each in a process that can be ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.core.errors import ConfigError
from etude.runtime.sandbox.limits import MIB, agree
from etude.runtime.serving import CallFailed, Reason
from etude.runtime.workers import Worker

GRACE = 0.5
"""Seconds beyond its time that a process has to say that a query was stopped."""
MEMORY = 512 * MIB


class QueryFailed(Exception):
    """A query that brought nothing; the text is the rest of a sentence, as in 'may only read'."""


@dataclass(frozen=True)
class Table:
    """What a query found: names of the columns, rows of JSON values, and whether there are more rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool = False


class Database:
    """A database that can be asked and not changed: each query finds it as it was in the beginning.

    Args:
        source: a file of SQLite's, a `.sql` file, or SQL that makes tables, as an environment has it for an episode.
        seconds: that a query may take.
        rows: that are returned at most.

    Raises: ConfigError when it is first asked and cannot be opened.
    """

    def __init__(self, source: str | Path, seconds: float = 2.0, rows: int = 50) -> None:
        path, script = str(source), ""
        if "\n" in path or path.rstrip().endswith(";"):
            path, script = "", path
        elif path.endswith(".sql"):
            path, script = "", _read(Path(path))
        self.seconds, self.rows = seconds, rows
        server = "etude.runtime.sandbox.sql_reader:Reader"
        arguments = {"path": path, "script": script, "memory": MEMORY}
        self._worker = Worker(server, arguments, f"The database {path or 'of a script'}", "etude.tools")

    @property
    def schema(self) -> list[str]:
        """How its tables were made, a line each."""
        return list(self._worker.greeting())

    def query(self, text: str) -> Table:
        """What a query finds. Raises QueryFailed if it does more than read, takes too long, or is none."""
        try:
            message = {"query": text, "seconds": self.seconds, "rows": self.rows}
            found = self._worker.call(message, self.seconds + GRACE)
        except CallFailed as failure:
            raise QueryFailed(_why(failure, self.seconds)) from None
        return Table(tuple(found["columns"]), tuple(tuple(row) for row in found["rows"]), found["more"])

    def close(self) -> None:
        """End its process."""
        self._worker.close()


def _why(failure: CallFailed, seconds: float) -> str:
    if failure.reason is Reason.TIMED_OUT:
        return f"was stopped after {seconds:g} s, and its process with it."
    return "ended the process that it ran in." if failure.reason is Reason.DIED else failure.detail


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8'}.") from None


def same_rows(expected: Table, found: Table, ordered: bool = False) -> bool:
    """Whether two queries found the same, column by column, whatever the columns are called.

    >>> one, two = Table(("a",), ((1,), (2,))), Table(("b",), ((2.0,), (1,)))
    >>> same_rows(one, two), same_rows(one, two, ordered=True)
    (True, False)
    """
    if expected.more or found.more:
        return False  # of what was cut nobody knows whether it is the same
    sides = [side.rows if ordered else sorted(side.rows, key=_order) for side in (expected, found)]
    return len(expected.columns) == len(found.columns) and agree(sides[0], sides[1])


def _order(row: Sequence[Any]) -> list[tuple[str, Any]]:
    """A key that sorts values of several types, and 2 beside 2.0."""
    return [("0", float(v)) if isinstance(v, (int, float)) else ("1", json.dumps(v)) for v in row]
