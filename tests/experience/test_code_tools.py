"""The tools `python` and `sql`: what a policy reads, and what is said where they cannot be had."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from etude.core.errors import ConfigError
from etude.experience.tools.python import told
from etude.experience.tools.served import Failed, Served, ToolServer, functions_of
from etude.experience.tools.sql import asked, listed
from etude.runtime.sandbox.limits import Ended, Outcome
from etude.runtime.sandbox.sql import Database, Table
from etude.runtime.serving import NotLoaded
from sandboxes import needs_sandbox


def test_what_came_of_a_program_is_told() -> None:
    assert told(Outcome(Ended.DONE)) == "It printed nothing."
    assert told(Outcome(Ended.EXITED, stdout="1\n", stderr="odd\n", detail="0")) == "1\nodd"
    assert told(Outcome(Ended.RAISED, stdout="1\n", detail="ZeroDivisionError: ...")) == "1\nZeroDivisionError: ..."
    assert told(Outcome(Ended.DIED)) == "Its process ended without a word."


@needs_sandbox
@pytest.mark.slow
def test_python_runs_and_is_described() -> None:
    tools = Served(("python", "calculator"))
    try:
        assert list(tools.tools) == ["python", "calculator"] and tools.tools["python"].names == ["code"]
        assert tools.call("python", {"code": "print(6 * 7)"}, 30.0, 100) == "42"
        assert tools.call("python", {"code": "import os\nprint(os.getuid() == 0, os.listdir('/home'))"}, 30.0, 400)\
            .endswith("No such file or directory: '/home'")  # fmt: skip
        assert tools.call("python", {"code": "print('\\x1b[31mred\\0')"}, 30.0, 100) == "red"
        assert tools.call("python", {"code": "print('x' * 10**6)"}, 30.0, 50).startswith(
            "x" * 50 + " ... (the first 50"
        )
        assert tools.call("python", {"code": "1 / 0"}, 30.0, 400).endswith("ZeroDivisionError: division by zero")
    finally:
        tools.worker.close()


def test_without_a_sandbox_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise ConfigError("Code is not run here, for want of a sandbox: bubblewrap is not there.")

    monkeypatch.setattr("etude.experience.tools.python.shared_pool", none)
    with pytest.raises(NotLoaded, match="Code is not run here"):
        functions_of("python")


@pytest.mark.slow
def test_sql_answers_and_only_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("shop.db") as connection:
        connection.execute("CREATE TABLE shop(item TEXT, price INTEGER)")
        connection.execute("INSERT INTO shop VALUES ('lamp', 7)")
    connection.close()
    tools = Served(("sql:shop.db",))
    try:
        assert "CREATE TABLE shop(item TEXT, price INTEGER)" in tools.tools["sql"].description
        assert tools.call("sql", {"query": "SELECT * FROM shop"}, 30.0, 100) == "item | price\nlamp | 7"
        with pytest.raises(Failed, match=r"^sql raised ValueError: The query may only read"):
            tools.call("sql", {"query": "DELETE FROM shop"}, 30.0, 400)
    finally:
        tools.worker.close()


def test_databases_that_are_none_are_told(tmp_path: Path) -> None:
    for source, why in [("sql:", "needs a database"), (f"sql:{tmp_path}/no.sql", "Cannot read")]:
        with pytest.raises(NotLoaded, match=why):
            ToolServer([source])
    with pytest.raises(NotLoaded, match="calculator, search:FOLDER, python, sql:FILE"):
        ToolServer(["abacus"])


@pytest.mark.slow
def test_an_environment_may_have_a_database_of_its_own() -> None:
    one, two = (Database(f"CREATE TABLE t(a);\nINSERT INTO t VALUES ({n});") for n in (1, 2))
    try:
        assert [asked(d, "SELECT a FROM t") for d in (one, two)] == ["a\n1", "a\n2"]
        with pytest.raises(ValueError, match="The query failed: no such column: b"):
            asked(one, "SELECT b FROM t")
    finally:
        one.close(), two.close()
    assert listed(Table((), ())) == ""
