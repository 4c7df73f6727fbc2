"""The program that a worker process runs: it makes one thing and lets it answer calls, plain data in and out.

`workers.py` starts this file by its path, so at module level it imports the standard library only: a worker is ready in
milliseconds and loads nothing that what it serves does not ask for.

The two sides speak JSON, one object per line, over a socket of their own; what is printed goes elsewhere.
"""

from __future__ import annotations

import importlib
import inspect
import io
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Protocol

LONGEST_TRACEBACK = 4_000


class Reason(StrEnum):
    """Why a call has nothing to show for itself. Zero is not among them: it is an answer."""

    RAISED = "raised"
    DIED = "died"
    TIMED_OUT = "timed out"
    NOT_FINITE = "not finite"


class CallFailed(Exception):
    """A call that brought nothing because of what it was given; `detail` is what the user should read."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


class NotLoaded(Exception):
    """What is to be served cannot be imported or made; the text is a sentence."""


class Server(Protocol):
    """What answers in a worker process. `greeting`: what it says of itself once it is made, as JSON values."""

    greeting: Any

    def __call__(self, message: Any) -> Any:
        """The answer to a message, both JSON values. May raise CallFailed; whatever else it raises is reported."""
        ...


class Function:
    """Serves one function: a message is its arguments by name.

    Args:
        function: 'module:name' or 'path/to/file.py:name'.
    """

    greeting = None

    def __init__(self, function: str) -> None:
        self.function = load(function)

    def __call__(self, message: Mapping[str, Any]) -> Any:
        return self.function(**message)


def load(reference: str) -> Callable[..., Any]:
    """What 'module:name' or 'path/to/file.py:name' names. Raises NotLoaded, with file and line."""
    from etude.core.errors import ConfigError
    from etude.core.registry import load_attribute

    source = reference.rpartition(":")[0]
    try:
        found: Callable[..., Any] = load_attribute(reference)
    except ConfigError as error:
        raise NotLoaded(str(error)) from None
    except (Exception, SystemExit) as error:
        file = os.path.realpath(source) if source.endswith(".py") else ""
        raise NotLoaded(f"Cannot import {source!r}:\n{trimmed(error, file)}") from None
    return found


def trimmed(error: BaseException, file: str) -> str:
    """The traceback of an error, with the frames of one file only, and its last line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename == file] or frames[-1:]
    text = "".join([*traceback.format_list(own), *traceback.format_exception_only(error)])
    return text.rstrip()[-LONGEST_TRACEBACK:]


def file_of(function: object) -> str:
    """The file that a function was written in."""
    inner = inspect.unwrap(function) if callable(function) else function
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    return code.co_filename if code else ""


def serve(stream: io.BufferedIOBase, opening: Mapping[str, Any]) -> None:
    """Make what is to be served, say its greeting, then answer until the other side hangs up."""
    threading.Thread(target=_end_with, args=(opening["parent"],), daemon=True).start()
    server, greeting = opened(opening)
    say(stream, greeting)
    if server is not None:
        for line in stream:
            say(stream, reply(server, json.loads(line)))


def opened(opening: Mapping[str, Any]) -> tuple[Server | None, bytes]:
    """What is to be served, and its greeting as a line; None, and why it cannot be made."""
    try:
        server: Server = load(opening["server"])(**opening["arguments"])
    except NotLoaded as error:
        return None, as_line({"not_loaded": str(error)})
    except Exception as error:
        return None, as_line({"not_loaded": f"Cannot make {opening['server']}:\n{trimmed(error, '')}"})
    return server, as_line({"greeting": server.greeting})


def reply(server: Server, message: Any) -> bytes:
    """What came of a message as a line: its answer, or why there is none."""
    try:
        answer = server(message)
    except CallFailed as error:
        return as_line({"reason": error.reason, "detail": error.detail})
    except (Exception, SystemExit) as error:
        file = file_of(getattr(server, "function", None))
        return as_line({"reason": Reason.RAISED, "detail": f"raised:\n{trimmed(error, file)}"})
    try:
        return as_line({"answer": answer})
    except (TypeError, ValueError) as error:
        detail = f"returned what cannot be sent to another process ({error}): return text, numbers, lists and dicts."
        return as_line({"reason": Reason.RAISED, "detail": detail})


def as_line(message: Mapping[str, Any]) -> bytes:
    """A message as it is sent."""
    return json.dumps(message).encode() + b"\n"


def say(stream: io.BufferedIOBase, line: bytes) -> None:
    """Send a line."""
    stream.write(line)
    stream.flush()


def _end_with(parent: int) -> None:
    """End this process and all that it started once the parent is gone, however it went."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)


def main(descriptor: int) -> None:
    """Serve over this socket. What is served may import this file by its name, so the rest happens under that name."""
    os.set_inheritable(descriptor, False)  # so that a program that is started here does not keep the socket open
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as stream:
        opening = json.loads(stream.readline())
        sys.path[:] = opening["path"]
        importlib.import_module("etude.runtime.serving").serve(stream, opening)


if __name__ == "__main__":
    main(int(sys.argv[1]))
