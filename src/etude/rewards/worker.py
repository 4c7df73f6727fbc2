"""Who calls a user's reward function: a worker process with a deadline, or this process without one.

Both offer `start() -> Signature`, `call(arguments, count, limits) -> Reply` and `close()`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from etude.core.errors import ConfigError
from etude.rewards import calls
from etude.rewards.calls import InvalidReturn, Limits, Reply, Signature
from etude.runtime.serving import CallFailed, NotLoaded, Reason
from etude.runtime.workers import Worker

GRACE = 1.0
"""Seconds beyond its deadline that a process has to say which of the completions that it awaited are late."""

_log = logging.getLogger("etude.rewards")


class Caller:
    """Calls a function in a worker process, which imports its file.

    Args:
        function: 'module:name' or 'path/to/file.py:name'.
    """

    def __init__(self, function: str) -> None:
        self.worker = Worker("etude.rewards.calls:Scorer", {"function": function}, function, _log.name)

    def start(self) -> Signature:
        """What the function asks for. Raises ConfigError if it cannot be imported or called."""
        return Signature.from_json(self.worker.greeting())

    def call(self, arguments: Mapping[str, Any], count: int, limits: Limits) -> Reply:
        """Rewards of `count` completions within `limits`.

        Raises CallFailed if the function raises, hangs or ends its process; InvalidReturn if it returns something
        else than numbers; ConfigError if an argument is not plain data.
        """
        late = GRACE if self.start().awaits else 0.0
        message = {"arguments": arguments, "count": count, "limits": [limits.batch, limits.item]}
        try:
            reply = self.worker.call(message, limits.batch + late)
        except CallFailed as failure:
            if failure.reason is not Reason.TIMED_OUT:
                raise
            raise CallFailed(Reason.TIMED_OUT, f"did not return within {limits.batch:g} s.") from None
        if "invalid" in reply:
            raise InvalidReturn(reply["invalid"])
        return Reply(reply["components"], {int(k): (Reason(v[0]), v[1]) for k, v in reply["failed"].items()})

    def close(self) -> None:
        """End the process and everything that it started."""
        self.worker.close()


class InProcess:
    """Calls a function right here: for a lambda, or a function of a notebook, that no other process can import.

    Nothing can stop it, unless it is async: a call that outlives its deadline is only warned about, while it still
    runs.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._signature: Signature | None = None

    def start(self) -> Signature:
        """What the function asks for. Raises ConfigError if it cannot be called."""
        if self._signature is None:
            try:
                self._signature = calls.signature(self.function, "The reward")
            except NotLoaded as error:
                raise ConfigError(str(error)) from None
        return self._signature

    def call(self, arguments: Mapping[str, Any], count: int, limits: Limits) -> Reply:
        """Rewards of `count` completions. Raises CallFailed if the function raises, InvalidReturn as `Worker`."""
        asked = self.start()
        late = GRACE if asked.awaits else 0.0
        watchdog = threading.Timer(limits.batch + late, _warn, (asked.name, limits.batch))
        watchdog.daemon = True
        watchdog.start()
        try:
            return calls.invoke(self.function, arguments, count, asked, limits)
        finally:
            watchdog.cancel()

    def close(self) -> None:
        """Nothing to end."""


def _warn(name: str, timeout: float) -> None:
    _log.warning(
        "%s has been running for %g s and cannot be stopped from inside this process: put it in a file and name it "
        "'file.py:%s' to give it a deadline.", name, timeout, name,
    )  # fmt: skip
