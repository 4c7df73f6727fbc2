"""Roles: classes with plain methods over rows, each of which says how its work is divided among ranks.

A method takes keyword arguments and returns a dict, both plain data. How it is dispatched, and what becomes of the
answers, is declared on the method (after ROLL, 2506.06122), so that an executor needs to know no role:

    SPLIT       `rows` are cut into as many pieces as there are ranks; the `rows` of the answers are joined in order,
                and what else an answer says is listed by rank. All other arguments go to every rank.
    BROADCAST   every rank is given all; the answers are listed by rank.
    FIRST       the first rank is given all; the answer is its own.

>>> class Doubler:
...     @dispatched(Dispatch.SPLIT)
...     def double(self, rows, by):
...         return {"rows": [row * by for row in rows], "count": len(rows)}
>>> pieces = divided(Dispatch.SPLIT, {"rows": [1, 2, 3], "by": 2}, ranks=2)
>>> pieces
[{'rows': [1, 2], 'by': 2}, {'rows': [3], 'by': 2}]
>>> collected(Dispatch.SPLIT, [Doubler().double(**piece) for piece in pieces])
{'rows': [2, 4, 6], 'count': [2, 1]}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

from etude.core.errors import ConfigError, InvariantError

ROWS = "rows"
_MARK = "__dispatch__"
F = TypeVar("F", bound=Callable[..., Any])


class Dispatch(StrEnum):
    """How a method's work is divided among ranks."""

    SPLIT = "split"
    BROADCAST = "broadcast"
    FIRST = "first"


class Before(NamedTuple):
    """What every rank must have been given before it is asked anything else: now, or again once it was started anew.

    Args:
        method: of the role.
        stamp: which one it is; a rank that was given it is not given it again.
        make: its arguments, which are asked for where a rank needs them and given up once all have answered.
        files: which of them are paths of files; a rank on another machine is given a copy.
    """

    method: str
    stamp: str
    make: Callable[[], AbstractContextManager[Mapping[str, Any]]]
    files: tuple[str, ...] = ()


class Answer(Protocol):
    """What is asked for now and taken later."""

    @property
    def there(self) -> bool:
        """Whether nobody would wait for it."""
        ...

    def result(self) -> Any:
        """The answer, once it is there. Raises what `Executor.ask` does."""
        ...


class Executor(Protocol):
    """Places a role, calls it, and starts it again."""

    ranks: int

    def ask(self, method: str, before: Before | None = None, /, **arguments: Any) -> Any:
        """What a method of the role comes to, dispatched as it says.

        Raises: WorkerError where somebody failed too often; whatever error of etude's own the method raises.
        """
        ...

    def begin(self, method: str, before: Before | None = None, /, **arguments: Any) -> Answer:
        """The same without waiting for it; what is begun later is answered after it. `before` is made now."""
        ...

    def close(self) -> None:
        """End whatever was started."""
        ...


def dispatched(how: Dispatch) -> Callable[[F], F]:
    """Declare how a method's work is divided."""

    def mark(method: F) -> F:
        setattr(method, _MARK, how)
        return method

    return mark


def dispatch_of(role: type, method: str) -> Dispatch:
    """What a method declares. Raises ConfigError for one that cannot be asked for."""
    how = getattr(getattr(role, method, None), _MARK, None)
    if how is None:
        raise ConfigError(f"{role.__name__} has no method {method!r} that says how it is dispatched.")
    return Dispatch(how)


def split(rows: Sequence[Any], ranks: int) -> list[list[Any]]:
    """Rows in as many pieces, in order, of which none is longer than another by more than a row. Empty where few.

    >>> split("abcde", 2), split("a", 2)
    ([['a', 'b', 'c'], ['d', 'e']], [['a'], []])
    """
    if ranks < 1:
        raise ConfigError(f"Rows are split over at least one rank, got {ranks}.")
    each, more = divmod(len(rows), ranks)
    ends = [rank * each + min(rank, more) for rank in range(ranks + 1)]
    return [list(rows[a:b]) for a, b in pairwise(ends)]


def concatenate(pieces: Sequence[Sequence[Any]]) -> list[Any]:
    """Undo `split`."""
    return [row for piece in pieces for row in piece]


def divided(how: Dispatch, arguments: Mapping[str, Any], ranks: int) -> list[dict[str, Any]]:
    """The arguments of each rank that takes part; one that would have no rows does not."""
    if how is Dispatch.FIRST:
        return [dict(arguments)]
    if how is Dispatch.BROADCAST:
        return [dict(arguments) for _ in range(ranks)]
    return [{**arguments, ROWS: piece} for piece in split(arguments[ROWS], ranks) if piece]


def collected(how: Dispatch, answers: Sequence[Any]) -> Any:
    """What the answers of all ranks come to together."""
    if how is Dispatch.FIRST:
        return answers[0]
    if how is Dispatch.BROADCAST:
        return list(answers)
    if len({frozenset(answer) for answer in answers}) > 1:
        raise InvariantError("Ranks answered with different fields, so their answers cannot be put together.")
    names = list(answers[0]) if answers else [ROWS]
    listed = {name: [answer[name] for answer in answers] for name in names}
    return {**listed, ROWS: concatenate(listed[ROWS])}
