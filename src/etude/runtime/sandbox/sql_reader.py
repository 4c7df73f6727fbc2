"""What answers queries in a process of its own: a database that can only be read, within limits.

Neither half is enough. What SQLite is told not to do (an authorizer that allows reading alone, limits, a progress
handler) cannot stop one long operation, such as printing 900 million characters; what the process is told (its memory,
and its end by the one who waits for it) cannot keep a query from writing a file.
"""

from __future__ import annotations

import re
import resource
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etude.runtime.serving import CallFailed, NotLoaded, Reason

ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
"""What a statement may do beside calling functions."""
REFUSED = {
    "load_extension", "randomblob", "zeroblob", "readfile", "writefile", "edit", "fts3_tokenizer", "fsdir",
    "sqlite_compileoption_get", "sqlite_compileoption_used",
}  # fmt: skip
"""Functions that are not called: those of files, and those whose only use is to fill the memory."""
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000, sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000, sqlite3.SQLITE_LIMIT_COLUMN: 200,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100, sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000, sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 32,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0, sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 10,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100, sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}  # fmt: skip
STEPS = 1_000
"""Instructions of SQLite's between two looks at the clock."""
NO_TABLE = "The database has no table."
LONGEST = 1_000
"""Characters of a value that are shown."""


class Reader:
    """Serves one database: a message is a query, its time in seconds, and how many rows are wanted.

    Args:
        path: a database file, which is opened so that it cannot change; or '' for one that `script` makes.
        script: SQL that makes the database, run as it stands: it is the user's own.
        memory: bytes of address space.
    """

    def __init__(self, path: str, script: str, memory: int) -> None:
        self.path, self.content = path, b""
        if script:
            self.content = _made(script)
        elif not Path(path).is_file() or not _is_database(Path(path)):
            raise NotLoaded(f"{path} is no database of SQLite.")
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        self.greeting = _schema(self._opened(guarded=False))

    def __call__(self, message: Mapping[str, Any]) -> dict[str, Any]:
        connection = self._opened(guarded=True, until=time.monotonic() + message["seconds"])
        try:
            return _answer(connection, message["query"], message["rows"])
        except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
            raise CallFailed(Reason.RAISED, _why(error, message["seconds"])) from None
        finally:
            connection.close()

    def _opened(self, guarded: bool, until: float = 0.0) -> sqlite3.Connection:
        """The database as it was in the beginning: a fresh copy, or the file as what cannot change."""
        if self.content:
            connection = sqlite3.connect(":memory:")
            connection.deserialize(self.content)
        else:
            connection = sqlite3.connect(f"{Path(self.path).resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        connection.text_factory = lambda b: b.decode(errors="replace")
        if guarded:
            for limit, most in LIMITS.items():
                connection.setlimit(limit, most)
            connection.executescript("PRAGMA query_only = 1; PRAGMA temp_store = MEMORY;")  # sorting writes no file
            connection.set_authorizer(_allowed)
            connection.set_progress_handler(lambda: time.monotonic() > until, STEPS)
        return connection


def _allowed(action: int, first: str | None, second: str | None, *where: object) -> int:
    """SQLite's question whether a statement may do something: an allow-list."""
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_DENY if (second or "").lower() in REFUSED else sqlite3.SQLITE_OK
    return sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY


def _answer(connection: sqlite3.Connection, query: str, rows: int) -> dict[str, Any]:
    cursor = connection.execute(query)
    columns = [d[0] for d in cursor.description or ()]
    found = [[_shown(v) for v in row] for row in cursor.fetchmany(rows + 1)]
    return {"columns": columns, "rows": found[:rows], "more": len(found) > rows}


def _shown(value: object) -> object:
    """A value that JSON has, cut if it is long."""
    if isinstance(value, bytes):
        return f"x'{value[: LONGEST // 2].hex()}'"
    return value[:LONGEST] if isinstance(value, str) else value


def _why(error: Exception, seconds: float) -> str:
    """What went wrong, as a sentence."""
    if isinstance(error, MemoryError):
        return "ran out of memory."
    said = re.sub(r"\s+", " ", str(error))[:300].rstrip(".")
    if said == "interrupted":
        return f"was stopped after {seconds:g} s."
    if any(word in said for word in ("not authorized", "prohibited", "authorization denied")):
        return f"may only read ({said})."
    return f"failed: {said}."


def _made(script: str) -> bytes:
    """The database that a script makes. Raises NotLoaded if it fails."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(script)
        if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise NotLoaded(NO_TABLE)
        return connection.serialize()
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise NotLoaded(f"The script of the database failed: {error}.") from None
    finally:
        connection.close()


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\x00"


def _schema(connection: sqlite3.Connection) -> list[str]:
    """How its tables and views were made. Raises NotLoaded for a file that cannot be read, or that holds none."""
    asked = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND type IN ('table', 'view') ORDER BY name"
    try:
        found = [" ".join(str(row[0]).split()) for row in connection.execute(asked)]
    except sqlite3.Error as error:
        raise NotLoaded(f"The database cannot be read: {error}.") from None
    finally:
        connection.close()
    if not found:
        raise NotLoaded(NO_TABLE)
    return found
