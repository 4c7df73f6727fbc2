"""Databases that can only be read: what SQLite is told not to do, and what its process is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from etude.core.errors import ConfigError
from etude.runtime.sandbox.sql import Database, QueryFailed, Table, same_rows
from etude.runtime.sandbox.sql_reader import Reader

SCRIPT = "CREATE TABLE shop(item TEXT, price INTEGER);\nINSERT INTO shop VALUES ('lamp', 7), ('tent', 42), ('mug', 3);"
ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c"
WRITES = (
    "INSERT INTO shop VALUES ('x', 1)", "UPDATE shop SET price = 0", "DELETE FROM shop", "DROP TABLE shop",
    "CREATE TABLE x(a)", "CREATE TEMP TABLE x(a)", "ATTACH 'evil.db' AS evil", "VACUUM INTO 'evil.db'", "VACUUM",
    "PRAGMA query_only = 0", "PRAGMA table_info(shop)", "SELECT * FROM pragma_table_info('shop')", "BEGIN", "ANALYZE",
    "SELECT load_extension('evil')", "SELECT hex(randomblob(400000000))", "SELECT zeroblob(400000000)",
    "CREATE VIRTUAL TABLE x USING fts5(a)", "EXPLAIN SELECT 1; DROP TABLE shop",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("databases")
    connection = sqlite3.connect(made / "shop.db")
    connection.executescript(SCRIPT)
    connection.close()
    (made / "shop.sql").write_text(SCRIPT)
    return made


@pytest.fixture(scope="module", params=["shop.db", "shop.sql", ""])
def database(request: pytest.FixtureRequest, folder: Path) -> Iterator[Database]:
    made = Database(folder / request.param if request.param else SCRIPT, seconds=1.0, rows=2)
    yield made
    made.close()


@pytest.fixture
def reader(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """In this process, whose memory stays as it is."""
    monkeypatch.setattr("resource.setrlimit", lambda *given: None)
    return Reader(str(folder / "shop.db"), "", 0)


@pytest.mark.slow
def test_it_is_read_and_rows_are_cut(database: Database) -> None:
    assert database.schema == ["CREATE TABLE shop(item TEXT, price INTEGER)"]
    found = database.query("SELECT item, price FROM shop ORDER BY price DESC")
    assert found == Table(("item", "price"), (("tent", 42), ("lamp", 7)), more=True)
    assert database.query("SELECT count(*) FROM shop").rows == ((3,),)


@pytest.mark.parametrize("query", WRITES)
def test_it_does_nothing_else(reader: Reader, query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.runtime.serving import CallFailed

    monkeypatch.chdir(tmp_path)
    before = Path(reader.path).read_bytes()
    with pytest.raises(CallFailed):
        reader({"query": query, "seconds": 1.0, "rows": 5})
    assert not list(tmp_path.iterdir()) and Path(reader.path).read_bytes() == before
    assert sorted(p.name for p in Path(reader.path).parent.iterdir()) == ["shop.db", "shop.sql"]
    assert reader({"query": "SELECT count(*) FROM shop", "seconds": 1.0, "rows": 5})["rows"] == [[3]]


@pytest.mark.slow
def test_one_long_operation_ends_with_its_process(folder: Path) -> None:
    """The progress handler is never asked while it lasts: both halves are needed."""
    database = Database(folder / "shop.db", seconds=0.3)
    try:
        with pytest.raises(QueryFailed, match=r"stopped after 0\.3 s\.$"):
            database.query(ENDLESS)
        assert database._worker.starts == 1, "the progress handler stopped it"
        with pytest.raises(QueryFailed, match="its process with it"):
            database.query("SELECT length(printf('%.*c', 900000000, 'x'))")
        assert database.query("SELECT 1").rows == ((1,),) and database._worker.starts == 2
    finally:
        database.close()


@pytest.mark.slow
def test_memory_has_a_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.runtime.sandbox.sql.MEMORY", 192 * 2**20)
    database = Database(folder / "shop.db", seconds=20.0)
    large = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 2000) "
    try:
        with pytest.raises(QueryFailed, match=r"ran out of memory|ended the process"):
            database.query(f"{large} SELECT n, printf('%.*c', 900000, 'x') AS s FROM c ORDER BY s, n")
        assert database.query("SELECT 1").rows == ((1,),)
    finally:
        database.close()


def test_odd_values_are_plain(reader: Reader) -> None:
    query = "SELECT NULL, x'00ff', 1.5, 'a' || char(0) || 'b', CAST(x'ff' AS TEXT), 1e999"
    (row,) = reader({"query": query, "seconds": 1.0, "rows": 5})["rows"]
    assert row == [None, "x'00ff'", 1.5, "a\0b", "\ufffd", float("inf")]


@pytest.mark.slow
def test_what_is_no_database_is_told(folder: Path) -> None:
    for source, why in [(folder / "no.db", "is no database"), (Path(__file__), "is no database"),
                        (folder / "no.sql", "Cannot read"), ("CREATE TABLE;\n", "script of the database failed"),
                        ("SELECT 1;", "has no table")]:  # fmt: skip
        with pytest.raises(ConfigError, match=why):
            assert Database(source).schema


def test_what_was_cut_is_never_the_same() -> None:
    one = Table(("a",), ((1,), ("x",), (None,)))
    assert same_rows(one, Table(("b",), ((None,), (1.0,), ("x",)))) and not same_rows(one, Table(("a",), ((1,),)))
    assert not same_rows(Table(("a",), ((1,),), more=True), Table(("a",), ((1,),), more=True))
    assert not same_rows(Table(("a", "b"), ()), Table(("a",), ()))
