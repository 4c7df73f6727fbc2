"""A limit on how long code of somebody else may take (DESIGN section 7, invariant 6)."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from etude.core.errors import ConfigError

if TYPE_CHECKING:
    from types import FrameType, TracebackType

_set_handler = getattr(sys.modules.get("_signal"), "signal", signal.signal)
"""`signal.signal` without turning every answer into an enumeration, which takes twenty times as long as the call."""


class _Late(BaseException):
    """Not an Exception, so that an `except Exception` inside the late code cannot swallow it."""


def _ring(number: int, frame: FrameType | None) -> None:
    raise _Late


class deadline:
    """Raise `error()` if the body of `with deadline(seconds, error):` takes longer than `seconds`.

    Rests on SIGALRM: it works on the main thread of a Unix process, wherever Python code runs or sleeps. A timer that
    was already running goes on afterwards with the time it has left.

    Raises: ConfigError elsewhere, where nothing could end what hangs.
    """

    __slots__ = ("begun", "error", "handler", "interval", "left", "seconds")

    def __init__(self, seconds: float, error: Callable[[], Exception]) -> None:
        self.seconds, self.error = seconds, error

    def __enter__(self) -> None:
        if not (hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()):
            raise ConfigError(
                f"An environment in this process has {self.seconds:g} s for an answer, and only the main thread of a "
                "Unix process can hold it to that: call etude there. Language tasks may have worker processes step "
                "theirs instead (`workers`)."
            )
        self.handler, self.begun = _set_handler(signal.SIGALRM, _ring), time.monotonic()
        self.left, self.interval = signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _set_handler(signal.SIGALRM, self.handler)
        if self.left:
            left = self.left - (time.monotonic() - self.begun)
            signal.setitimer(signal.ITIMER_REAL, max(1e-6, left), self.interval)
        if kind is _Late:
            raise self.error() from None
