"""Worker processes: plain data in and out, a deadline for every call, and a sentence for whatever goes wrong."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.core.errors import ConfigError
from etude.runtime import workers
from etude.runtime.packing import Unpackable, packed, unpacked
from etude.runtime.serving import CallFailed, Reason
from etude.runtime.workers import Job, Pool, Worker

SOURCE = """
import os, sys, time

calls = 0

def double(x, after=0.0):
    global calls
    calls += 1
    time.sleep(after)
    return {"twice": 2 * x, "calls": calls, "pid": os.getpid()}

def bad(how):
    print("about to", how, flush=True)
    if how == "raise":
        return 1 / 0
    if how == "hang":
        time.sleep(60)
    if how == "unsendable":
        return {"when": object()}
    if how == "large":
        return "x" * 5_000_000
    os._exit(3)

def meet(folder, name, count):
    open(os.path.join(folder, name), "w").close()
    while len(os.listdir(folder)) < count:
        time.sleep(0.01)
    return name

class Broken:
    greeting = None
    def __init__(self, **arguments):
        raise ValueError("no licence")
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "served_functions.py"
    path.write_text(SOURCE)
    return path


@pytest.fixture
def worker(source: Path) -> Iterator[Worker]:
    made = Worker.of(f"{source}:double")
    yield made
    made.close()


@pytest.fixture
def bad(source: Path) -> Iterator[Worker]:
    made = Worker.of(f"{source}:bad")
    yield made
    made.close()


# One call after another


def test_one_process_answers_all_calls_and_another_after_it_was_closed(worker: Worker) -> None:
    assert [worker.call({"x": k}, 10.0)["calls"] for k in (1, 2, 3)] == [1, 2, 3]
    assert worker.call({"x": 4}, 10.0)["twice"] == 8 and worker.starts == 1
    worker.close()
    assert worker.call({"x": 4}, 10.0)["calls"] == 1 and worker.starts == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "reason", "sentence"),
    [
        ("raise", Reason.RAISED, r"raised:\n.*served_functions.py.*, in bad\n[\s\S]*ZeroDivisionError: division"),
        ("hang", Reason.TIMED_OUT, r"^did not return within 0\.3 s\.$"),
        ("die", Reason.DIED, r"^lost its process, which ended with exit code 3; it last printed 'about to die'\.$"),
        ("unsendable", Reason.RAISED, r"^returned what cannot be sent to another process \(Object of type object is"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_a_sentence_and_the_next_call_goes_well(
    bad: Worker, how: str, reason: Reason, sentence: str
) -> None:
    assert len(bad.call({"how": "large"}, 30.0)) == 5_000_000
    began = time.monotonic()
    with pytest.raises(CallFailed, match=sentence) as failed:
        bad.call({"how": how}, 0.3)
    assert failed.value.reason is reason and time.monotonic() - began < 20
    assert bad.running == (reason is Reason.RAISED)
    assert len(bad.call({"how": "large"}, 30.0)) == 5_000_000
    assert bad.starts == 1 + (reason is not Reason.RAISED)


def test_what_is_printed_is_logged(bad: Worker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "etude.workers"):
        bad.call({"how": "large"}, 30.0)
    assert "served_functions.py:bad printed:\nabout to large" in caplog.text


def test_a_process_that_is_killed_between_calls_is_replaced(worker: Worker) -> None:
    before = worker.call({"x": 1}, 10.0)["pid"]
    os.kill(before, signal.SIGKILL)
    worker.process.wait(5)
    assert worker.call({"x": 1}, 10.0)["pid"] != before


def test_what_is_no_plain_data_is_refused(worker: Worker) -> None:
    with pytest.raises(ConfigError, match="runs in a process of its own, which gets plain data: Object of type object"):
        worker.call({"x": object()}, 10.0)
    assert worker.call({"x": 1}, 10.0)["twice"] == 2


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        ("nowhere:Thing", r"Cannot import 'nowhere': No module named 'nowhere'"),
        ("{}:Broken", r"Cannot make .*:Broken:\n[\s\S]*ValueError: no licence"),
    ],
)
def test_what_cannot_be_served_is_a_sentence(source: Path, server: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Worker(server.format(source), {}, "it").greeting()


@pytest.mark.slow
def test_importing_has_a_limit_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleepy.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(workers, "START_TIMEOUT", 0.5)
    with pytest.raises(ConfigError, match=r"Cannot load .*sleepy.py:f: it took more than 0.5 s to import\."):
        Worker.of(f"{tmp_path / 'sleepy.py'}:f").call({}, 10.0)


def test_an_interrupt_leaves_no_answer_for_the_next_call(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.greeting()

    def interrupted(asked: Any) -> list[Worker]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(workers, "wait", interrupted)
        worker.call({"x": 1}, 10.0)
    assert not worker.running and worker.call({"x": 5}, 10.0)["twice"] == 10


def test_a_fork_starts_its_own_process(worker: Worker) -> None:
    before = worker.call({"x": 1}, 10.0)["pid"]
    worker._owner = os.getppid()  # as a fork would find it
    assert not worker.running
    worker._owner = os.getpid()
    assert worker.call({"x": 1}, 10.0)["pid"] == before


# Several at once


@pytest.fixture(scope="module")
def pool(source: Path) -> Iterator[Pool]:
    made = Pool(lambda: Worker.of(f"{source}:double"), 3)
    yield made
    made.close()


def twice(x: int, after: float = 0.0, limit: float = 20.0) -> Job[int | str]:
    """2 x by one call, and 4 x by another; or why not."""
    try:
        once = yield {"x": x, "after": after}, limit
        again = yield {"x": once["twice"]}, limit
    except CallFailed as failure:
        return str(failure.reason)
    return int(again["twice"])


def done(pool: Pool, jobs: Sequence[tuple[int, Job[Any]]]) -> list[Any]:
    """What jobs come to, each with its place, in their order."""
    with pool.jobs() as running:
        for number, (place, job) in enumerate(jobs):
            running.add(number, place, job)
        return [found for _, found in running.all_of(range(len(jobs)))]


def test_jobs_come_to_what_they_come_to_in_their_order(pool: Pool) -> None:
    delays = [0.2, 0.0, 0.05, 0.0, 0.1, 0.0, 0.0]
    assert done(pool, [(k, twice(k, after)) for k, after in enumerate(delays)]) == [4 * k for k in range(7)]
    assert [w.starts for w in pool.workers] == [1, 1, 1]


def test_they_run_at_once(source: Path, tmp_path: Path) -> None:
    """Each call waits until there are three of them."""
    meeting = Pool(lambda: Worker.of(f"{source}:meet"), 3)

    def met(k: int) -> Job[Any]:
        return (yield {"folder": str(tmp_path), "name": str(k), "count": 3}, 60.0)

    assert done(meeting, [(k, met(k)) for k in range(3)]) == ["0", "1", "2"]
    meeting.close()
    assert not any(w.running for w in meeting.workers)


def test_a_job_that_fails_leaves_the_others_alone(pool: Pool) -> None:
    found = done(pool, [(k, twice(k, 60.0, 0.3) if k == 1 else twice(k)) for k in range(6)])
    assert found == [0, "timed out", 8, 12, 16, 20]


@pytest.mark.slow
def test_leaving_in_the_middle_leaves_no_answer_behind(pool: Pool) -> None:
    with pool.jobs() as running:
        for k in range(6):
            running.add(k, k, twice(k, 0.3))
        assert next(iter(running.all_of([0]))) == (0, 0)
    assert done(pool, [(k, twice(k)) for k in range(6)]) == [4 * k for k in range(6)]


def test_jobs_may_be_added_while_others_run_and_end_when_they_end(source: Path, tmp_path: Path) -> None:
    """The first waits for the last to be there, which is added after the second ended."""
    meeting = Pool(lambda: Worker.of(f"{source}:meet"), 2)

    def met(k: int, count: int) -> Job[Any]:
        return (yield {"folder": str(tmp_path), "name": str(k), "count": count}, 60.0)

    with meeting.jobs() as running:
        running.add(0, 0, met(0, 3))
        running.add(1, 1, met(1, 1))
        assert running.ended() == {1: "1"}
        running.add(2, 1, met(2, 3))
        assert running.ended() | running.ended() == {0: "0", 2: "2"}
        assert running.ended() == {}
    meeting.close()


def test_a_job_may_come_to_something_without_a_call(pool: Pool) -> None:
    def known(x: int) -> Job[int | str]:
        return x
        yield

    assert done(pool, [(0, known(1)), (0, twice(2)), (1, known(3))]) == [1, 8, 3]


# Plain data


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(PLAIN)
def test_what_is_packed_is_the_same_unpacked(value: Any) -> None:
    import json

    again = unpacked(json.loads(json.dumps(packed(value, "it"))))
    assert again == value and repr(again) == repr(value)


def test_numbers_of_numpy_are_numbers_and_arrays_are_refused() -> None:
    import numpy as np

    assert repr(unpacked(packed({"a": np.float32(0.5), "b": np.bool_(True)}, "info"))) == "{'a': 0.5, 'b': True}"
    for value in (np.zeros(2), {1, 2}, b"x"):
        with pytest.raises(Unpackable, match=r"^info\['x'\]\[1\] is a (ndarray|set|bytes)$"):
            packed({"x": (0, value)}, "info")
