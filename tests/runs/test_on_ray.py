"""`--on ray`: the run of one process, bit for bit; what is lost on the way; and nothing is left of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_on_processes import (
    METHODS,
    ONCE,
    SIX,
    SMALL,
    STAT,
    assert_the_same,
    outcome,
    sampling,
    task_of,
)  # fmt: skip

import etude
from etude.core.errors import ConfigError, MissingExtraError, WorkerError
from etude.core.kinds import TokenMethod
from etude.core.registry import compositions, files, get_method
from etude.experience.samplers import Sampler
from etude.runs.samplers import check, sampler_arguments
from etude.runs.training import Options
from etude.runtime.executors import ray
from etude.runtime.executors.places import Place, place_of
from etude.runtime.executors.ray import Actors, Cluster
from etude.tasks import resolve_task
from processes import children
from slow_worlds import Slow

pytestmark = pytest.mark.usefixtures("one_thread")
USUAL = "archer"
"""Games; `make test-full` has them all, and six are run by `--on processes`, whose samplers are the same."""


def sampled() -> dict[str, TokenMethod]:
    """Every method of tokens that samples, for one player."""
    made = (
        m for name in sorted(files("methods")) for m in compositions(name) if isinstance(m, TokenMethod) and not m.roles
    )
    return {m.id: m for m in made if m.experience is not None and m.experience.samples}


EVERY = sampled()


@pytest.fixture(scope="module")
def kept(one_thread: None, ray_cluster: Cluster) -> Iterator[Callable[[str], Actors]]:
    """One sampler for all methods of a task."""
    made: dict[str, Actors] = {}

    def sampler(task: str) -> Actors:
        if task not in made:
            arguments = sampler_arguments(Options(device="cpu"), task_of(task))
            made[task] = Actors(Sampler, "etude.runs.samplers:sampler", arguments, name="Sampler", cluster=ray_cluster)
        return made[task]

    yield sampler
    for executor in made.values():
        executor.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [pytest.param(m, id=i, marks=() if i == USUAL else pytest.mark.full) for i, m in EVERY.items()]
)
def test_with_one_sampler_a_method_comes_to_the_same(
    method: TokenMethod, kept: Callable[[str], Actors], tmp_path: Path
) -> None:
    assert_the_same(method, kept, tmp_path)


def test_six_methods_fill_every_slot_and_many_ways_to_sample() -> None:
    def filled(methods: Any) -> set[str]:
        return {slot for m in methods for slot, part in m.slots().items() if part not in (None, ())}

    slots = {*TokenMethod.slot_names()} - {"roles"}  # samplers play for one player
    assert filled(EVERY[i] for i in SIX) == filled(EVERY.values()) == slots
    assert {*SIX} <= {*METHODS}


# Whole runs


@pytest.mark.slow
def test_samplers_of_a_cluster_one_of_which_is_killed_are_the_local_run(
    tmp_path: Path, ray_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The cluster is joined by its address; a sampler dies in the middle of an episode, and its rows count once."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "here" / "once").touch()
    runs = {}
    for name, on in (("here", "local:2"), ("there", f"ray:2@{ray_cluster.head}")):
        task = Slow(folder=str(tmp_path / name), **ONCE)
        runs[name] = etude.train("grpo", task, on=on, out=str(tmp_path / f"run-{name}"), **SMALL)
    assert (tmp_path / "there" / "once").exists()
    assert "lost its actor on " in caplog.text
    assert caplog.text.count("asked the same once more") == 1
    assert outcome(runs["there"]) == outcome(runs["here"])
    assert ray_cluster.running


def session(leader: int) -> list[int]:
    """Processes of a session that are still there."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(of) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found


def head_of(leader: int) -> int:
    """The head of the cluster that a session has."""
    return next(p for p in session(leader) if b"gcs_server" in Path(f"/proc/{p}/cmdline").read_bytes().split(b"\0")[0])


@pytest.fixture
def of_its_own(monkeypatch: pytest.MonkeyPatch) -> list[Cluster]:
    """Runs start a Ray of their own, small, which says soon that its head is gone; all that were started."""
    started: list[Cluster] = []
    start = Cluster.start

    def seen(self: Cluster) -> None:
        start(self)
        started.append(self)

    monkeypatch.setattr(Cluster, "start", seen)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES", "200000000")
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "2")
    return started


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.skipif(not STAT.exists(), reason="looks for processes in /proc")
def test_where_the_head_of_the_cluster_is_gone_the_run_stops_saved(tmp_path: Path, of_its_own: list[Cluster]) -> None:
    class Headless(etude.Callback):
        """Kills the head after the first step, and waits until that was noticed."""

        def on_step(self, run: Any) -> None:
            (cluster,), due = of_its_own, time.monotonic() + 60
            if run.step == 1:
                os.kill(head_of(cluster.leader), signal.SIGKILL)
                while cluster.running and time.monotonic() < due:
                    time.sleep(0.05)

    with pytest.raises(WorkerError, match=r"Lost Ray on this machine.* The run is safe at step 1 .*train --resume"):
        etude.train("grpo", "compose", on="ray", callbacks=[Headless()], out=str(tmp_path / "run"), **SMALL)
    assert not session(of_its_own[0].leader)
    assert not any(Path("/dev/shm").glob(f"etude-weights-{os.getpid()}-*"))


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.skipif(not STAT.exists(), reason="counts processes in /proc")
def test_after_an_interrupt_nothing_is_left_of_it(tmp_path: Path, of_its_own: list[Cluster]) -> None:
    run = sampling(tmp_path, "--on", "ray")
    leaders = [p for p in children(run.pid) if len(session(p)) > 5]
    assert len(leaders) == 1, run.said.read_text()
    run.signal(signal.SIGINT)
    assert run.end()[0] == 130
    assert not session(leaders[0])
    assert any((tmp_path / "run" / "checkpoints").glob("step-*"))


# Options


def test_where_it_samples_may_be_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place_of("ray") == Place("ray", 1, "")
    assert place_of("ray:3@head:6379") == Place("ray", 3, "head:6379")
    for wrong in ("ray:0", "ray@", "processes@head:6379", "ray:2@"):
        with pytest.raises(ConfigError, match="--on must be local, processes, ray"):
            Options(on=wrong)
    task = resolve_task("compose")
    with pytest.raises(ConfigError, match="joined at HOST:PORT"):
        check(get_method("grpo"), task, Options(on="ray@here"))
    monkeypatch.setattr(ray, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'etude\[ray\]'"):
        check(get_method("grpo"), task, Options(on="ray"))
