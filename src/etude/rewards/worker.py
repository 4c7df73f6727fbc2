"""Who calls a user's reward function: a worker process with a deadline, or this process without one.

Both offer `start() -> Signature`, `call(arguments, count, limits) -> Reply` and `close()`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import IO, Any

from etude.core.errors import ConfigError
from etude.rewards import calls
from etude.rewards.calls import CallFailed, InvalidReturn, Limits, NotLoaded, Reason, Reply, Signature

START_TIMEOUT = 120.0
"""Seconds that importing the user's file may take (it may load a model)."""
GRACE = 1.0
"""Seconds beyond its deadline that a process has to say which of the completions that it awaited are late."""
LARGEST_OUTPUT = 65_536
"""Bytes of what one call printed that are kept."""

_log = logging.getLogger("etude.rewards")


class Worker:
    """A process that holds one function and answers calls, each with a deadline.

    It is started once, and replaced when it misses a deadline or dies; it ends with this process, however that
    ends, and takes along whatever the function started. It runs with a fixed hash seed, so that the order of a
    set is the same in every run. What the function prints is logged to 'etude.rewards' at level INFO.

    Args:
        function: 'module:name' or 'path/to/file.py:name'; the file is imported in the worker only.
    """

    def __init__(self, function: str) -> None:
        self.function = function
        self.starts = 0
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._signature: Signature | None = None

    def start(self) -> Signature:
        """Start the process if it is not running; what the function asks for.

        Raises ConfigError if the function cannot be imported or called.
        """
        with self._lock:
            return self._start()

    def call(self, arguments: Mapping[str, Any], count: int, limits: Limits) -> Reply:
        """Rewards of `count` completions within `limits`.

        Raises CallFailed if the function raises, hangs or ends its process; InvalidReturn if it returns something
        else than numbers; ConfigError if an argument is not plain data.
        """
        late = GRACE if self.start().awaits else 0.0
        call = {"arguments": arguments, "count": count, "limits": [limits.batch, limits.item]}
        reply = self._call(call, limits.batch, late)
        return Reply(reply["components"], {int(k): (Reason(v[0]), v[1]) for k, v in reply["failed"].items()})

    def ask(self, timeout: float, **arguments: object) -> Any:
        """What the function returns, as a JSON value, within `timeout` seconds. Raises CallFailed, ConfigError."""
        return self._call({"arguments": arguments}, timeout)["returned"]

    def close(self) -> None:
        """End the process and everything that it started."""
        if self._process is not None:
            self._finalizer()
            self._process = None

    def _call(self, call: Mapping[str, Any], timeout: float, late: float = 0.0) -> dict[str, Any]:
        try:
            line = json.dumps(call)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{self.function} runs in a process of its own, which gets plain data: {error}."
            ) from None
        with self._lock:
            self._start()
            reply = self._exchange(line, timeout + late, f"did not return within {timeout:g} s.")
        if "reason" in reply:
            raise CallFailed(Reason(reply["reason"]), reply["detail"])
        if "invalid" in reply:
            raise InvalidReturn(reply["invalid"])
        return reply

    def _start(self) -> Signature:
        if self._process is not None and self._process.poll() is None and self._signature is not None:
            return self._signature
        self.close()
        self._launch()
        opening = {"function": self.function, "path": sys.path, "parent": os.getpid()}
        try:
            reply = self._exchange(json.dumps(opening), START_TIMEOUT, f"took more than {START_TIMEOUT:g} s to import.")
        except CallFailed as error:
            raise ConfigError(f"Cannot load {self.function}: it {error.detail}") from None
        if "not_loaded" in reply:
            self.close()
            raise ConfigError(reply["not_loaded"])
        asked = reply["signature"]
        wanted, required = tuple(asked.pop("wanted")), tuple(asked.pop("required"))
        self._signature = Signature(wanted=wanted, required=required, **asked)
        return self._signature

    def _launch(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by _reap)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-u", calls.__file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output, pass_fds=[theirs.fileno()],
                start_new_session=True, env={**os.environ, "PYTHONHASHSEED": "0"},
            )  # fmt: skip
        self.starts += 1
        self._finalizer = weakref.finalize(self, _reap, self._process, self._socket, self._output, os.getpid())

    def _exchange(self, line: str, timeout: float, late: str) -> dict[str, Any]:
        """Send a line and wait for one back; on a missed deadline or a death the process is gone."""
        deadline = time.monotonic() + timeout
        try:
            self._socket.settimeout(timeout)
            self._socket.sendall(line.encode() + b"\n")
            reply = self._receive(deadline)
            self._log_output()
            return reply
        except TimeoutError:
            self.close()
            raise CallFailed(Reason.TIMED_OUT, late) from None
        except ConnectionError:
            ending = self._ending()
            self.close()
            raise CallFailed(Reason.DIED, ending) from None
        except BaseException:  # an interrupt leaves a reply on its way, which the next call must not read
            self.close()
            raise

    def _receive(self, deadline: float) -> dict[str, Any]:
        received = bytearray()
        while not received.endswith(b"\n"):
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            if not (piece := self._socket.recv(LARGEST_OUTPUT)):
                raise ConnectionResetError
            received += piece
        reply: dict[str, Any] = json.loads(received)
        return reply

    def _ending(self) -> str:
        """How the process ended, and the last thing it printed."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        code = self._process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
        printed = self._printed().strip()[-500:]
        return f"lost its process, which {how}" + (f"; it last printed {printed!r}." if printed else ".")

    def _printed(self) -> str:
        return os.pread(self._output.fileno(), LARGEST_OUTPUT, 0).decode(errors="replace")

    def _log_output(self) -> None:
        """Log what was printed, and forget it: the file would grow for as long as the run lasts."""
        if text := self._printed():
            _log.info("%s printed:\n%s", self.function, text.rstrip())
            self._output.truncate(0)
            self._output.seek(0)  # the position is shared with the process, which goes on writing there


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


class InProcess:
    """Calls a function right here: for a lambda, or a function of a notebook, that no other process can import.

    Nothing can stop it, unless it is async: a call that outlives its deadline is only warned about, while it still
    runs.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._signature: Signature | None = None

    def start(self) -> Signature:
        """What the function asks for. Raises ConfigError if it cannot be called."""
        if self._signature is None:
            try:
                self._signature = calls.signature(self.function, "The reward")
            except NotLoaded as error:
                raise ConfigError(str(error)) from None
        return self._signature

    def call(self, arguments: Mapping[str, Any], count: int, limits: Limits) -> Reply:
        """Rewards of `count` completions. Raises CallFailed if the function raises, InvalidReturn as `Worker`."""
        asked = self.start()
        late = GRACE if asked.awaits else 0.0
        watchdog = threading.Timer(limits.batch + late, _warn, (asked.name, limits.batch))
        watchdog.daemon = True
        watchdog.start()
        try:
            return calls.invoke(self.function, arguments, count, asked, limits)
        finally:
            watchdog.cancel()

    def close(self) -> None:
        """Nothing to end."""


def _warn(name: str, timeout: float) -> None:
    _log.warning(
        "%s has been running for %g s and cannot be stopped from inside this process: put it in a file and name it "
        "'file.py:%s' to give it a deadline.", name, timeout, name,
    )  # fmt: skip
