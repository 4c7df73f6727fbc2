"""Roles in actors of Ray: as in processes, whoever is lost on the way, and nothing is left of it."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from plain_roles import Adder

from etude.core.errors import ConfigError, EnvironmentFault, MissingExtraError, WorkerError
from etude.runtime.executors import ray
from etude.runtime.executors.bridge import here
from etude.runtime.executors.ray import Actors, Cluster, end_session
from etude.runtime.executors.roles import Before

Make = Callable[..., Actors]


@pytest.fixture
def actors(tmp_path: Path, ray_cluster: Cluster) -> Iterator[Make]:
    """Executors whose actors end with the test."""
    made: list[Actors] = []

    def make(ranks: int = 1, **options: Any) -> Actors:
        options = {"patience": 30.0, "cluster": ray_cluster, **options}
        made.append(Actors(Adder, "plain_roles:Adder", {"folder": str(tmp_path)}, ranks, name="Adder", **options))
        return made[-1]

    yield make
    for executor in made:
        executor.close()


def amount(folder: Path, number: int) -> Before:
    """That ranks add this number, which a file says that is there for as long as they are given it."""
    file = folder / f"amount-{number}"
    file.write_text(str(number))
    return Before("give", str(number), lambda: nullcontext({"file": str(file)}), ("file",))


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines()


@pytest.mark.slow
def test_a_role_is_asked_as_in_processes_and_a_lost_actor_once_more(
    tmp_path: Path, actors: Make, caplog: pytest.LogCaptureFixture
) -> None:
    executor = actors(2)
    executor.start()
    with pytest.raises(ConfigError, match="no method 'undeclared'"):
        executor.ask("undeclared")
    pids = executor.ask("who")
    assert len({*pids}) == 2
    assert os.getpid() not in pids
    for _ in range(2):
        assert executor.ask("add", amount(tmp_path, 10), rows=[1, 2])["rows"] == [11, 12]
    assert Counter(asked(tmp_path)) == {"give": 2, "add 1": 2, "add 2": 2}
    with pytest.raises(EnvironmentFault, match=r"^It left its space\.$"):
        executor.ask("fail", how="environment")
    with pytest.raises(WorkerError, match=r"Adder 1 of 2 raised:(.|\n)*KeyError: 'x'"):
        executor.ask("fail", how="other")
    with pytest.warns(UserWarning, match="It is late"):
        executor.ask("fail", how="warn")
    assert executor.faults == [0, 0]

    (tmp_path / "asked").unlink()
    found = executor.ask("add", amount(tmp_path, 10), rows=[1, 2, 3, 4], deadly=[4])
    assert found["rows"] == [11, 12, 13, 14]
    assert executor.faults == [0, 1]
    assert Counter(asked(tmp_path)) == {"give": 2, "add 1,2": 1, "add 3,4": 2}  # who raised was ended, too
    assert "Adder 2 of 2 lost its actor on " in caplog.text
    assert "because its worker process has died" in caplog.text

    begun = [executor.begin("add", amount(tmp_path, n), rows=[1, 2]) for n in (20, 30)]
    assert [answer.result()["rows"] for answer in begun] == [[21, 22], [31, 32]]


@pytest.mark.slow
def test_after_so_many_restarts_the_run_stops_and_one_that_hangs_is_taken_for_dead(
    tmp_path: Path, actors: Make
) -> None:
    executor = actors(restarts=0)
    with pytest.raises(WorkerError, match=r"failed 1 times, .* lost its actor .* at most 0 times") as raised:
        executor.ask("add", rows=[1], deadly=[1], always=True)
    assert raised.value.intact
    assert asked(tmp_path) == ["add 1"]
    other = actors(restarts=0, patience=0.2)
    other.patience = 30.0
    (pid,) = other.ask("who")
    other.patience = 0.2
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(WorkerError, match=r"did not return within 0\.2 s"):
        other.ask("who")


@pytest.mark.slow
def test_what_no_machine_has_room_for_is_said_at_once(actors: Make) -> None:
    executor = actors(resources={"num_cpus": 2, "num_gpus": 1})
    with pytest.raises(WorkerError, match=r"Adder 1 of 1 cannot be placed. Ray has no place: 2 CPUs and 1 GPUs of one"):
        executor.ask("who")


def test_addresses_and_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"--on ray needs .*pip install 'etude\[ray\]'"):
        ray.check("")
    monkeypatch.setattr(ray, "find_spec", lambda name: True)
    for fine in ("", "auto", "local", "10.0.0.1:6379", "head:6379"):
        ray.check(fine)
    for wrong in ("10.0.0.1", "ray://10.0.0.1:10001", "head:", ":6379"):
        with pytest.raises(ConfigError, match="joined at HOST:PORT"):
            ray.check(wrong)
        monkeypatch.setenv("RAY_ADDRESS", wrong)
        with pytest.raises(ConfigError, match="joined at HOST:PORT"):
            ray.check("")


def test_this_code_is_known_by_all_its_letters() -> None:
    assert here() == here()
    assert {"etude", "torch", "the code of etude"} < {*here()}


def test_a_session_is_ended_with_all_that_left_its_group() -> None:
    import subprocess
    import time

    code = "import os,time\nif os.fork() == 0: os.setpgid(0, 0)\nos.write(1, b'%d\\n' % os.getpid())\ntime.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True, text=True
    ) as leader:
        assert leader.stdout is not None
        (child,) = {int(leader.stdout.readline()) for _ in range(2)} - {leader.pid}
        end_session(leader.pid)
        due = time.monotonic() + 10
        while Path(f"/proc/{child}/cmdline").exists() and Path(f"/proc/{child}/cmdline").read_bytes():
            assert time.monotonic() < due
            time.sleep(0.01)
