"""A limit on how long code of somebody else may take (DESIGN section 7, invariant 6)."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


class _Late(BaseException):
    """Not an Exception, so that an `except Exception` inside the late code cannot swallow it."""


@contextmanager
def deadline(seconds: float, error: Callable[[], Exception]) -> Iterator[None]:
    """Raise `error()` if the body takes longer than `seconds`.

    Rests on SIGALRM: it works on the main thread of a Unix process, wherever Python code runs or sleeps, and is no
    limit elsewhere. A timer that was already running goes on afterwards with the time it has left.
    """
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise _Late

    handler, begun = signal.signal(signal.SIGALRM, ring), time.monotonic()
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _Late:
        raise error() from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(1e-6, left - (time.monotonic() - begun)), interval)
