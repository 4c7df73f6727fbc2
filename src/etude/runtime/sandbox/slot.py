"""One locked process: started ahead, it waits for a program, runs it, and ends. It is never used twice."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Any

from etude.runtime.sandbox.consent import unsafe
from etude.runtime.sandbox.jail import Command, Walled, locked, unlocked
from etude.runtime.sandbox.limits import MIB, Ended, Limits, Outcome, Program

START = 30.0
"""Seconds that a sandbox may take until it is ready."""
AT_ONCE = 65_536
MOST = 64 * MIB
"""Bytes that a program may print before it is ended; all but the first are thrown away."""
CUT = "\n... (cut at {} bytes)"


class Slot:
    """A process that waits for one program.

    The parent writes the program to its standard input and reads three pipes: what it prints, its errors, and its
    results, each of which it says behind a marker that was drawn for this run.

    Args:
        limits: sizes of what is mounted.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits, self.ready = limits, False
        self.program: Program | None = None
        self.due, self.owner, self.starter = time.monotonic() + START, os.getpid(), threading.current_thread()
        results, theirs = os.pipe()
        told, tells = os.pipe()
        command = self._command(theirs, tells, (results, told))
        inherited = (theirs, tells, *command.inherited)
        try:
            self.process = subprocess.Popen(
                command.arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                pass_fds=inherited, start_new_session=True, cwd=command.folder.name if command.folder else None,
                env=command.environment,
            )  # fmt: skip
        except OSError as error:
            _close(results, told)
            command.close()
            raise Walled(f"it cannot be started: {error}") from None
        finally:
            _close(*inherited)
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.pipes = {results: "results", self.process.stdout.fileno(): "out", self.process.stderr.fileno(): "err"}
        self.open = set(self.pipes)
        self.seen = {name: bytearray() for name in self.pipes.values()}
        self.read = dict.fromkeys(self.seen, 0)
        self._message, self._told, self._results = b"", told, results
        self._held = _Held(self.process, command, (results, told), self.owner)
        self._ends = weakref.finalize(self, self._held.end)
        for descriptor in (*self.pipes, self.process.stdin.fileno()):
            os.set_blocking(descriptor, False)

    def _command(self, results: int, tells: int, ours: tuple[int, int]) -> Command:
        try:
            return unlocked(results) if unsafe() else locked(self.limits, results, tells)
        except BaseException:
            _close(results, tells, *ours)
            raise

    @property
    def usable(self) -> bool:
        """Whether it still waits, for this process, and will: it ends with the thread that started it."""
        lasts = self.starter in (threading.current_thread(), threading.main_thread())
        return lasts and self.program is None and self.owner == os.getpid() and self.process.poll() is None

    @property
    def writing(self) -> bool:
        """Whether a part of its program still has to be written."""
        return bool(self._message) and self.ready

    # One program: begin, then advance until it is over, then outcome

    def begin(self, program: Program) -> None:
        """Give it its program; the time of that runs from when the process is ready."""
        self.program, self._marker = program, secrets.token_hex(16).encode()
        resources = program.limits.resources
        if unsafe():
            del resources["RLIMIT_NPROC"]  # it counts all processes of the user
        self._message = json.dumps(program.message(self._marker.decode(), resources)).encode() + b"\n"
        if len(self._message) > AT_ONCE:
            self._widen()
        self.due = time.monotonic() + START
        if self.ready:
            self._start_clock()

    def _widen(self) -> None:
        """Let a long program into the pipe at once, where the system has room for that."""
        import fcntl

        assert self.process.stdin is not None
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(self.process.stdin, fcntl.F_SETPIPE_SZ, MIB)

    def _start_clock(self) -> None:
        assert self.program is not None
        self.started = time.monotonic()
        self.due = self.started + self.program.limits.seconds
        self._write()

    def _write(self) -> None:
        """Write as much of the program as the pipe takes."""
        assert self.process.stdin is not None
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._message:
                self._message = self._message[os.write(self.process.stdin.fileno(), self._message[:AT_ONCE]) :]

    def advance(self, descriptor: int) -> None:
        """Read what there is on one of its pipes."""
        name = self.pipes[descriptor]
        try:
            piece = os.read(descriptor, AT_ONCE)
        except BlockingIOError:
            return
        if not piece:
            self.open.discard(descriptor)
            return
        self.read[name] += len(piece)
        self.seen[name] += piece[: max(0, self._most(name) - len(self.seen[name]))]
        if name == "results" and not self.ready and self.seen[name].startswith(b"ready\n"):
            self._greet()

    def _greet(self) -> None:
        """Go on once the process is ready: what bubblewrap said of it is there."""
        self.ready = True
        if not unsafe() and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._held.inner = os.pidfd_open(json.loads(os.read(self._told, AT_ONCE))["child-pid"])
        if self.program is not None:
            self._start_clock()

    def _most(self, name: str) -> int:
        limits = self.program.limits if self.program else self.limits
        return limits.answers if name == "results" else limits.output

    def over(self, now: float) -> bool:
        """Whether there is nothing more to wait for."""
        if self.writing:
            self._write()
        return not self.open or now >= self.due or max(self.read.values()) > MOST

    def outcome(self) -> Outcome:
        """What came of its program; ends the process. Raises Walled if it never started."""
        assert self.program is not None
        late, much = bool(self.open) and time.monotonic() >= self.due, max(self.read.values()) > MOST
        self.kill()
        if not self.ready:
            said = self.seen["err"].decode(errors="replace").strip()
            why = f"it says: {said[-500:]}" if said else f"it was not ready after {START:g} s"
            self.close()
            raise Walled(f"bubblewrap does not start here; {why}")
        answers, faults, ended, detail = self._said()
        if much:
            ended = Ended.OUTPUT
        elif late:
            ended = Ended.TIMEOUT
        elif ended is None:
            ended, detail = Ended.DIED, "it ended without a word"
        return Outcome(
            ended, answers, faults, self._text("out"), self._text("err"), detail, time.monotonic() - self.started
        )  # fmt: skip

    def _said(self) -> tuple[dict[int, Any], dict[int, str], Ended | None, str]:
        """The lines behind the marker that can be read. What is said twice counts as it was said first."""
        answers, faults = dict[int, Any](), dict[int, str]()
        ended, detail, met = None, "", Ended.DONE
        asked = len(self.program.calls) if self.program else 0
        for line in bytes(self.seen["results"]).split(b"\n")[1:]:
            marker, _, text = line.partition(b" ")
            value = _read(text) if marker == self._marker else None
            if value is None:
                continue
            number = value.get("call")
            if type(number) is int and 0 <= number < asked and number not in answers and number not in faults:
                if "answer" in value:
                    answers[number] = value["answer"]
                else:
                    faults[number] = str(value.get("detail"))
                    met = met if met is not Ended.DONE else _ended(value)
            elif "call" not in value and ended is None:
                ended, detail = _ended(value), str(value.get("detail", ""))
        return answers, faults, met if ended is Ended.DONE else ended, detail

    def _text(self, name: str) -> str:
        """What was printed, whatever bytes it was."""
        most = self._most(name)
        return self.seen[name].decode(errors="replace") + (CUT.format(most) if self.read[name] > most else "")

    def kill(self) -> None:
        """End everything inside, without waiting for it."""
        if self.owner == os.getpid():
            self._held.kill()

    def close(self) -> None:
        """End everything inside, and collect it: nothing is left in the process table."""
        self._ends()


def _read(text: bytes) -> dict[str, Any] | None:
    """A line that the program may have written, as JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _ended(value: dict[str, Any]) -> Ended:
    try:
        return Ended(value.get("ended", "raised"))
    except ValueError:
        return Ended.RAISED


@dataclass
class _Held:
    """What there is of a sandbox in this process, to be ended once, also when its Slot is forgotten, and at exit.

    Args:
        inner: the first process inside, whose end is that of all others.
    """

    process: subprocess.Popen[bytes]
    command: Command
    descriptors: tuple[int, ...]
    owner: int
    inner: int | None = None

    def kill(self) -> None:
        """Kill all that is inside. A process that was not collected keeps its number, so it is no one else's."""
        if self.inner is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.inner, signal.SIGKILL)  # bubblewrap collects it, and ends
        elif self.process.returncode is None:
            self.kill_group()

    def kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill all that is inside, and collect it."""
        if os.getpid() != self.owner:  # a fork of ours is ending; the sandbox is not its to end
            return
        self.kill()
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.kill_group()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=5)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        _close(*self.descriptors, *([] if self.inner is None else [self.inner]))
        self.command.close()


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
