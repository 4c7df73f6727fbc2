"""Engines behind real sockets, in threads of the test's process, and ways in which they fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from etude.experience.engine import Answer, Request, ServedEngine
from etude.experience.engine_server import EngineServer
from etude.policies.engines.addresses import Kind, address_of
from etude.policies.engines.remote import Patience, RemoteEngine
from etude.policies.language import LanguagePolicy

SHORT = Patience(answer=20.0, back=0.3, room=0.3, restarts=2)


@contextmanager
def serving(engine: ServedEngine, speaks: Kind = "native", port: int = 0) -> Iterator[EngineServer]:
    """A server that works until the block ends."""
    server = EngineServer(engine, port=port, speaks=speaks)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def connected(server: EngineServer, kind: str = "native", patience: Patience = SHORT) -> RemoteEngine:
    """An engine as a run sees it."""
    return RemoteEngine(address_of(f"{kind}:{server.url}"), patience)


class Failing(ServedEngine):
    """Does something before it answers; `asked` has all requests that reached it.

    Args:
        before: given this engine, the number of the request, counted from 0, and the request; what it returns, if
            anything, is answered.
    """

    def __init__(self, policy: LanguagePolicy, before: Callable[[Any, int, Request], Answer | None]) -> None:
        super().__init__(policy)
        self.before, self.asked = before, list[Request]()
        self._counting = threading.Lock()

    def complete(self, request: Request) -> Answer:
        with self._counting:
            number = len(self.asked)
            self.asked.append(request)
        return self.before(self, number, request) or super().complete(request)


def hangs_up(engine: Any, number: int, request: Request) -> None:
    """Ends the connection, and says nothing."""
    raise ConnectionAbortedError
