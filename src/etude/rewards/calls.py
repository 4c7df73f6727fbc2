"""Calling a user's reward function and checking what it returned.

This file is also the program that a worker process runs (`worker.py` starts it by path), so at module level it
imports the standard library only: a worker is ready in milliseconds and never loads torch on its own account.

The two sides speak JSON, one object per line, over a socket of their own; what the function prints goes elsewhere.
"""

from __future__ import annotations

import inspect
import io
import json
import math
import numbers
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

Components = dict[str, list[float | None]]
"""One number, or None for 'not applicable', per component and completion; plain numbers have the component ''."""

LONGEST_TRACEBACK = 4_000


class Reason(StrEnum):
    """Why a completion has no reward. Zero is not among them: it is a reward."""

    RAISED = "raised"
    DIED = "died"
    TIMED_OUT = "timed out"
    NOT_FINITE = "not finite"


class CallFailed(Exception):
    """A call that brought no rewards because of what it was given; `detail` is what the user should read."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


class InvalidReturn(Exception):
    """The function returned something that is not one number per completion."""


class NotLoaded(Exception):
    """The function cannot be imported or called; the text is a sentence."""


@dataclass(frozen=True)
class Signature:
    """What a function calls itself and asks for.

    Args:
        name: its own name, for messages and for `episode.scores`.
        wanted: names of its parameters.
        required: those of them without a default.
        rest: whether it takes `**columns`.
        single: whether it is called for each completion by itself: it asks for `completion`, not `completions`.
        awaits: whether it is async.
    """

    name: str
    wanted: tuple[str, ...]
    required: tuple[str, ...]
    rest: bool
    single: bool = False
    awaits: bool = False


@dataclass(frozen=True)
class Limits:
    """Seconds that a call on a batch may take, and those that one completion of it may, if that has a limit."""

    batch: float
    item: float | None = None


@dataclass(frozen=True)
class Reply:
    """What a call came to.

    Args:
        components: of the completions that have a reward; the others have None everywhere.
        failed: reason and detail, by place in the batch.
    """

    components: Components
    failed: dict[int, tuple[Reason, str]] = field(default_factory=dict)


def signature(function: object, label: str) -> Signature:
    """The signature of a reward function. Raises NotLoaded if it cannot be called with keywords."""
    from etude.rewards.items import is_async

    name = getattr(function, "__name__", type(function).__name__)
    if not callable(function) or isinstance(function, type):
        what = "a class; name a function or an instance" if isinstance(function, type) else type(function).__name__
        raise NotLoaded(f"{label} must be a function, got {what}.")
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        raise NotLoaded(f"{label} does not tell its parameters: wrap it in a Python function.") from None
    if unnamed := [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]:
        raise NotLoaded(f"{label} must take its parameters by name, but {unnamed[0]!r} is positional only.")
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    required = tuple(p.name for p in named if p.default is p.empty)
    wanted, rest = tuple(p.name for p in named), any(p.kind is p.VAR_KEYWORD for p in parameters)
    single = "completion" in wanted and "completions" not in wanted
    return Signature(name, wanted, required, rest, single, is_async(function))


def invoke(
    function: Callable[..., Any], arguments: Mapping[str, Any], count: int, asked: Signature, limits: Limits
) -> Reply:  # fmt: skip
    """Call the function on a batch of `count` completions, or on each of them.

    Raises CallFailed if it raises, InvalidReturn if it returns something else than numbers.
    """
    if not asked.single:
        return Reply(components(_attempt(function, arguments, limits.batch), count, asked.name))
    from etude.rewards.items import Fault, each

    rows = [{k: v[i] for k, v in arguments.items()} for i in range(count)]
    returned = each(function, rows, limits.item, limits.batch)
    seconds = min(limits.item or limits.batch, limits.batch)
    failed = {i: _fault(r.error, function, seconds) for i, r in enumerate(returned) if isinstance(r, Fault)}
    fine = [i for i in range(count) if i not in failed]
    found = _each_checked([returned[i] for i in fine], asked.name)
    columns: Components = {k: [None] * count for k in found}
    for name, values in found.items():
        for i, value in zip(fine, values):
            columns[name][i] = value
    return Reply(columns, failed)


def _each_checked(returned: list[Any], name: str) -> Components:
    """What a function returned for one completion after another: all numbers, or all named components."""
    values = [_plain(v) for v in returned]
    if any(isinstance(v, Mapping) for v in values):
        return components([{} if v is None else v for v in values], len(values), name)
    for value in values:
        if value is not None and not isinstance(value, numbers.Real):
            raise InvalidReturn(f"{name} takes one completion and must return one float, got {_kind(value)}.")
    return components(values, len(values), name)


def _fault(error: BaseException | None, function: Callable[..., Any], seconds: float | None) -> tuple[Reason, str]:
    if error is None:
        return Reason.TIMED_OUT, f"did not return within {seconds:g} s."
    return Reason.RAISED, f"raised:\n{trimmed(error, _file(function))}"


def _attempt(function: Callable[..., Any], arguments: Mapping[str, Any], seconds: float | None = None) -> Any:
    """What the function returns, or what an async one comes to within so many seconds. Raises CallFailed."""
    from etude.rewards.items import Fault, each

    returned = each(function, [arguments], None, seconds)[0]
    if isinstance(returned, Fault):
        raise CallFailed(*_fault(returned.error, function, seconds))
    return returned


def components(returned: object, count: int, name: str) -> Components:
    """What a reward function returned, as numbers by component.

    A list, tuple, array or tensor of numbers; a list of dicts; or a dict of lists. A component that a row's dict
    lacks is None there.

    >>> components([True, 0.5], 2, "score")
    {'': [1.0, 0.5]}
    >>> components([{"form": 1}, {"form": 0, "length": 0.2}], 2, "score")
    {'form': [1.0, 0.0], 'length': [None, 0.2]}
    >>> components([0.5], 2, "score")
    Traceback (most recent call last):
    ...
    etude.rewards.calls.InvalidReturn: score must return 2 floats, got list of 1.
    """
    value = _plain(returned)
    if isinstance(value, Mapping) and value:
        return {str(k): _column(_plain(v), count, f"{name}, component {str(k)!r},") for k, v in value.items()}
    if not (isinstance(value, (list, tuple)) and value and all(isinstance(v, Mapping) for v in value)):
        return {"": _column(value, count, name)}
    keys = dict.fromkeys(str(k) for row in value for k in row)
    rows = [{str(k): v for k, v in row.items()} for row in value]
    return {k: _column([r.get(k) for r in rows], count, f"{name}, component {k!r},") for k in keys or [""]}


def _column(value: object, count: int, name: str) -> list[float | None]:
    must = f"{name} must return {count} float{'s' * (count != 1)}, got"
    if not isinstance(value, (list, tuple)):
        raise InvalidReturn(f"{must} {_kind(value)}.")
    if len(value) != count:
        raise InvalidReturn(f"{must} {type(value).__name__} of {len(value)}.")
    numbers_ = [_plain(v) for v in value]
    for i, number in enumerate(numbers_):
        if number is not None and not isinstance(number, numbers.Real):
            raise InvalidReturn(f"{must} {type(value).__name__} whose item {i} is {_kind(number)}.")
    return [None if v is None else _float(v) for v in numbers_]


def _plain(value: object) -> Any:
    """Arrays, tensors and their scalars as Python lists and numbers."""
    return value.tolist() if hasattr(value, "tolist") and not isinstance(value, type) else value


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number beyond 1e308
        return math.inf if value > 0 else -math.inf


def _kind(value: object) -> str:
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    shown = f" {value[:40]!r}" if isinstance(value, str) else ""
    return f"{type(value).__name__}{shown}"


def trimmed(error: BaseException, file: str) -> str:
    """The traceback of an error, with the frames of one file only, and its last line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename == file] or frames[-1:]
    text = "".join([*traceback.format_list(own), *traceback.format_exception_only(error)])
    return text.rstrip()[-LONGEST_TRACEBACK:]


def _file(function: Callable[..., Any]) -> str:
    """The file that a function was written in."""
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    return code.co_filename if code else ""


# The worker's side


def load(reference: str) -> Callable[..., Any]:
    """The function that 'module:name' or 'path/to/file.py:name' names. Raises NotLoaded, with file and line."""
    from etude.core.errors import ConfigError
    from etude.core.registry import load_attribute

    source = reference.rpartition(":")[0]
    try:
        function: Callable[..., Any] = load_attribute(reference)
    except ConfigError as error:
        raise NotLoaded(str(error)) from None
    except (Exception, SystemExit) as error:
        file = os.path.realpath(source) if source.endswith(".py") else ""
        raise NotLoaded(f"Cannot import {source!r}:\n{trimmed(error, file)}") from None
    return function


def serve(descriptor: int) -> None:
    """Load the function, say what it asks for, then answer calls until the other side hangs up."""
    os.set_inheritable(descriptor, False)  # so that a program the function starts does not keep the socket open
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as stream:
        opening = json.loads(stream.readline())
        sys.path[:] = opening["path"]
        threading.Thread(target=_end_with, args=(opening["parent"],), daemon=True).start()
        try:
            function = load(opening["function"])
            asked = signature(function, opening["function"])
        except NotLoaded as error:
            _say(stream, {"not_loaded": str(error)})
            return
        _say(stream, {"signature": asdict(asked)})
        for line in stream:
            _say(stream, _answer(function, json.loads(line), asked))


def _answer(function: Callable[..., Any], call: dict[str, Any], asked: Signature) -> dict[str, Any]:
    """The reply to a call: rewards if it has a count of completions, else whatever the function returns."""
    try:
        if "count" in call:
            return asdict(invoke(function, call["arguments"], call["count"], asked, Limits(*call["limits"])))
        return {"returned": _attempt(function, call["arguments"])}
    except CallFailed as error:
        return {"reason": error.reason, "detail": error.detail}
    except InvalidReturn as error:
        return {"invalid": str(error)}


def _say(stream: io.BufferedIOBase, message: Mapping[str, Any]) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def _end_with(parent: int) -> None:
    """End this process and all that it started once the parent is gone, however it went."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)


__all__: Sequence[str] = [
    "CallFailed", "Components", "InvalidReturn", "Limits", "NotLoaded", "Reason", "Reply", "Signature", "components",
    "invoke", "load", "serve", "signature", "trimmed",
]  # fmt: skip

if __name__ == "__main__":
    serve(int(sys.argv[1]))
