"""A function that asks on its way for what is long in coming, and waits where it stands until it is told.

>>> errand = Errand(lambda ask: ask("six") * ask("seven"))
>>> errand.go_on()
('six',)
>>> errand.go_on(6)
('seven',)
>>> errand.go_on(7) is None
True
>>> errand.result()
42
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")
_of_thread = threading.local()


class Left(BaseException):
    """Nobody waits for the errand any more."""


class _Here(NamedTuple):
    """What an errand wants done in its owner's thread."""

    work: Callable[[], Any]


def in_owners_thread(work: Callable[[], T]) -> T:
    """What a function returns, called in the thread of whoever waits for the errand that this one is on; else here.

    Deadlines in this process hold on the main thread alone.
    """
    errand = getattr(_of_thread, "errand", None)
    return work() if errand is None else errand.here(work)


class Errand(Generic[T]):
    """Runs a function up to each of its questions.

    The function has a thread of its own, so that it need not know that it waits; but it only works while its owner is
    in `go_on`. So the two never run at once, and what happens in which order is as if there was one thread.

    Args:
        work: is called with what asks: takes a question, and returns what `go_on` is given for it.
    """

    def __init__(self, work: Callable[[Callable[[Any], Any]], T]) -> None:
        self._work, self._left, self._over = work, False, False
        self._question: tuple[Any] | None = None
        self._answer: Any = None
        self._found: list[T] = []
        self._error: BaseException | None = None
        self._there, self._here = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def go_on(self, answer: Any = None) -> tuple[Any] | None:
        """The next question, or None where there is none left. Raises what the function raises."""
        self._question, self._answer = None, answer
        self._wake()
        while self._question is not None and isinstance(self._question[0], _Here):
            wanted = self._question[0]
            try:
                self._answer, self._question = (wanted.work(), None), None
            except Exception as error:
                self._answer, self._question = (None, error), None
            self._wake()
        if self._error is not None:
            raise self._error
        return self._question

    def here(self, work: Callable[[], T]) -> T:
        """Have the owner call a function, from the errand's own thread. Raises what it raises."""
        found, error = self._ask(_Here(work))
        if error is not None:
            raise error
        return found  # type: ignore[no-any-return]

    def _wake(self) -> None:
        """Let the function work until it asks or ends."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._there.release()
        self._here.acquire()

    def result(self) -> T:
        """What the function returned, once it has no question left."""
        return self._found[0]

    def close(self) -> None:
        """Leave it where it is."""
        self._left = True
        if self._thread.is_alive():
            self._there.release()
            self._thread.join()

    def _ask(self, question: Any) -> Any:
        self._question = (question,)
        self._here.release()
        self._there.acquire()
        if self._left:
            raise Left
        return self._answer

    def _run(self) -> None:
        _of_thread.errand = self
        try:
            self._found.append(self._work(self._ask))
        except Left:
            return
        except BaseException as error:
            self._error = error
        self._here.release()
