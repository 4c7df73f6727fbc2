"""Ctrl-C and SIGTERM as a flag that a run looks at between steps."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from etude.core.errors import EtudeError

if TYPE_CHECKING:
    from etude.runtime.run import RunResult

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(EtudeError):
    """A run was stopped by a signal, saved, and can be resumed.

    Args:
        message: where the run stands and how to go on.
        number: the signal; the command line exits with 128 plus it (130 for Ctrl-C, 143 for SIGTERM).
        result: how far the run came (an `etude.runtime.run.RunResult`).
    """

    def __init__(self, message: str, number: int, result: RunResult | None = None) -> None:
        super().__init__(message)
        self.exit_code = 128 + number
        self.result = result


class Interrupts:
    """While entered, the first SIGINT or SIGTERM only sets `requested`; a second Ctrl-C raises KeyboardInterrupt.

    A signal that was ignored before stays ignored. Outside the main thread, where Python cannot catch signals, it
    does nothing.
    """

    def __init__(self) -> None:
        self.requested: int | None = None
        """Number of the first signal, or None."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.requested is None:
            self.requested = number
            # os.write, because a print that was itself interrupted must not be entered again
            os.write(2, b"\nStopping after this step; press Ctrl-C again to stop at once.\n")
