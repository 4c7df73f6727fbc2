"""Calling a user's function on one completion after another, and awaiting the async ones together.

A worker process imports this beside `calls.py`: the standard library only.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any


@dataclass(frozen=True)
class Fault:
    """Why one completion has no reward: what was raised; None if its time was over."""

    error: BaseException | None = None


class _Late(BaseException):
    """Raised inside a function whose time for one completion is over; no `except Exception` swallows it."""


def is_async(function: object) -> bool:
    """Whether calling it gives something to be awaited, as far as that can be seen."""
    call = getattr(type(function), "__call__", None)  # noqa: B004  # of an object that is called
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def each(
    function: Callable[..., Any], rows: Sequence[Mapping[str, Any]], seconds: float | None, most: float | None
) -> list[Any]:  # fmt: skip
    """What the function returns for each row, or a Fault. Async functions run together, others one after another.

    Args:
        rows: arguments by name, one mapping for each call.
        seconds: that one call may take, None for no limit of its own; a function that is not async is interrupted,
            which only the main thread can do.
        most: seconds that all of them may take together, of async functions; others are for the caller to end.
    """
    if is_async(function):
        limits = [limit for limit in (seconds, most) if limit is not None]
        return _awaited(_together(function, rows, min(limits, default=None)))
    return [_alone(function, row, seconds) for row in rows]


def _awaited(thing: Coroutine[Any, Any, list[Any]]) -> list[Any]:
    """What a coroutine comes to, on one event loop that lasts, so that a client may be kept between calls."""
    future = asyncio.run_coroutine_threadsafe(thing, _loop())
    try:
        return future.result()
    except BaseException:  # an interrupt
        future.cancel()
        raise


async def _together(
    function: Callable[..., Any], rows: Sequence[Mapping[str, Any]], seconds: float | None
) -> list[Any]:  # fmt: skip
    async def one(row: Mapping[str, Any]) -> Any:
        try:
            return await function(**row)
        except (Exception, SystemExit) as error:
            return Fault(error)

    tasks = [asyncio.ensure_future(one(row)) for row in rows]
    _, late = await asyncio.wait(tasks, timeout=seconds)
    for task in late:
        task.cancel()
    return [Fault() if task in late else task.result() for task in tasks]


def _alone(function: Callable[..., Any], row: Mapping[str, Any], seconds: float | None) -> Any:
    try:
        return function(**row) if seconds is None else _interrupted(function, row, seconds)
    except _Late:
        return Fault()
    except (Exception, SystemExit) as error:
        return Fault(error)


def _interrupted(function: Callable[..., Any], row: Mapping[str, Any], seconds: float) -> Any:
    signal.signal(signal.SIGALRM, _ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return function(**row)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _ring(number: int, frame: FrameType | None) -> None:
    raise _Late


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """In a thread of its own: the caller's may run a loop already, as in a notebook."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="etude-rewards", daemon=True).start()
    return loop
