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
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Left(BaseException):
    """Nobody waits for the errand any more."""


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
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._there.release()
        self._here.acquire()
        if self._error is not None:
            raise self._error
        return self._question

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
        try:
            self._found.append(self._work(self._ask))
        except Left:
            return
        except BaseException as error:
            self._error = error
        self._here.release()
