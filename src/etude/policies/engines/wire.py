"""JSON over HTTP with an engine: connections that stay open, deadlines, and errors that say what to do.

The standard library alone. Numbers travel as JSON's doubles, so every float32 arrives with all its bits.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from etude.core.errors import EtudeError, WorkerError
from etude.policies.engines.addresses import Address

KEY = "ETUDE_ENGINE_KEY"
"""The environment variable with the key that an engine asks for, sent as a bearer token."""
CONNECT = 10.0
"""Seconds until an engine must have taken a connection."""
NO_ROOM = frozenset({413, 429, 503, 507})
"""Statuses that ask for less, or for later."""
LARGEST = 1 << 31
"""Bytes of an answer at most."""


class EngineGone(WorkerError):
    """The engine took no connection, ended one, or did not answer in time."""


class NoRoom(WorkerError):
    """The engine has no room for what was asked now.

    Args:
        after: seconds that it asks to wait.
    """

    def __init__(self, sentence: str, after: float) -> None:
        super().__init__(sentence)
        self.after = after


class Refused(EtudeError):
    """The engine answered that it will not.

    Args:
        status: of HTTP.
    """

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class Wire:
    """Asks an engine, over connections that are kept for the next question; one that had gone stale is opened again.

    Args:
        patience: seconds until an answer must be there.
    """

    def __init__(self, address: Address, patience: float) -> None:
        self.address, self.patience = address, patience
        self._key = os.environ.get(KEY)
        self._idle: list[http.client.HTTPConnection] = []
        self._ended = weakref.finalize(self, _closed, self._idle)

    def get(self, path: str) -> Any:
        """What a route answers. Raises as `post`."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """What a route answers to this; text that is no JSON is a text. Many threads may ask at once.

        Raises: EngineGone where nothing answered, NoRoom where it asks for less or for later, Refused for all else.
        """
        return self._ask("POST", path, json.dumps(body or {}, allow_nan=False).encode())

    def close(self) -> None:
        """End the connections that are kept."""
        _closed(self._idle)

    def _ask(self, method: str, path: str, body: bytes | None) -> Any:
        try:
            kept = self._idle.pop()
        except IndexError:
            kept = None
        try:
            return self._heard(method, path, *self._sent(kept, method, path, body))
        except (OSError, http.client.HTTPException) as error:
            if kept is None or not isinstance(error, (ConnectionError, http.client.BadStatusLine)):
                raise self._gone(error) from None
        try:  # it may have been ended while nothing was asked; if not, the same question has the same answer
            return self._heard(method, path, *self._sent(None, method, path, body))
        except (OSError, http.client.HTTPException) as error:
            raise self._gone(error) from None

    def _sent(
        self, kept: http.client.HTTPConnection | None, method: str, path: str, body: bytes | None
    ) -> tuple[int, str, bytes]:  # fmt: skip
        """Status, seconds to wait, and what was answered."""
        connection = kept or http.client.HTTPConnection(self.address.host, self.address.port, timeout=CONNECT)
        try:
            if kept is None:
                connection.connect()
            assert connection.sock is not None
            connection.sock.settimeout(self.patience)
            headers = {"Content-Type": "application/json", "Accept": "application/json"}
            if self._key:
                headers["Authorization"] = f"Bearer {self._key}"
            connection.request(method, path, body, headers)
            with connection.getresponse() as answer:
                found = answer.status, answer.headers.get("Retry-After") or "", answer.read(LARGEST)
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return found

    def _heard(self, method: str, path: str, status: int, after: str, raw: bytes) -> Any:
        text = raw.decode("utf-8", "replace")
        said: Any = text
        with suppress(ValueError):
            said = json.loads(text) if text else {}
        if status < 300:
            return said
        sentence = f"The engine at {self.address.url} answered {method} {path} with {status}: {_why(said)}"
        if status in NO_ROOM:
            raise NoRoom(sentence, float(after) if after.isdecimal() else 1.0)
        raise Refused(sentence, status)

    def _gone(self, error: Exception) -> EngineGone:
        why = f"{type(error).__name__}: {error}".rstrip(": ")
        return EngineGone(f"The engine at {self.address.url} does not answer ({why}).")


def _closed(connections: list[http.client.HTTPConnection]) -> None:
    while connections:
        connections.pop().close()


def _why(said: Any) -> str:
    """The sentence of an error in one of the forms in which servers write it."""
    for key in ("error", "detail", "message"):
        if isinstance(said, Mapping) and key in said:
            said = said[key]
    return " ".join(str(said).split())[:500].rstrip(".") + "."


def waited(until: float, seconds: float) -> bool:
    """Wait, but not beyond a time of `time.monotonic`; False if that is over."""
    left = until - time.monotonic()
    if left <= 0:
        return False
    time.sleep(min(seconds, left))
    return True
