"""The executor whose ranks are actors of Ray: on this machine, or wherever a cluster has room."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from etude.core.errors import ConfigError, MissingExtraError, WorkerError
from etude.runtime.executors.processes import LOG, PATIENCE, RESTARTS, SERVER, Processes
from etude.runtime.serving import CallFailed, Reason
from etude.runtime.workers import Worker

ADDRESS = "RAY_ADDRESS"
"""The variable that says which cluster is joined where --on does not."""
END_SECONDS = 75.0
"""How long leaving a cluster may take."""


def check(address: str) -> None:
    """Raise MissingExtraError without Ray, ConfigError for an address that is none."""
    if find_spec("ray") is None:
        raise MissingExtraError("--on ray", "ray")
    host, _, port = _address(address).rpartition(":")
    if _address(address) not in ("", "auto", "local") and not (host and port.isdecimal() and "/" not in host):
        raise ConfigError(
            f"A Ray cluster is joined at HOST:PORT, the address of its head, as `ray start --head` says it, or at "
            f"'auto'; got {_address(address)!r}."
        )


def _address(said: str) -> str:
    """Where a cluster is joined; '' for none."""
    found = said or os.environ.get(ADDRESS, "")
    return "" if found == "local" else found


class Cluster:
    """A Ray cluster, reached through a process of its own (`bridge.py`), in whose session is all that Ray starts here.

    Args:
        address: of its head; '': as RAY_ADDRESS says, or a new one of this machine, which ends with this process.
        cpus: of a new one, at least; it has no fewer than there are cores.
    """

    def __init__(self, address: str = "", cpus: int = 1) -> None:
        check(address)
        self.address = _address(address)
        self._folder = tempfile.TemporaryDirectory(prefix="etude-ray-", ignore_cleanup_errors=True)
        given = {"address": self.address, "cpus": max(cpus, os.cpu_count() or 1), "folder": self._folder.name}
        self._bridge = Worker("etude.runtime.executors.bridge:Bridge", given, "Ray", LOG)
        self.leader = 0
        """The process that speaks with Ray, in whose session is all that is there of it on this machine."""

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"the Ray cluster at {self.address}" if self.address else "Ray on this machine"

    @property
    def running(self) -> bool:
        """Whether it can be asked anything."""
        return self._bridge.running

    def start(self) -> None:
        """Join it, or start it. Raises ConfigError if that cannot be."""
        self._bridge.greeting()
        self.leader = self._bridge.process.pid

    @property
    def cpus(self) -> int:
        """Of all its machines."""
        return int(self._bridge.greeting()["cpus"])

    @property
    def head(self) -> str:
        """HOST:PORT where others join it."""
        return str(self._bridge.greeting()["head"])

    def connect(self) -> socket.socket:
        """A connection for one rank. Raises WorkerError if the cluster is lost."""
        if self._bridge.starts and not self.running:
            raise WorkerError(self.lost())
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(self._bridge.greeting()["ranks"])
        except OSError:
            connection.close()
            raise WorkerError(self.lost()) from None
        return connection

    def lost(self) -> str:
        """That it is gone."""
        return f"Lost {self.name}: its head is gone, or did not answer for too long."

    def close(self) -> None:
        """Leave it, or end it. Nothing that was started for it on this machine is left."""
        if self.running:
            self.leader = self._bridge.process.pid
            with contextlib.suppress(CallFailed, ConfigError):
                self._bridge.call({}, END_SECONDS)
        self._bridge.close()
        if self.leader:
            end_session(self.leader)
        self._folder.cleanup()


def end_session(leader: int) -> None:
    """End every process of a session whose leader is gone."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            if int(stat.read_text().rpartition(")")[2].split()[3]) == leader:
                os.kill(int(stat.parent.name), signal.SIGKILL)


class Actor(Worker):
    """An actor of a cluster, spoken with as a worker process is.

    Args:
        resources: that it takes of one machine ('num_cpus', 'num_gpus').
        calls: how many calls it works on at a time; what asks waits for each.
    """

    def __init__(
        self, cluster: Cluster, server: str, arguments: Mapping[str, Any], name: str,
        resources: Mapping[str, float] | None = None, calls: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(server, arguments, name, LOG)
        self.cluster = cluster
        placed: dict[str, Any] = {"resources": dict(resources or {}), "calls": calls, "folder": str(Path.cwd())}
        self._opening = {**self._opening, **placed}
        self._connected = False

    @property
    def running(self) -> bool:
        """Whether it is there, as far as anybody knows."""
        return self._connected and self._owner == os.getpid() and self.cluster.running

    def kill(self) -> None:
        """Hang up, so that whoever waits for it hears that it is gone."""
        with contextlib.suppress(AttributeError, OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _start(self) -> None:
        self._socket = self.cluster.connect()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the socket)
        self._connected = True
        self._hung_up = weakref.finalize(self, _hang_up, self._socket, self._output)

    def _take(self, reply: Mapping[str, Any]) -> None:
        if "no_place" in reply:
            self.close()
            self._outcome = None, WorkerError(f"{self.name} cannot be placed. {reply['no_place']}")
        elif reply.get("reason") == Reason.DIED:
            self.close()
            self._outcome = None, CallFailed(Reason.DIED, reply["detail"])
        else:
            super()._take(reply)

    def _ending(self) -> str:
        return "lost its actor." if self.cluster.running else f"is gone with it: {self.cluster.lost()}"

    def close(self, asked: tuple[bytes, float] | None = None) -> None:
        """Hang up; the actor ends."""
        if self._connected:
            self._hung_up()
            self._connected = False
        super().close(asked)


def _hang_up(connection: socket.socket, output: Any) -> None:
    connection.close()
    output.close()


class Actors(Processes):
    """Calls a role in actors of Ray, one for each rank, as `Processes` does in processes.

    Args:
        resources: that each takes of one machine.
        address: of the cluster; see `Cluster`.
    """

    def __init__(
        self, role: type, make: str, arguments: Mapping[str, Any], ranks: int = 1, *, name: str, address: str = "",
        resources: Mapping[str, float] | None = None, patience: float = PATIENCE, restarts: int = RESTARTS,
        own: Sequence[Mapping[str, Any]] | None = None, cluster: Cluster | None = None,
    ) -> None:  # fmt: skip
        self._resources = dict(resources or {})
        self._kept = cluster is not None
        needed = ranks * max(1, int(self._resources.get("num_cpus", 1)))
        self.cluster = cluster or Cluster(address, cpus=needed)
        super().__init__(role, make, arguments, ranks, name=name, patience=patience, restarts=restarts, own=own)

    def _worker(self, given: Mapping[str, Any], name: str) -> Worker:
        return Actor(self.cluster, SERVER, given, name, self._resources)

    def start(self) -> None:
        """Join the cluster and have all actors placed, which then load what they need while this process goes on."""
        self.cluster.start()
        super().start()

    def close(self) -> None:
        """End all actors, and the cluster if it was started for them."""
        super().close()
        if not self._kept:
            self.cluster.close()

    def _fault(self, rank: int, worker: Worker, why: str) -> None:
        if not self.cluster.running:
            raise WorkerError(self.cluster.lost())
        super()._fault(rank, worker, why)
