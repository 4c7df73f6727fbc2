"""What is tried in a sandbox before any program runs in it: nobody believes a wall that was not leant against."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.runtime.sandbox.jail import Walled
from etude.runtime.sandbox.limits import Ended, Limits, Program

if TYPE_CHECKING:
    from etude.runtime.sandbox.pool import Pool

ATTEMPTS = """
import os, socket, time

def writes(paths):
    done = []
    for path in paths:
        try:
            with open(path, "w") as file:
                file.write("x")
            done.append(path)
        except OSError:
            pass
    return done

def connects(port, name):
    tries = [
        (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", port)),
        (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", port)),
        (socket.AF_UNIX, socket.SOCK_STREAM, chr(0) + name),
    ]
    for family, kind, address in tries:
        try:
            with socket.socket(family, kind) as tried:
                tried.settimeout(0.5)
                tried.connect(address)
                tried.send(b"out")
        except OSError:
            pass

def reads(paths):
    done = []
    for path in paths:
        try:
            with open(path, "rb") as file:
                file.read(1)
            done.append(path)
        except OSError:
            pass
    return done

def forks(most):
    children = []
    try:
        for _ in range(most):
            child = os.fork()
            if not child:
                time.sleep(5)
                os._exit(0)
            children.append(child)
    except OSError:
        pass
    for child in children:
        os.kill(child, 9)
        os.waitpid(child, 0)
    return len(children)

def sees():
    return [os.getuid() == 0, sorted(os.environ)]
"""
KNOWN = ["HOME", "LANG", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PWD", "PYTHONHASHSEED"]
"""All the variables that there may be in a sandbox."""
SECRET = "/etc/shadow"


def holes(pool: Pool) -> list[str]:
    """What a program could do that it should not, as parts of a sentence. Raises Walled if none can be run."""
    limits = Limits(seconds=10.0)
    with _Listening() as listening, tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        outside = [f"{folder}/x", "/x", "/usr/etude-x", "/dev/etude-x", f"{Path.home()}/etude-x"]
        calls: list[tuple[str, tuple[Any, ...]]] = [
            ("writes", (outside,)), ("connects", listening.address), ("reads", ([SECRET, __file__],)),
            ("forks", (4 * limits.processes,)), ("sees", ()),
        ]  # fmt: skip
        (outcome,) = pool.run([Program(ATTEMPTS, tuple(calls), limits=limits)])
        reached, arrived = listening.heard(), any(os.scandir(folder))
    if outcome.ended is not Ended.DONE or len(outcome.answers) < len(calls):
        raise Walled(
            f"a program that was tried in it did not come to its end ({outcome.ended}) {outcome.detail}".strip()
        )
    wrote, _, read, forked, (root, variables) = (outcome.answers[n] for n in range(len(calls)))
    found = {
        f"wrote {', '.join(wrote)}": wrote or arrived,
        f"reached {', '.join(reached)} outside": reached,
        f"read {', '.join(read)}": read,
        f"started {forked} processes where {limits.processes} are allowed": forked > limits.processes,
        "was root": root and os.geteuid() == 0,
        f"saw {', '.join(sorted(set(variables) - set(KNOWN)))} of the environment": set(variables) - set(KNOWN),
    }
    return [what for what, happened in found.items() if happened]


class _Listening:
    """Sockets of this machine that nothing in a sandbox may reach: by TCP, by UDP, and by a name without a file."""

    def __enter__(self) -> _Listening:
        self.stream = socket.create_server(("127.0.0.1", 0))
        port = self.stream.getsockname()[1]
        self.datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.datagrams.bind(("127.0.0.1", port))
        self.local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = f"etude-probe-{os.getpid()}-{port}"
        self.local.bind("\0" + name)
        self.local.listen()
        self.address = (port, name)
        return self

    def __exit__(self, *error: object) -> None:
        for one in (self.stream, self.datagrams, self.local):
            one.close()

    def heard(self) -> list[str]:
        """Which of them something came over."""
        return [name for name, came in (("TCP", _accepted(self.stream)), ("UDP", _received(self.datagrams)),
                                        ("a local socket", _accepted(self.local))) if came]  # fmt: skip


def _accepted(server: socket.socket) -> bool:
    server.setblocking(False)
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def _received(server: socket.socket) -> bool:
    server.setblocking(False)
    try:
        return bool(server.recv(16))
    except BlockingIOError:
        return False
