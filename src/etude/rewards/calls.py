"""Calling a user's reward function and checking what it returned.

A worker process imports this file to serve such a function (`Scorer`), so at module level it imports nothing heavy: a
worker is ready in milliseconds and never loads torch on its own account.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from etude.runtime.serving import CallFailed, NotLoaded, Reason, file_of, load, trimmed

Components = dict[str, list[float | None]]
"""One number, or None for 'not applicable', per component and completion; plain numbers have the component ''."""


class InvalidReturn(Exception):
    """The function returned something that is not one number per completion."""


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

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Signature:
        """The signature whose fields these JSON values are."""
        return cls(**{**values, "wanted": tuple(values["wanted"]), "required": tuple(values["required"])})


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
    return Reason.RAISED, f"raised:\n{trimmed(error, file_of(function))}"


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


class Scorer:
    """What a worker process makes of a function's name: it answers calls with rewards.

    Args:
        function: 'module:name' or 'path/to/file.py:name'.
    """

    def __init__(self, function: str) -> None:
        self.function = load(function)
        self.asked = signature(self.function, function)
        self.greeting = asdict(self.asked)

    def __call__(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A `Reply`, or why what was returned is none. Raises CallFailed."""
        limits = Limits(*message["limits"])
        try:
            return asdict(invoke(self.function, message["arguments"], message["count"], self.asked, limits))
        except InvalidReturn as error:
            return {"invalid": str(error)}


__all__: Sequence[str] = [
    "Components", "InvalidReturn", "Limits", "Reply", "Scorer", "Signature", "components", "invoke", "signature",
]  # fmt: skip
