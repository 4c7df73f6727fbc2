"""What runs in the sandbox: it takes one program, runs it, and says what its functions return.

The interpreter is handed this file as text, so it imports the standard library only. It has no secrets: it does not
know what the right answers are, and all that it says the program could say as well, which runs in the same process.
"""

from __future__ import annotations

import contextlib
import errno
import json
import linecache
import os
import resource
import sys
import traceback
import types
from typing import Any

NAME = "program.py"
LONGEST = 2_000
"""Characters of what was raised."""
ERRORS = {
    errno.EAGAIN: "processes", errno.ENOMEM: "memory", errno.ENOSPC: "disk", errno.EFBIG: "disk", errno.EDQUOT: "disk",
    errno.ENETUNREACH: "network", errno.EHOSTUNREACH: "network", errno.ECONNREFUSED: "network",
    errno.EAFNOSUPPORT: "network", errno.EPERM: "forbidden", errno.EACCES: "forbidden", errno.EROFS: "forbidden",
}  # fmt: skip


class Speaker:
    """Says JSON values over a pipe, each on a line behind the marker of this run."""

    def __init__(self, descriptor: int, marker: str) -> None:
        self.descriptor, self.marker, self.write, self.dumps = descriptor, marker, os.write, json.dumps

    def say(self, **values: object) -> None:
        line = (self.marker + " " + self.dumps(values) + "\n").encode()
        while line:
            line = line[self.write(self.descriptor, line) :]


def main(descriptor: int) -> None:
    """Wait for a program, run it, and end, whatever it has started."""
    os.write(descriptor, b"ready\n")
    message = json.loads(sys.stdin.buffer.readline())
    speaker = Speaker(descriptor, message["marker"])
    restrict(descriptor, message["resources"])
    give(message["stdin"])
    reserve = [bytearray(2**21)]  # so that something can be said after the memory was used up
    try:
        ended = run(message["code"], message["calls"], speaker, reserve)
    finally:
        reserve.clear()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    speaker.say(**ended)
    os._exit(0)


def restrict(descriptor: int, resources: dict[str, int]) -> None:
    """Close what was inherited, and lower the limits for good."""
    highest = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 4096)
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, highest)
    for name, most in resources.items():
        resource.setrlimit(getattr(resource, name), (most, most))
    sys.path[:] = [p for p in sys.path if p]
    sys.argv[:] = [NAME]
    streams: Any = (sys.stdout, sys.stderr)
    for stream in streams:
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def give(text: str) -> None:
    """Put a text in the place of the standard input."""
    if text:
        descriptor = os.open("stdin", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.unlink("stdin")  # noqa: PTH108
        left = text.encode("utf-8", "replace")
        while left:
            left = left[os.write(descriptor, left) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
    else:
        descriptor = os.open(os.devnull, os.O_RDONLY)
    os.dup2(descriptor, 0)
    os.close(descriptor)
    sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115


def run(code: str, calls: list[Any], speaker: Speaker, reserve: list[bytearray]) -> dict[str, Any]:
    """How a program ended, after its functions were called."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    linecache.cache[NAME] = (len(code), None, code.splitlines(True), NAME)
    try:
        exec(compile(code, NAME, "exec"), module.__dict__)
    except SystemExit as error:
        return {"ended": "exited", "detail": str(error.code)[:LONGEST]}
    except BaseException as error:
        reserve.clear()
        return fault(error)
    for number, (name, arguments) in enumerate(calls):
        try:
            if name not in module.__dict__:
                raise NameError(f"the program defines no {name!r}")
            speaker.say(call=number, answer=module.__dict__[name](*arguments))
        except BaseException as error:
            reserve.clear()
            speaker.say(call=number, **fault(error))
    return {"ended": "done"}


def fault(error: BaseException) -> dict[str, Any]:
    """What was raised, with the lines of the program's own, and which limit it met."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == NAME]
    lines = traceback.format_list(frames[-5:]) + traceback.format_exception_only(type(error), error)
    return {"ended": met(error), "detail": "".join(lines).rstrip()[-LONGEST:]}


def met(error: BaseException | None) -> str:
    """The limit that an error comes from; 'raised' if it is the program's own."""
    for _ in range(10):
        if error is None:
            break
        if isinstance(error, MemoryError):
            return "memory"
        if isinstance(error, RuntimeError) and "start new thread" in str(error):
            return "processes"
        if type(error).__name__ == "gaierror":
            return "network"
        if isinstance(error, OSError) and error.errno in ERRORS:
            return ERRORS[error.errno]
        error = error.__cause__ or error.__context__
    return "raised"


if __name__ == "__main__":
    main(int(sys.argv[1]))
