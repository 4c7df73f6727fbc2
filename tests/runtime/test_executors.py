"""Executors: what is divided comes together again, wherever a role is played and whoever is lost on the way."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_roles import Adder

from etude.core.errors import ConfigError, EnvironmentFault, InvariantError, WorkerError
from etude.runtime.executors.local import Local
from etude.runtime.executors.processes import Processes
from etude.runtime.executors.roles import Before, Dispatch, Executor, collected, concatenate, divided, split

Make = Callable[..., Processes]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Make]:
    """Executors whose processes end with the test."""
    made: list[Processes] = []

    def make(ranks: int = 1, **options: Any) -> Processes:
        made.append(
            Processes(Adder, "plain_roles:Adder", {"folder": str(tmp_path)}, ranks, name="Adder",
                      **{"patience": 30.0, **options})
        )  # fmt: skip
        return made[-1]

    yield make
    for executor in made:
        executor.close()


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines()


def amount(folder: Path, number: int) -> Before:
    """That ranks add this number, which a file says for as long as they read it."""

    @contextmanager
    def make() -> Iterator[dict[str, str]]:
        file = folder / f"amount-{number}"
        file.write_text(str(number))
        yield {"file": str(file)}
        file.unlink()

    return Before("give", str(number), make)


# Dividing and putting together


@given(st.lists(st.integers()), st.integers(1, 40))
def test_split_then_concatenate_is_the_identity_for_any_count(rows: list[int], ranks: int) -> None:
    pieces = split(rows, ranks)
    assert len(pieces) == ranks
    assert concatenate(pieces) == rows
    sizes = [len(piece) for piece in pieces]
    assert all(a - b in (0, 1) for a, b in pairwise(sizes))
    assert max(sizes) - min(sizes) <= 1


@given(st.lists(st.integers(), max_size=20), st.integers(1, 8))
def test_what_is_divided_is_collected_whole(rows: list[int], ranks: int) -> None:
    pieces = divided(Dispatch.SPLIT, {"rows": rows, "more": 1}, ranks)
    assert len(pieces) == min(ranks, len(rows))
    assert all(piece["more"] == 1 and piece["rows"] for piece in pieces)
    assert collected(Dispatch.SPLIT, [{"rows": piece["rows"]} for piece in pieces])["rows"] == rows


def test_answers_with_different_fields_are_refused() -> None:
    with pytest.raises(InvariantError, match="different fields"):
        collected(Dispatch.SPLIT, [{"rows": [1]}, {"rows": [2], "mark": 3}])


def test_there_is_at_least_one_rank() -> None:
    for make in (lambda: Local(Adder("."), 0), lambda: split([], 0), lambda: Processes(Adder, "", {}, 0, name="")):
        with pytest.raises(ConfigError, match="at least one rank"):
            make()


# Both executors


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("kind", ["local", "processes"])
def test_methods_are_dispatched_as_they_say(kind: str, ranks: int, tmp_path: Path, processes: Make) -> None:
    executor: Executor = Local(Adder(str(tmp_path)), ranks) if kind == "local" else processes(ranks)
    found = executor.ask("add", rows=[5, 6])
    assert found["rows"] == [5, 6]
    assert len(found["process"]) == min(ranks, 2)
    assert executor.ask("first", number=7) == 7
    assert Counter(asked(tmp_path))["first"] == 1
    pids = executor.ask("who")
    assert len(pids) == ranks
    assert len({*pids}) == (1 if kind == "local" else ranks)
    assert (os.getpid() in pids) == (kind == "local")
    assert executor.ask("add", rows=[]) == {"rows": []}
    with pytest.raises(ConfigError, match="no method 'undeclared'"):
        executor.ask("undeclared")


def test_what_must_be_there_first_is_given_once_to_each(tmp_path: Path, processes: Make) -> None:
    executor = processes(2)
    for _ in range(2):
        assert executor.ask("add", amount(tmp_path, 10), rows=[1, 2])["rows"] == [11, 12]
    assert Counter(asked(tmp_path))["give"] == 2
    assert executor.ask("add", amount(tmp_path, 20), rows=[1, 2])["rows"] == [21, 22]
    assert Counter(asked(tmp_path))["give"] == 4
    assert not [*tmp_path.glob("amount-*")]


# Faults


def test_rows_of_a_killed_process_are_asked_for_again_and_counted_once(
    tmp_path: Path, processes: Make, caplog: pytest.LogCaptureFixture
) -> None:
    executor = processes(2)
    with caplog.at_level(logging.WARNING, "etude.executors"):
        found = executor.ask("add", amount(tmp_path, 10), rows=[1, 2, 3, 4], deadly=[4])
    assert found["rows"] == [11, 12, 13, 14]
    assert executor.faults == [0, 1]
    assert Counter(asked(tmp_path)) == {"give": 3, "add 1,2": 1, "add 3,4": 2}
    assert "Adder 2 of 2 lost its process, which was killed by SIGKILL" in caplog.text


def test_a_process_that_ends_between_calls_is_started_again(
    tmp_path: Path, processes: Make, caplog: pytest.LogCaptureFixture
) -> None:
    executor = processes(restarts=1)
    for number in range(2):
        assert executor.ask("add", amount(tmp_path, 10), rows=[1])["rows"] == [11]
        worker = executor.pool.workers[0]
        worker.process.kill()
        worker.process.wait()
        assert executor.faults == [number]
    with pytest.raises(WorkerError, match="failed 2 times, the last time because it lost its process while nothing"):
        executor.ask("add", amount(tmp_path, 10), rows=[1])
    assert "asked the same once more" in caplog.text


def test_after_so_many_restarts_the_run_stops_and_can_be_saved(tmp_path: Path, processes: Make) -> None:
    executor = processes(restarts=2)
    with pytest.raises(WorkerError, match=r"failed 3 times, .* killed by SIGKILL.* at most 2 times") as raised:
        executor.ask("add", rows=[1], deadly=[1], always=True)
    assert raised.value.intact
    assert asked(tmp_path) == ["add 1"] * 3


def test_one_that_does_not_answer_is_taken_for_dead(processes: Make) -> None:
    executor = processes(patience=0.05, restarts=0)
    executor.pool.workers[0].greeting()
    os.kill(executor.pool.workers[0].process.pid, signal.SIGSTOP)
    with pytest.raises(WorkerError, match=r"did not return within 0\.05 s"):
        executor.ask("who")


def test_errors_of_etudes_own_are_raised_here_as_they_were_there(processes: Make) -> None:
    executor = processes()
    with pytest.raises(EnvironmentFault, match=r"^It left its space\.$"):
        executor.ask("fail", how="environment")
    with pytest.raises(ConfigError, match="Did you mean 'five'"):
        executor.ask("fail", how="name")
    with pytest.raises(WorkerError, match=r"Adder 1 of 1 raised:(.|\n)*KeyError: 'x'"):
        executor.ask("fail", how="other")
    with pytest.warns(UserWarning, match="It is late"):
        executor.ask("fail", how="warn")
    assert executor.faults == [0]


def test_closing_leaves_no_process(processes: Make) -> None:
    executor = processes(2)
    executor.start()
    running = [worker.process for worker in executor.pool.workers]
    executor.ask("who")
    executor.close()
    assert [process.poll() is None for process in running] == [False, False]


# What is begun now and waited for later


def held(folder: Path, number: int) -> Before:
    """As `amount`, of a file that stays."""
    file = folder / f"amount-{number}"
    file.write_text(str(number))
    return Before("give", str(number), lambda: nullcontext({"file": str(file)}))


@pytest.mark.parametrize("kind", ["local", "processes"])
def test_what_is_begun_is_answered_in_its_order_each_with_what_it_was_given(
    kind: str, tmp_path: Path, processes: Make
) -> None:
    executor: Executor = Local(Adder(str(tmp_path)), 2, apart=True) if kind == "local" else processes(2)
    begun = [executor.begin("add", held(tmp_path, n), rows=[1, 2, 3]) for n in (10, 20, 10)]
    assert executor.ask("add", held(tmp_path, 30), rows=[1])["rows"] == [31]
    assert [answer.result()["rows"] for answer in begun] == [[11, 12, 13], [21, 22, 23], [11, 12, 13]]
    assert all(answer.there for answer in begun)
    assert begun[0].result()["rows"] == [11, 12, 13], "it can be read again"


def test_each_rank_goes_on_with_the_next_whatever_others_are_at(tmp_path: Path, processes: Make) -> None:
    """The second is stopped: the first works off all that it was given, and nobody looks after it meanwhile."""
    executor = processes(2)
    executor.ask("who")
    (tmp_path / "asked").touch()
    slow = executor.pool.workers[1].process.pid
    os.kill(slow, signal.SIGSTOP)
    try:
        begun = [executor.begin("add", held(tmp_path, n), rows=[1, 2]) for n in (10, 20)]
        due = time.monotonic() + 60
        while Counter(asked(tmp_path))["add 1"] < 2 and time.monotonic() < due:
            time.sleep(0.01)
        assert Counter(asked(tmp_path)) == {"give": 2, "add 1": 2}
        assert not any(answer.there for answer in begun)
    finally:
        os.kill(slow, signal.SIGCONT)
    assert [answer.result()["rows"] for answer in begun] == [[11, 12], [21, 22]]


def test_a_process_that_is_killed_on_the_way_is_asked_again_with_what_it_must_have(
    tmp_path: Path, processes: Make, caplog: pytest.LogCaptureFixture
) -> None:
    executor = processes(2)
    begun = [executor.begin("add", held(tmp_path, n), rows=[1, 4], deadly=[4]) for n in (10, 20)]
    assert [answer.result()["rows"] for answer in begun] == [[11, 14], [21, 24]]
    assert executor.faults == [0, 1]
    assert Counter(asked(tmp_path)) == {"give": 5, "add 1": 2, "add 4": 3}
    assert "lost its process, which was killed by SIGKILL" in caplog.text


def test_after_so_many_restarts_what_was_begun_says_so(tmp_path: Path, processes: Make) -> None:
    executor = processes(restarts=1)
    begun = executor.begin("add", rows=[1], deadly=[1], always=True)
    with pytest.raises(WorkerError, match=r"failed 2 times, .* killed by SIGKILL.* at most 1 times") as raised:
        begun.result()
    assert raised.value.intact
    with pytest.raises(EnvironmentFault, match="left its space"):
        executor.begin("fail", how="environment").result()


def test_closing_leaves_no_process_and_no_thread_however_busy_they_are(tmp_path: Path, processes: Make) -> None:
    before, executor = threading.active_count(), processes(2)
    executor.ask("who")
    running = [worker.process for worker in executor.pool.workers]
    os.kill(running[1].pid, signal.SIGSTOP)
    begun = [executor.begin("add", held(tmp_path, n), rows=[1, 2]) for n in (10, 20)]
    executor.close()
    assert [process.poll() is None for process in running] == [False, False]
    assert threading.active_count() == before
    assert all(answer.there for answer in begun)
    with pytest.raises(WorkerError, match="was ended before it had answered"):
        begun[1].result()
