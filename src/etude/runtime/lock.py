"""One run per folder: an flock that the kernel frees when the process dies, however it dies."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import weakref
from functools import cache
from pathlib import Path

from etude.core.errors import RunFolderError

BEAT = 10.0
"""Seconds between two heartbeats."""
STALE = 60.0
"""Seconds without a heartbeat after which a holder that flock cannot vouch for counts as dead."""


class RunLock:
    """Holds `run.lock` in a folder, with the holder's pid and host in it for whoever is refused.

    On network disks flock may bind only on its own machine, or not at all. So the holder also touches the file
    (`beat`), and where flock cannot tell, a lock that was touched within a minute is refused too.

    Raises RunFolderError naming pid and host if the folder is in use.
    """

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / "run.lock", os.O_RDWR | os.O_CREAT, 0o666)
        holder, host = _holder(self._fd), socket.gethostname()
        taken = _flock(self._fd)
        if taken is None or (taken and holder and holder["host"] != host):
            taken = _age(self._fd) >= STALE or not holder
        if not taken:
            self._close()
            raise RunFolderError(_in_use(folder, holder))
        _write(self._fd, json.dumps({"pid": os.getpid(), "host": host}))
        self._beaten = time.monotonic()
        _held().add(self)

    def beat(self) -> None:
        """Show that the holder lives; called every step, touches the file every ten seconds at most."""
        if self._fd >= 0 and time.monotonic() - self._beaten >= BEAT:
            os.utime(self._fd)
            self._beaten = time.monotonic()

    def release(self) -> None:
        """Let go; may be called twice."""
        if self._fd >= 0:
            _write(self._fd, "")
            self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _flock(fd: int) -> bool | None:
    """Whether the lock was free; None on a disk that has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _in_use(folder: Path, holder: dict[str, object]) -> str:
    who = f"process {holder['pid']} on {holder['host']}" if holder else "another process"
    return f"{folder} is in use by {who}. Wait for that run, stop it, or start this one in another folder."


def _holder(fd: int) -> dict[str, object]:
    """Who wrote the lock file last; empty if nobody, or if it is torn."""
    try:
        holder = json.loads(os.pread(fd, 4096, 0))
        return {"pid": holder["pid"], "host": holder["host"]}
    except (ValueError, KeyError, TypeError):
        return {}


def _write(fd: int, text: str) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, text.encode(), 0)


def _age(fd: int) -> float:
    """Seconds since the file was touched, by the clock of the disk it lies on; leaves the time as it was."""
    before = os.fstat(fd)
    os.utime(fd)
    age = os.fstat(fd).st_mtime - before.st_mtime
    os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))
    return age


@cache
def _held() -> weakref.WeakSet[RunLock]:
    """The locks of this process. A forked worker closes them, so that it cannot outlive its parent holding one."""
    held: weakref.WeakSet[RunLock] = weakref.WeakSet()

    def close_all() -> None:
        for lock in list(held):
            lock._close()

    os.register_at_fork(after_in_child=close_all)
    return held
