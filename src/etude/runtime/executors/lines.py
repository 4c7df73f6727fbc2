"""Calls that are begun now and waited for later: a line of jobs for each worker, which a thread of its own works off.

So a worker goes from one job to the next, or is started again, whatever the main thread is busy with meanwhile.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from etude.core.errors import WorkerError
from etude.runtime.serving import CallFailed
from etude.runtime.workers import Job, Worker

STEP = 0.05
"""Seconds between two looks at a thread that is to end."""


class Line:
    """The jobs of one worker, in the order in which they came."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self._closing = worker, False
        self._jobs: queue.SimpleQueue[tuple[Job[Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=worker.name, daemon=True)
        self._thread.start()

    def add(self, job: Job[Any]) -> Future[Any]:
        """What the job comes to, once all before it are over."""
        found: Future[Any] = Future()
        self._jobs.put((job, found))
        return found

    def close(self) -> None:
        """End the thread and the worker's process, whatever they are at; jobs that are not over come to WorkerError."""
        self._closing = True
        self._jobs.put(None)
        while self._thread.is_alive():
            self.worker.kill()
            self._thread.join(STEP)
        self.worker.close()

    def _work(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, found = entry
            try:
                found.set_result(self._done(job))
            except BaseException as error:
                found.set_exception(error)

    def _done(self, job: Job[Any]) -> Any:
        """What a job comes to: each call that it makes is answered, or has its failure thrown at it."""
        try:
            call = next(job)
            while not self._closing:
                try:
                    answer = self.worker.call(*call)
                except CallFailed as failure:
                    if self._closing:
                        break
                    call = job.throw(failure)
                else:
                    call = job.send(answer)
        except StopIteration as end:
            return end.value
        raise WorkerError(f"{self.worker.name} was ended before it had answered.")


class Pending:
    """An answer that is on its way, in pieces.

    Args:
        put: what the pieces' answers come to together.
    """

    def __init__(self, pieces: Sequence[Future[Any]], put: Callable[[list[Any]], Any]) -> None:
        self._pieces, self._put = pieces, put

    @property
    def there(self) -> bool:
        """Whether nobody would wait for it."""
        return all(piece.done() for piece in self._pieces)

    def result(self) -> Any:
        """The answer, once it is there. Raises what `Executor.ask` does."""
        return self._put([piece.result() for piece in self._pieces])


def ready(answer: Any) -> Pending:
    """An answer that is there."""
    piece: Future[Any] = Future()
    piece.set_result(answer)
    return Pending([piece], lambda answers: answers[0])
