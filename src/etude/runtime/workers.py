"""Worker processes, the one kind that there is: plain data in and out, a deadline for every call.

A worker makes one thing (`etude.runtime.serving.Server`) and answers one call at a time. A call has an answer, or fails
for a reason that is said in a sentence (`CallFailed`): it raised, it was late, or its process ended. In the last two
cases the process is replaced at the next call. Rewards, verifiers and environments are called this way.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, Generic, TypeAlias, TypeVar

from etude.core.errors import ConfigError
from etude.runtime import serving
from etude.runtime.serving import CallFailed, Reason

START_TIMEOUT = 120.0
"""Seconds that importing and making what is served may take (it may load a model)."""
LARGEST_OUTPUT = 65_536
"""Bytes of what one call printed that are kept."""

T = TypeVar("T")
Job: TypeAlias = Generator[tuple[Any, float], Any, T]
"""Calls to one worker, one after another: yields a message with its limit in seconds, is sent the answer (or has
CallFailed thrown at it), and returns what they came to."""


class Worker:
    """A process that serves one thing.

    It is started when it is first needed, and again after it missed a deadline or died; it ends with this process,
    however that ends, and takes along whatever it started. It runs with a fixed hash seed, so that the order of a set
    is the same in every run. What is printed there is logged at level INFO.

    Args:
        server: 'module:name' of what makes the `Server`, imported in the worker only.
        arguments: what that is called with, as JSON values.
        name: what messages call it.
        log: name of the logger.
    """

    def __init__(self, server: str, arguments: Mapping[str, Any], name: str, log: str = "etude.workers") -> None:
        self.name, self.starts, self.due = name, 0, 0.0
        self._opening: dict[str, Any] = {"server": server, "arguments": dict(arguments)}
        self._log = logging.getLogger(log)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._greeting: tuple[Any] | None = None
        self._asked: tuple[bytes, float] | None = None
        self._outcome: tuple[Any, Exception | None] | None = None
        self._received = bytearray()

    @classmethod
    def of(cls, function: str, log: str = "etude.workers") -> Worker:
        """A worker that calls one function, 'module:name' or 'path/to/file.py:name': a message is its arguments."""
        return cls("etude.runtime.serving:Function", {"function": function}, function, log)

    @property
    def running(self) -> bool:
        """Whether its process is there, as this process started it."""
        return self._process is not None and self._owner == os.getpid() and self._process.poll() is None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process that is there now."""
        assert self._process is not None
        return self._process

    def greeting(self) -> Any:
        """What the thing says of itself, started if it is not. Raises ConfigError if it cannot be loaded."""
        with self._lock:
            if not self.running or self._greeting is None:
                self._take_turn(lambda: self.launch())
            assert self._greeting is not None
            return self._greeting[0]

    def call(self, message: Any, timeout: float) -> Any:
        """The answer to a message within `timeout` seconds.

        Raises CallFailed if there is none; ConfigError if the message is not plain data or nothing can be loaded.
        """
        with self._lock:
            return self._take_turn(lambda: self.ask(message, timeout))

    def _take_turn(self, begin: Callable[[], None]) -> Any:
        try:
            begin()
            wait([self])
            return self.outcome()
        except BaseException:  # an interrupt leaves a reply on its way, which the next call must not read
            if self._outcome is None and (self._asked or self._greeting is None):
                self.close()
            raise

    # One call, in pieces: ask, wait (with others), outcome

    def ask(self, message: Any, timeout: float) -> None:
        """Begin a call, whose time runs once it can be read: starting has a limit of its own.

        Raises ConfigError if the message is not plain data.
        """
        try:
            line = json.dumps(message).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.name} runs in a process of its own, which gets plain data: {error}.") from None
        self._asked, self._outcome = (line, timeout), None
        if self.running and self._greeting is not None:
            self._send(line, timeout)
        elif not self.running:
            self.launch()

    def kill(self) -> None:
        """End the process from outside, whoever waits for its answer: they find the connection closed."""
        with contextlib.suppress(AssertionError, ProcessLookupError, PermissionError):
            if self.running:
                os.killpg(self.process.pid, signal.SIGKILL)

    def launch(self) -> None:
        """Start the process, or start it again."""
        self.close(self._asked)
        self._start()
        self.starts, self._owner = self.starts + 1, os.getpid()
        opening = {**self._opening, "path": sys.path, "parent": self._owner}
        self._send(json.dumps(opening).encode() + b"\n", START_TIMEOUT)

    def _start(self) -> None:
        """The process, with a socket to it."""
        self._socket, theirs = socket.socketpair()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by _reap)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-u", serving.__file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output, pass_fds=[theirs.fileno()],
                start_new_session=True, env={**os.environ, "PYTHONHASHSEED": "0"},
            )  # fmt: skip
        self._finalizer = weakref.finalize(self, _reap, self._process, self._socket, self._output, os.getpid())

    def _send(self, line: bytes, timeout: float) -> None:
        self.due = time.monotonic() + timeout
        try:
            self._socket.settimeout(timeout)
            self._socket.sendall(line)
            self._socket.setblocking(False)
        except TimeoutError:
            self._late()
        except ConnectionError:
            self._died()

    @property
    def settled(self) -> bool:
        """Whether the call is over: its outcome is there."""
        return self._outcome is not None

    def outcome(self) -> Any:
        """The answer of a call that is settled. Raises CallFailed if it failed, ConfigError if nothing was loaded."""
        assert self._outcome is not None
        (answer, error), self._outcome, self._asked = self._outcome, None, None
        if error is not None:
            raise error
        return answer

    def fileno(self) -> int:
        """The socket that answers come from."""
        return self._socket.fileno()

    def advance(self) -> None:
        """Read what there is. A call that is over its time is settled then, and its process ended."""
        try:
            while not self._received.endswith(b"\n"):
                piece = self._socket.recv(LARGEST_OUTPUT)
                if not piece:
                    self._died()
                    return
                self._received += piece
        except BlockingIOError:
            if time.monotonic() >= self.due:
                self._late()
            return
        except ConnectionError:
            self._died()
            return
        line, self._received = bytes(self._received), bytearray()
        self._take(json.loads(line))

    def _take(self, reply: Mapping[str, Any]) -> None:
        """Go on after a reply: to the call that waits for the greeting, or to the outcome."""
        self._log_output()
        if "not_loaded" in reply:
            self.close()
            self._outcome = None, ConfigError(reply["not_loaded"])
        elif "greeting" in reply:
            self._greeting = (reply["greeting"],)
            if self._asked:
                self._send(*self._asked)
            else:
                self._outcome = None, None
        elif "reason" in reply:
            self._outcome = None, CallFailed(Reason(reply["reason"]), reply["detail"])
        else:
            self._outcome = reply["answer"], None

    def _late(self) -> None:
        greeted, limit = self._greeting is not None, self._asked[1] if self._asked else 0.0
        self.close()
        if greeted:
            self._outcome = None, CallFailed(Reason.TIMED_OUT, f"did not return within {limit:g} s.")
        else:
            self._outcome = (
                None,
                ConfigError(f"Cannot load {self.name}: it took more than {START_TIMEOUT:g} s to import."),
            )

    def _died(self) -> None:
        ending, greeted = self._ending(), self._greeting is not None
        self.close()
        unloaded = ConfigError(f"Cannot load {self.name}: it {ending}")
        self._outcome = None, CallFailed(Reason.DIED, ending) if greeted else unloaded

    def close(self, asked: tuple[bytes, float] | None = None) -> None:
        """End the process and everything that it started; of a call that it has not answered nothing will come."""
        if self._process is not None:
            self._finalizer()
            self._process = None
        self._greeting, self._asked, self._outcome = None, asked, None
        self._received.clear()

    def _ending(self) -> str:
        """How the process ended, and the last thing it printed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        code = self.process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
        printed = self._printed().strip()[-500:]
        return f"lost its process, which {how}" + (f"; it last printed {printed!r}." if printed else ".")

    def _printed(self) -> str:
        return os.pread(self._output.fileno(), LARGEST_OUTPUT, 0).decode(errors="replace")

    def _log_output(self) -> None:
        """Log what was printed, and forget it: the file would grow for as long as the run lasts."""
        if text := self._printed():
            self._log.info("%s printed:\n%s", self.name, text.rstrip())
            self._output.truncate(0)
            self._output.seek(0)  # the position is shared with the process, which goes on writing there


def wait(workers: Collection[Worker]) -> list[Worker]:
    """Those of these workers, all of which were asked, whose call is over; waits for the first."""
    while True:
        if settled := [w for w in workers if w.settled]:
            return settled
        poll, by_number = select.poll(), {w.fileno(): w for w in workers}
        for number in by_number:
            poll.register(number, select.POLLIN)
        left = min(w.due for w in workers) - time.monotonic()
        ready = {by_number[number] for number, _ in poll.poll(max(0.0, left) * 1000 + 1)}
        now = time.monotonic()
        for worker in workers:
            if worker in ready or now >= worker.due:
                worker.advance()


class Pool:
    """Several workers that serve the same, each with a queue of jobs of its own.

    Args:
        make: makes a worker.
        count: how many there are; a process is started when the first job comes to it.
    """

    def __init__(self, make: Callable[[], Worker], count: int) -> None:
        self.workers = [make() for _ in range(count)]

    def place(self, number: int) -> Worker:
        """The worker of the jobs at this place, which may be any number."""
        return self.workers[number % len(self.workers)]

    @contextmanager
    def jobs(self) -> Iterator[Jobs[Any]]:
        """Jobs for its workers, one such set of them at a time; those that are not over in the end are left."""
        jobs = Jobs[Any](self)
        try:
            yield jobs
        finally:
            jobs.leave()

    def close(self) -> None:
        """End all processes."""
        for worker in self.workers:
            worker.close()


class Jobs(Generic[T]):
    """Jobs on the workers of a pool, to which others may be added while they run. Each has a number of its own.

    What a job raises, and ConfigError if what is served cannot be loaded, is raised from whatever is asked then.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._queues: dict[Worker, deque[tuple[int, Job[T]]]] = {}
        self._busy: dict[Worker, tuple[int, Job[T]]] = {}
        self._found: dict[int, T] = {}

    def add(self, number: int, place: int, job: Job[T]) -> None:
        """Begin a job, or let it wait until the worker at its place is done with those before."""
        worker = self.pool.place(place)
        self._queues.setdefault(worker, deque()).append((number, job))
        self._begin(worker)

    def ended(self) -> dict[int, T]:
        """What the jobs came to that ended since this was asked before; waits for one if there are any."""
        while self._busy and not self._found:
            for worker in wait(self._busy):
                self._go_on(worker)
        found, self._found = self._found, {}
        return found

    def all_of(self, numbers: Iterable[int]) -> Iterator[tuple[int, T]]:
        """What these jobs come to, in this order, in whichever order they end."""
        found = dict[int, T]()
        for number in numbers:
            while number not in found:
                found.update(self.ended())
            yield number, found.pop(number)

    def leave(self) -> None:
        """End the processes of calls that go on: their answers are on their way, which the next call must not read."""
        for worker in self._busy:
            worker.close()

    def _begin(self, worker: Worker) -> None:
        """Begin jobs of a worker until one of them has called it."""
        queue = self._queues[worker]
        while queue and worker not in self._busy:
            number, job = queue.popleft()
            try:
                call = next(job)
            except StopIteration as end:
                self._found[number] = end.value
            else:
                self._busy[worker] = number, job
                worker.ask(*call)

    def _go_on(self, worker: Worker) -> None:
        """Give a job what its call came to; its next call, or the next job."""
        number, job = self._busy[worker]
        try:
            try:
                answer = worker.outcome()
            except CallFailed as failure:
                call = job.throw(failure)
            else:
                call = job.send(answer)
            worker.ask(*call)
        except StopIteration as end:
            del self._busy[worker]
            self._found[number] = end.value
            self._begin(worker)


def _reap(process: subprocess.Popen[bytes], connection: socket.socket, output: IO[bytes], owner: int) -> None:
    """End a worker's process group and collect it. Also called when a Worker is forgotten, and at exit."""
    if os.getpid() != owner:  # a fork of ours is ending; the worker is not its to end
        return
    connection.close()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=5)
    output.close()
