"""SQL for a policy that asks a database: it can be read, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from etude.core.errors import DataError
from etude.runtime.sandbox.sql import Database, QueryFailed, Table


def reader(source: str = "") -> Callable[..., str]:
    """The tool `sql` over a database file, or over what a `.sql` file makes.

    Raises: DataError for a file that is neither.
    """
    if not source:
        raise DataError("The tool sql needs a database: sql:shop.db, or sql:shop.sql, a file that makes one.")
    database = Database(source)
    schema = "; ".join(database.schema)

    def sql(query: str) -> str:
        return asked(database, query)

    sql.__doc__ = f"Ask a database, which can only be read. Its tables: {schema}\n\nArgs:\n    query: one SELECT."
    return sql


def asked(database: Database, query: str) -> str:
    """What a query finds, as text. Raises ValueError with a sentence if it fails: how a tool says so."""
    try:
        return listed(database.query(query))
    except QueryFailed as failure:
        raise ValueError(f"The query {failure}") from None


def listed(table: Table) -> str:
    """A table as text.

    >>> print(listed(Table(("item", "price"), (("lamp", 7), ("tent", None)), more=True)))
    item | price
    lamp | 7
    tent | NULL
    ... (the first 2 rows)
    """
    lines = [table.columns, *table.rows]
    text = "\n".join(" | ".join("NULL" if v is None else str(v) for v in line) for line in lines)
    return text + (f"\n... (the first {len(table.rows)} rows)" if table.more else "")
