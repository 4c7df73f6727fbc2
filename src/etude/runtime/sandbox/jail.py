"""The walls around one program: how bubblewrap is told to build them.

What bubblewrap protects from is decided by its arguments alone. Each of these was found by an attack that worked
without it; `etude check sandbox` tries them all.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from etude.core.errors import ConfigError
from etude.runtime.sandbox import filter, inside
from etude.runtime.sandbox.limits import MIB, Limits

FIRST_USER, USERS = 60_001, 4_000
"""User ids of sandboxes, where this process is root: nobody else's, and no two sandboxes' the same."""
SHARED_MEMORY = 4 * MIB
"""Bytes of /dev/shm."""
GET_IT = (
    "apt-get install bubblewrap has it on Debian and Ubuntu, and `make env` unpacks it without root (the package of "
    "that name on the Python index is something else)"
)


class Walled(ConfigError):
    """Nothing can be locked in here; the text says why."""


@dataclass(frozen=True)
class Interpreter:
    """A Python that sandboxes can run: its file, and the folder that it needs, if that is not below /usr."""

    file: str
    folder: str | None


@dataclass
class Command:
    """How one sandbox is started.

    Args:
        arguments: the command line.
        inherited: descriptors that it needs, to be closed here once it has been started.
        folder: where it is started, and what is removed once it is over.
        environment: variables, where bubblewrap does not set them.
        user: holds the user id that is this sandbox's own, until it is closed.
    """

    arguments: list[str]
    inherited: tuple[int, ...]
    folder: tempfile.TemporaryDirectory[str] | None = None
    environment: dict[str, str] | None = None
    user: socket.socket | None = None

    def close(self) -> None:
        """Let go of what is kept as long as the sandbox is there."""
        if self.user is not None:
            self.user.close()
        if self.folder is not None:
            self.folder.cleanup()


def locked(limits: Limits, results: int, told: int) -> Command:
    """The command of a sandbox. Raises Walled where there can be none.

    Args:
        results: the descriptor over which it says what it found.
        told: the descriptor over which bubblewrap says which process it started.
    """
    python, walls = interpreter(), _as_descriptor(bubblewrap())
    user = free_user() if os.geteuid() == 0 else None
    first = _dropped(user[0]) if user else []
    inherited = [walls]
    arguments = [*first, f"/proc/self/fd/{walls}", *_walls(python, limits), "--info-fd", str(told)]
    if (calls := filter.program()) is not None:
        inherited.append(_piped(calls))
        arguments += ["--seccomp", str(inherited[-1])]
    return Command([*arguments, "--", *_program(python.file, results)], tuple(inherited), user=user and user[1])


def unlocked(results: int) -> Command:
    """The command of a program that runs with the user's own rights, in a folder of its own."""
    folder = tempfile.TemporaryDirectory(prefix="etude-program-", ignore_cleanup_errors=True)
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    environment = {**kept, "HOME": folder.name, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
    return Command(_program(sys.executable, results), (), folder, environment)


def _walls(python: Interpreter, limits: Limits) -> list[str]:
    """Everything that bubblewrap is told, but for descriptors and the program."""
    folders = [python.folder] if python.folder else []
    return [
        "--unshare-all", "--unshare-user", "--disable-userns",  # no network, no other process, no namespace within
        "--cap-drop", "ALL", "--new-session", "--die-with-parent", "--hostname", "sandbox",
        "--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "HOME", "/tmp", "--setenv", "LANG", "C.UTF-8",
        "--setenv", "PYTHONHASHSEED", "0", "--setenv", "LD_LIBRARY_PATH", str(Path(python.file).parent.parent / "lib"),
        "--ro-bind", "/usr", "/usr", *(a for f in folders for a in ("--ro-bind", f, f)), *_system_folders(),
        "--dev", "/dev", "--size", str(SHARED_MEMORY), "--tmpfs", "/dev/shm", "--remount-ro", "/dev",
        "--size", str(limits.disk), "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/",
    ]  # fmt: skip


def _system_folders() -> list[str]:
    """/lib and its like: links into /usr where that is how it is, or the folders."""
    found: list[str] = []
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/") / name
        if path.is_symlink():
            found += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            found += ["--ro-bind", str(path), str(path)]
    return found


def _program(python: str, results: int) -> list[str]:
    return [python, "-S", "-s", "-B", "-X", "utf8", "-c", _source(), str(results)]


@cache
def _source() -> str:
    return Path(inside.__file__).read_text(encoding="utf-8")


def _dropped(user: int) -> list[str]:
    """What makes root an ordinary user before anything else: limits of processes do not bind root."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise Walled("this is root, and setpriv (util-linux), which makes an ordinary user of it, is not there")
    who = [f"--reuid={user}", f"--regid={user}", "--clear-groups", "--inh-caps=-all", "--no-new-privs"]
    return [setpriv, *who]


def free_user() -> tuple[int, socket.socket]:
    """A user id that no other sandbox on this machine has, and what holds it: the kernel frees it with this process."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    for user in range(FIRST_USER, FIRST_USER + USERS):
        try:
            held.bind(f"\0etude-sandbox-{user}")
        except OSError:
            continue
        return user, held
    held.close()
    raise Walled(f"all {USERS} user ids of sandboxes are taken")


@cache
def bubblewrap() -> str:
    """The file of bubblewrap: in the environment, or the system's. Raises Walled if there is none."""
    if not sys.platform.startswith("linux"):
        raise Walled(f"bubblewrap needs Linux, and this is {sys.platform}")
    beside = Path(sys.prefix) / "bin" / "bwrap"
    found = str(beside) if beside.is_file() else shutil.which("bwrap")
    if found is None:
        raise Walled(f"bubblewrap is not there: {GET_IT}")
    return found


@cache
def version() -> str:
    """What bubblewrap calls itself, as in 'bubblewrap 0.8.0'."""
    try:
        asked = [bubblewrap(), "--version"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise Walled(f"{bubblewrap()} does not start: {getattr(error, 'stderr', '') or error}".strip()) from None
    return done.stdout.strip()


@cache
def interpreter() -> Interpreter:
    """This Python, or where a sandbox's user cannot read it (below /root, say) the system's. Raises Walled."""
    own = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    for file in (own, *(Path(os.path.realpath(f"{folder}/python3")) for folder in ("/usr/bin", "/usr/local/bin"))):
        folder = file.parent.parent
        if file.is_file() and _readable(file):
            return Interpreter(str(file), None if folder.is_relative_to("/usr") else str(folder))
    raise Walled(f"a sandbox cannot read {own}, nor is there another Python in /usr/bin (apt-get install python3)")


def _readable(file: Path) -> bool:
    """Whether those whom a sandbox runs as may run a file."""
    if os.geteuid() != 0:
        return os.access(file, os.X_OK)
    return all(path.stat().st_mode & stat.S_IXOTH for path in (file, *file.parents))


def _as_descriptor(file: str) -> int:
    """A file, opened: whoever starts it need not be able to reach its folder."""
    descriptor = os.open(file, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    return descriptor


def _piped(content: bytes) -> int:
    """Something to read, as the end of a pipe; it has to be short."""
    reads, writes = os.pipe()
    os.write(writes, content)
    os.close(writes)
    return reads


def summary(arguments: Sequence[str]) -> str:
    """A command without the text of the program, to be shown."""
    return " ".join("..." if "\n" in a else a for a in arguments)
