"""`etude` in processes of its own that need not import everything anew.

They are forked by a server that has imported what a run needs and computed nothing: it has no threads of torch, which a
fork would not survive.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn

PRELOADED = (
    "etude.runs.train", "etude.runs.worlds.control", "etude.runs.worlds.language", "etude.runs.kinds.rollout",
    "etude.runs.kinds.token", "etude.tasks.language.compose", "transformers.models.llama.modeling_llama",
    "etude.runs.worlds.enumerable", "etude.loops.enumerable",
)  # fmt: skip
SEARCHED = list(sys.path)
"""Where modules were looked for when this file was imported, before any test changed that."""
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([*PRELOADED, "preloaded"])


def _begin_here(begin: Callable[[], None]) -> None:
    """Start the server in this folder, where it finds `preloaded`; those that it forks go to their parent's."""
    if SERVER._forkserver_pid is not None:  # type: ignore[attr-defined]
        begin()
        return
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(Path(__file__).parent)
        begin()
    finally:
        os.fchdir(before)
        os.close(before)


SERVER = forkserver._forkserver  # type: ignore[attr-defined]
SERVER.ensure_running = partial(_begin_here, SERVER.ensure_running)


class Process:
    """A function's call in a process of its own, with its own working folder; what it says is caught in files."""

    def __init__(self, folder: Path, said: Path, call: Callable[..., None], *args: Any) -> None:
        self.said = said
        self._process: ForkServerProcess = CONTEXT.Process(target=_called, args=(folder, said, call, args))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def running(self) -> bool:
        return self._process.exitcode is None

    def kill(self) -> None:
        self._process.kill()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self, timeout: float = 120.0) -> tuple[int, str]:
        """Its exit code, negative where a signal killed it, and what it wrote to stderr."""
        self._process.join(timeout)
        code = self._process.exitcode
        assert code is not None, f"It still runs after {timeout} s."
        return code, self.said.read_text()


class Worker:
    """`python -m etude.cli.worker`, forked; as much of a `subprocess.Popen` as `jobs.Workers` takes it for."""

    def __init__(self) -> None:
        ours, theirs = CONTEXT.Pipe()
        self._process: ForkServerProcess = CONTEXT.Process(target=_serve, args=(theirs, Path.cwd()))
        self._process.start()
        theirs.close()
        self.stdin, self.stdout = (os.fdopen(os.dup(ours.fileno()), mode) for mode in "wr")
        ours.close()

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.stdin.close()
        self.stdout.close()
        self.wait()


class Served:
    """A worker's process (`runtime/serving.py`), forked; as much of a `subprocess.Popen` as `runtime/workers.py` takes
    it for."""

    def __init__(self, command: Sequence[str], *, stdout: IO[bytes], pass_fds: Sequence[int], **more: Any) -> None:
        ends = [Connection(os.dup(number)) for number in (*pass_fds, stdout.fileno())]
        self._process: ForkServerProcess = CONTEXT.Process(target=_serve_role, args=(Path.cwd(), *ends))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        for end in ends:
            end.close()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked worker", timeout or 0.0)
        return self._process.exitcode


class Child:
    """The same, forked by the process that starts it, whose child it is and with which it ends.

    That one must not have taken a step yet: of its threads none is in the child, which takes over no lock but those.
    """

    def __init__(self, command: Sequence[str], *, stdout: IO[bytes], pass_fds: Sequence[int], **more: Any) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _serve_child(*pass_fds, stdout.fileno())

    def poll(self) -> int | None:
        if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float = 60.0) -> int:
        due = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > due:
                raise subprocess.TimeoutExpired("a forked child", timeout)
            time.sleep(0.01)
        return code


def etude(folder: Path, *args: str, forks: bool = False) -> Process:
    """`etude ARGS` in this folder.

    Args:
        forks: whether its worker processes are forked from it, and not started anew, which takes seconds.
    """
    return Process(folder, _said(folder), _etude, args, forks)


def python(folder: Path, code: str, *args: str, forks: bool = False) -> Process:
    """`python -c CODE ARGS` in this folder."""
    return Process(folder, _said(folder), _python, code, args, forks)


def lean(folder: Path, call: Callable[..., None], *args: Any) -> None:
    """The call in a process that has little in memory: what it forks itself, it forks soon. Fails as the call does."""
    code, said = Process(folder, _said(folder), call, *args).end(600)
    assert code == 0, said


def _said(folder: Path) -> Path:
    return folder.parent / f"{folder.name}-{time.monotonic_ns()}.err"


def _etude(args: Sequence[str], forks: bool) -> None:
    from etude.cli import main

    if forks:
        _fork_workers()
    sys.argv = ["etude", *args]
    main()


def _python(code: str, args: Sequence[str], forks: bool) -> None:
    if forks:
        _fork_workers()
    sys.argv, sys.path[:] = ["-c", *args], ["", *SEARCHED]
    exec(code, {"__name__": "__main__"})


def _fork_workers() -> None:
    """Let the worker processes of this one (`runtime/workers.py`) be forked from it."""
    from etude.runtime import workers

    own = SimpleNamespace(Popen=Child, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)
    workers.subprocess = own  # type: ignore[assignment]


def _serve_child(line: int, said: int) -> NoReturn:
    """Serve as `_serve_role` does, with nothing open that was the parent's, and without its end."""
    from etude.runtime import serving

    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for number in (1, 2):
            os.dup2(said, number)
        os.closerange(3, line)
        os.closerange(line + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        serving.main(line)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _serve(orders: Connection, folder: Path) -> None:
    from etude.cli import worker

    os.chdir(folder)
    os.dup2(orders.fileno(), 0)
    os.dup2(orders.fileno(), 1)
    sys.stdin = os.fdopen(0)
    worker.serve()


def _serve_role(folder: Path, line: Connection, said: Connection) -> None:
    from etude.runtime import serving

    os.setsid()
    os.chdir(folder)
    for number in (1, 2):
        os.dup2(said.fileno(), number)
    serving._end_with = lambda parent: None  # type: ignore[assignment]  # its parent is who forked it
    serving.main(os.dup(line.fileno()))


def _called(folder: Path, said: Path, call: Callable[..., None], args: tuple[Any, ...]) -> None:
    os.chdir(folder)
    for number, path in ((1, os.devnull), (2, said)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    call(*args)


def children(pid: int) -> list[int]:
    """Processes that this one started and that are still there."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found
