"""The executor whose ranks are worker processes on this machine."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Any

from etude.core.errors import ConfigError, WorkerError
from etude.runtime.executors.lines import Line, Pending
from etude.runtime.executors.roles import Answer, Before, collected, dispatch_of, divided
from etude.runtime.executors.serving import received
from etude.runtime.serving import CallFailed, Reason
from etude.runtime.workers import Job, Pool, Worker

PATIENCE = 3600.0
"""Seconds that a call may take before its process is taken for dead."""
RESTARTS = 3
"""How often the process of a rank is started again before the run stops, as `Flow.restarts`."""
SERVER = "etude.runtime.executors.serving:RoleServer"
LOG = "etude.executors"


class Processes:
    """Calls a role in processes of its own, one for each rank.

    What a process was asked that ended, or did not answer within `patience`, is asked again of the next one, word for
    word. So an answer counts once, and is the same as if nothing had happened, where the role depends on its arguments
    alone.

    Args:
        role: the role's class, which says how its methods are dispatched.
        make, arguments: 'module:name' of what makes it there, and what that is called with, as JSON values.
        name: what messages call a rank.
        own: further arguments of each rank; None: all are made alike.
    """

    def __init__(
        self, role: type, make: str, arguments: Mapping[str, Any], ranks: int = 1, *, name: str,
        patience: float = PATIENCE, restarts: int = RESTARTS, own: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        if ranks < 1:
            raise ConfigError(f"A role has at least one rank, got {ranks}.")
        self.role, self.ranks, self.patience, self.restarts = role, ranks, patience, restarts
        number, each = count(), own or [{}] * ranks

        def worker() -> Worker:
            rank = next(number)
            given = {"role": make, "arguments": {**arguments, **each[rank]}}
            return self._worker(given, f"{name} {rank + 1} of {ranks}")

        self.pool = Pool(worker, ranks)
        self.faults = [0] * ranks
        self._lines: list[Line] = []
        self._prepared: list[tuple[int, str] | None] = [None] * ranks
        self._known = [0] * ranks
        """Starts of a worker up to the last whose end was counted."""

    def _worker(self, given: Mapping[str, Any], name: str) -> Worker:
        """What plays a rank."""
        return Worker(SERVER, given, name, LOG)

    def start(self) -> None:
        """Start all processes, which then load what they need while this one goes on."""
        for worker in self.pool.workers:
            if not worker.running:
                worker.launch()

    def ask(self, method: str, before: Before | None = None, /, **arguments: Any) -> Any:
        """What the method comes to. All ranks work at once."""
        if self._lines:
            return self.begin(method, before, **arguments).result()
        how = dispatch_of(self.role, method)
        pieces = divided(how, arguments, self.ranks)
        try:
            with _Given(before) as given, self.pool.jobs() as jobs:
                for rank, piece in enumerate(pieces):
                    jobs.add(rank, rank, self._job(rank, {"method": method, "arguments": piece}, given))
                answers = [answer for _, answer in jobs.all_of(range(len(pieces)))]
        except BaseException:  # ranks that had not answered are ended here, and are not to blame for it
            self._known = [worker.starts for worker in self.pool.workers]
            raise
        return collected(how, [received(answer) for answer in answers])

    def begin(self, method: str, before: Before | None = None, /, **arguments: Any) -> Answer:
        """The same without waiting for it. Each rank goes on with what it was asked next, whatever others are at.

        What `before` gives is made here and now; it must stay until the answer is there.
        """
        how, made = dispatch_of(self.role, method), _Given(before)
        if before is not None:
            made.arguments()
        self._lines = self._lines or [Line(worker) for worker in self.pool.workers]
        asked = [{"method": method, "arguments": piece} for piece in divided(how, arguments, self.ranks)]
        found = [self._lines[rank].add(self._job(rank, message, made)) for rank, message in enumerate(asked)]

        def put(answers: list[Any]) -> Any:
            return collected(how, [received(answer) for answer in answers])

        return Pending(found, put)

    def close(self) -> None:
        """End all processes."""
        for line in self._lines:
            line.close()
        self.pool.close()

    def _job(self, rank: int, message: Mapping[str, Any], given: _Given) -> Job[Any]:
        """One call of a rank, as often as its process is lost on the way."""
        worker = self.pool.place(rank)
        while True:
            try:
                yield from self._before(rank, worker, given)
                answer = yield message, self.patience
            except CallFailed as failure:
                if failure.reason is Reason.RAISED:
                    raise WorkerError(f"{worker.name} {failure.detail}") from None
                self._fault(rank, worker, failure.detail)
            else:
                return answer

    def _before(self, rank: int, worker: Worker, given: _Given) -> Job[None]:
        """Start the process if it is not there, and give it what it must have."""
        if not worker.running:
            if worker.starts > self._known[rank]:
                self._fault(rank, worker, "lost its process while nothing was asked of it.")
            worker.launch()
        if given.before is None or self._prepared[rank] == (worker.starts, given.before.stamp):
            return
        started = worker.starts
        told = {"method": given.before.method, "arguments": given.arguments(), "files": list(given.before.files)}
        received((yield told, self.patience))
        self._prepared[rank] = started, given.before.stamp

    def _fault(self, rank: int, worker: Worker, why: str) -> None:
        self.faults[rank], self._known[rank] = self.faults[rank] + 1, worker.starts
        if self.faults[rank] > self.restarts:
            raise WorkerError(
                f"{worker.name} failed {self.faults[rank]} times, the last time because it {why.rstrip('.')}. It is "
                f"started again at most {self.restarts} times."
            )
        logging.getLogger(LOG).warning("%s %s It is started again, and asked the same once more.", worker.name, why)


class _Given:
    """What ranks must be given first, made where one needs it."""

    def __init__(self, before: Before | None) -> None:
        self.before, self._stack = before, ExitStack()
        self._arguments: dict[str, Any] | None = None

    def arguments(self) -> dict[str, Any]:
        assert self.before is not None
        if self._arguments is None:
            self._arguments = dict(self._stack.enter_context(self.before.make()))
        return self._arguments

    def __enter__(self) -> _Given:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
