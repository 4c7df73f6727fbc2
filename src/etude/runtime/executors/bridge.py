"""The process that speaks with Ray, for one that should not: Ray ends a process that loses the head of its cluster,
takes over its signals, and leaves threads in it.

It is a worker like any other (`runtime/workers.py`), and whatever Ray starts on this machine is in its session, so that
nothing of it outlives the run. Ranks come in by a socket in its folder: each speaks as with a process of its own, in
lines of JSON, and behind it is an actor, wherever in the cluster Ray has found a place for it. Files go by Ray's store
of objects, each once, whoever is given it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import secrets
import select
import shutil
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from etude.runtime import serving
from etude.runtime.environment import version
from etude.runtime.serving import NotLoaded, Reason, as_line, say

HEAD_SECONDS = 20
"""How long the head of a cluster may be silent before this process ends, and with it what asks of it."""
PLACE_SECONDS = 60.0
"""How long an actor may wait for a free place."""
END_SECONDS = 60.0
"""How long what an actor serves may take to end by itself."""
POLL = 0.25
"""Seconds between two looks at whether a rank still waits for its answer."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
SAME = ("etude", "torch", "transformers")
"""Packages of which every machine must have the version that is here."""
TAKEN = ("MKL_CBWR", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM", "CUBLAS_WORKSPACE_CONFIG")
"""Variables that go along, where they are set here."""


def here() -> dict[str, str]:
    """What must be the same on every machine: versions of packages, and this code to the letter."""
    root, total = Path(__file__).parents[2], hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        total.update(file.read_bytes())
    return {**{name: str(version(name)) for name in SAME}, "the code of etude": total.hexdigest()[:16]}


def differs(mine: Mapping[str, str], there: Mapping[str, str], node: str) -> str | None:
    """A sentence about what another machine has otherwise.

    >>> differs({"torch": "2.13.0"}, {"torch": "2.12.0"}, "b")
    'torch is 2.12.0 on b and 2.13.0 here, and numbers depend on it: install the same on every machine.'
    """
    for name, own in mine.items():
        if there[name] != own:
            return (
                f"{name} is {there[name]} on {node} and {own} here, and numbers depend on it: install the same on "
                "every machine."
            )
    return None


class Host:
    """The actor: serves one thing, as `serving` does in a process."""

    def __init__(self) -> None:
        self.server: Any = None

    def here(self) -> dict[str, str]:
        """As `here`, and which machine this is."""
        return {**here(), "node": socket.gethostname()}

    def open(self, opening: bytes) -> bytes:
        """Make what is to be served; its greeting."""
        given = json.loads(opening)
        with contextlib.suppress(OSError):  # a machine without this folder has what is installed there
            os.chdir(given["folder"])
        import sys

        sys.path += [path for path in given["path"] if path not in sys.path]
        self.server, greeting = serving.opened(given)
        return greeting

    def answer(self, line: bytes, names: list[str], *contents: Any) -> bytes:
        """What came of a message. Those of its arguments that are files are written here."""
        message = json.loads(line)
        if not names:
            return serving.reply(self.server, message)
        with _folder(sum(content.nbytes for content in contents)) as folder:
            for name, content in zip(names, contents, strict=True):
                path = folder / Path(message["arguments"][name]).name
                path.write_bytes(content)
                message["arguments"][name] = str(path)
            return serving.reply(self.server, message)

    def end(self) -> None:
        """Let what is served come to its end, if it knows how."""
        if hasattr(self.server, "end"):
            self.server.end()


@contextlib.contextmanager
def _folder(size: int) -> Iterator[Path]:
    """A folder for so many bytes for a while: in memory, if it has room."""
    shared = Path("/dev/shm")
    room = shared if os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > 2 * size else None
    with tempfile.TemporaryDirectory(prefix="etude-ray-", dir=room) as folder:
        yield Path(folder)


class Bridge:
    """Joins a cluster, or starts one of this machine alone, and lets ranks in.

    Args:
        address: HOST:PORT of a cluster's head, or 'auto' for one of this machine; '': a new one, on loopback.
        cpus: of a new one.
        folder: for the socket that ranks come in by, and what a new one writes.
    """

    def __init__(self, address: str, cpus: int, folder: str) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(HEAD_SECONDS))
        if not address:
            os.environ["RAY_AUTH_MODE"] = "token"  # other users of this machine cannot have their code run as ours
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            os.environ.setdefault("RAY_worker_niceness", "0")  # of 15, a busy machine starts nothing for a minute
        if not address or address.rpartition(":")[0] in LOOPBACK:
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # else Ray listens to the network all the same
        elif address != "auto":
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        self.ray = _joined(address, cpus, folder)
        self.own, self.here, self._objects = not address, here(), dict[str, Any]()
        self._lock, self._ranks = threading.Lock(), list[threading.Thread]()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path := f"{folder}/ranks")
        self._listener.listen(64)
        threading.Thread(target=self._listen, daemon=True).start()
        head = self.ray.get_runtime_context().gcs_address
        self.greeting = {"ranks": path, "head": head, "cpus": int(self.ray.cluster_resources().get("CPU", 0))}

    def __call__(self, message: Any) -> None:
        """The end: leave the cluster, or end what was started for it."""
        self._listener.close()
        for rank in self._ranks:
            rank.join(END_SECONDS)
        self.ray.shutdown()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                self._ranks.append(threading.Thread(target=_Rank(self, connection).serve, daemon=True))
                self._ranks[-1].start()

    def stored(self, file: str) -> Any:
        """A file as an object of the cluster; those whose files are gone are given up."""
        import numpy as np

        with self._lock:
            self._objects = {path: found for path, found in self._objects.items() if Path(path).exists()}
            if file not in self._objects:
                with Path(file).open("rb") as stream:
                    whole = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
                self._objects[file] = self.ray.put(np.frombuffer(whole, dtype=np.uint8))
            return self._objects[file]


def _joined(address: str, cpus: int, folder: str) -> Any:
    """Ray, connected. Raises NotLoaded, which says to what it was not."""
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            ray.init(
                address="local", num_cpus=cpus, include_dashboard=False, _node_ip_address=LOOPBACK[0],
                _temp_dir=folder, **quiet,
            )  # fmt: skip
    except Exception as error:
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        what = f"join the Ray cluster at {address}" if address else "start Ray"
        raise NotLoaded(f"Cannot {what}: {text}") from None
    return ray


class _Left(Exception):
    """The other side hung up."""


class _NoPlace(Exception):
    """There is no place for an actor; the text is a sentence."""


class _Rank:
    """One rank: its connection, and the actor behind it."""

    actor: Any

    def __init__(self, bridge: Bridge, connection: socket.socket) -> None:
        self.bridge, self.connection = bridge, connection
        self.ray: Any = bridge.ray
        self.node, self.actor, self._ends = "a machine", None, False

    def serve(self) -> None:
        """Until the other side hangs up, or the actor is lost."""
        with self.connection, self.connection.makefile("rwb") as stream:
            try:
                opening = json.loads(stream.readline() or "null")
                if opening is not None:
                    self._serve(stream, opening)
            except (_Left, OSError):
                return
            except _NoPlace as error:
                say(stream, as_line({"no_place": str(error)}))
            except self.ray.exceptions.RayError as error:
                detail = f"lost its actor on {self.node}: {_short(error)}"
                with contextlib.suppress(OSError):
                    say(stream, as_line({"reason": Reason.DIED, "detail": detail}))
            finally:
                self._end()

    def _serve(self, stream: Any, opening: Mapping[str, Any]) -> None:
        self._place(opening)
        say(stream, self._got(self.actor.open.remote(json.dumps(opening).encode())))
        for line in stream:
            try:
                files = json.loads(line).get("files", [])
                given = [self.bridge.stored(json.loads(line)["arguments"][name]) for name in files]
                found = self._got(self.actor.answer.remote(line, files, *given))
            except (self.ray.exceptions.RayTaskError, self.ray.exceptions.ObjectStoreFullError) as error:
                found = as_line({"reason": Reason.RAISED, "detail": self._raised(error)})
            say(stream, found)

    def _place(self, opening: Mapping[str, Any]) -> None:
        """Have an actor placed. Raises _NoPlace where there is none, or another etude."""
        wanted, self._ends = {"num_cpus": 1, "num_gpus": 0, **opening["resources"]}, opening["calls"] > 1
        asked = {"CPU": wanted["num_cpus"], "GPU": wanted["num_gpus"]}
        if not any(
            all(n["Resources"].get(k, 0) >= v for k, v in asked.items()) for n in self.ray.nodes() if n["Alive"]
        ):
            raise _NoPlace(self._no_place(asked, "Ray has no place"))
        kept = {name: os.environ[name] for name in TAKEN if name in os.environ} | {"PYTHONHASHSEED": "0"}
        around = {} if self.bridge.own else {"env_vars": kept}  # what Ray started here has them, and is there sooner
        # 0 and 0: an actor that Ray started again would have no weights; whoever asks starts another, gives it those,
        # and asks the same once more
        self.actor = self.ray.remote(Host).options(
            max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD", max_concurrency=opening["calls"],
            runtime_env=around, **wanted,
        ).remote()  # fmt: skip
        there = self._got(self.actor.here.remote(), asked)
        self.node = there.pop("node")
        if other := differs(self.bridge.here, there, self.node):
            raise _NoPlace(other)

    def _got(self, ref: Any, asked: Mapping[str, float] | None = None) -> Any:
        """What a call comes to; the first one waits for the place that was `asked` for.

        Raises _Left once nobody waits for it, _NoPlace where there is none in time.
        """
        due = time.monotonic() + PLACE_SECONDS
        while not self.ray.wait([ref], timeout=POLL)[0]:
            if _hung_up(self.connection):
                raise _Left
            if asked is not None and time.monotonic() > due:
                raise _NoPlace(self._no_place(asked, f"Ray found no place within {PLACE_SECONDS:g} s"))
        return self.ray.get(ref)

    def _no_place(self, asked: Mapping[str, float], what: str) -> str:
        def said(found: Mapping[str, float]) -> str:
            return f"{found.get('CPU', 0):g} CPUs and {found.get('GPU', 0):g} GPUs"

        has, free = self.ray.cluster_resources(), self.ray.available_resources()
        return (
            f"{what}: {said(asked)} of one machine are asked for, and all {len(self.ray.nodes())} together have "
            f"{said(has)}, of which {said(free)} are free."
        )

    def _raised(self, error: Exception) -> str:
        if isinstance(error, self.ray.exceptions.ObjectStoreFullError):
            size = self.ray.cluster_resources().get("object_store_memory", 0) / 1e6
            return (
                f"could not be given a file, since Ray's object store is full (all of them together have {size:.0f} "
                "MB): start Ray with a larger --object-store-memory, in bytes; twice the weights are enough."
            )
        return f"raised on {self.node}:\n{_short(error)}"

    def _end(self) -> None:
        """Let go of the actor, once what it serves has come to its end if it has one."""
        if self.actor is None:
            return
        with contextlib.suppress(Exception):
            if self._ends:
                self.ray.wait([self.actor.end.remote()], timeout=END_SECONDS)
        with contextlib.suppress(Exception):
            self.ray.kill(self.actor)


def _hung_up(connection: socket.socket) -> bool:
    if not select.select([connection], [], [], 0)[0]:
        return False
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True


def _short(error: BaseException) -> str:
    """The sentence of an error of Ray's that says why."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        return "".join(traceback.format_exception_only(cause)).strip()
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    because = next((line for line in lines if "because" in line), lines[0] if lines else type(error).__name__)
    return because.partition(". ")[0].rstrip(".") + f" ({type(error).__name__})."
