"""Calling tools in a worker process, where one that hangs or dies can be stopped and started again.

A worker process imports this file, so at module level it imports nothing heavy.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from etude.core.errors import ConfigError
from etude.core.meters import Used, add, metering
from etude.experience.tools.outputs import shown
from etude.experience.tools.schemas import Tool, described
from etude.runtime.serving import CallFailed, NotLoaded, Reason, load
from etude.runtime.workers import Worker

BUILT_IN = {"calculator": "etude.experience.tools.calculator:calculator"}
"""Tools that come with etude, by name."""
MADE = {
    "search:FOLDER": "etude.experience.tools.search:searcher",
    "python": "etude.experience.tools.python:runner",
    "sql:FILE": "etude.experience.tools.sql:reader",
}
"""Tools that are made of what stands behind their colon, and what makes them."""
NAMED = re.compile(r"[^\s:]+:[A-Za-z_]\w*")


class Failed(Exception):
    """A call that brought nothing; the text is a sentence for the policy."""


class ToolServer:
    """Serves tools: a message is a call's name and arguments, and how long its answer may be, in characters.

    Args:
        sources: 'file.py' (its public functions), 'file.py:name', 'module:name', 'calculator', 'python',
            'search:CORPUS' or 'sql:FILE'.
    """

    def __init__(self, sources: Sequence[str]) -> None:
        self.functions: dict[str, Callable[..., Any]] = {}
        for source in sources:
            self.functions |= functions_of(source)
        try:
            self.greeting = [vars(described(f)) for f in self.functions.values()]
        except ConfigError as error:
            raise NotLoaded(str(error)) from None

    def __call__(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The text of an answer, and what it used."""
        with metering() as meter:
            text = called(self.functions[message["name"]], message["arguments"], message["longest"])
        return {"text": text, "used": meter.used}


def called(function: Callable[..., Any], arguments: Mapping[str, Any], longest: int) -> str:
    """What a call returns, as text. Raises CallFailed with a sentence if it raises."""
    try:
        return shown(function(**arguments), longest)
    except Exception as error:
        said = shown(str(error), longest)
        raise CallFailed(Reason.RAISED, f"raised {type(error).__name__}{f': {said}' if said else ''}") from None


def functions_of(source: str) -> dict[str, Callable[..., Any]]:
    """The functions that a name stands for. Raises NotLoaded for one that stands for none."""
    name, colon, of = source.partition(":")
    if made := {n.partition(":")[:2]: m for n, m in MADE.items()}.get((name, colon)):
        return {name: _made(made, of)}
    if source in BUILT_IN or NAMED.fullmatch(source):
        found = load(BUILT_IN.get(source, source))
        if not inspect.isroutine(found):
            raise NotLoaded(f"{source} must be a function, got {type(found).__name__}.")
        return {found.__name__: found}
    if not source.endswith(".py"):
        known = ", ".join((*BUILT_IN, *MADE))
        raise NotLoaded(f"Tools are named as file.py, file.py:name or module:name, or one of {known}; got {source!r}.")
    module = _module(source)
    functions = {n: f for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__}
    public: dict[str, Callable[..., Any]] = {n: f for n, f in functions.items() if not n.startswith("_")}
    if not public:
        raise NotLoaded(f"{source} has no function whose name does not begin with an underscore.")
    return public


def _made(maker: str, of: str) -> Callable[..., Any]:
    """A tool of what stands behind its colon, if there is one. Raises NotLoaded with what its maker says."""
    from etude.core.errors import DataError

    make = load(maker)
    try:
        made: Callable[..., Any] = make(of) if of else make()
    except (ConfigError, DataError) as error:
        raise NotLoaded(str(error)) from None
    return made


def _module(source: str) -> Any:
    from etude.core.registry import import_source
    from etude.runtime.serving import trimmed

    try:
        return import_source(source)
    except ConfigError as error:
        raise NotLoaded(str(error)) from None
    except (Exception, SystemExit) as error:
        raise NotLoaded(f"Cannot import {source!r}:\n{trimmed(error, source)}") from None


class Served:
    """Tools in a worker process of their own, which all environments of this process share."""

    def __init__(self, sources: Sequence[str]) -> None:
        label = f"The tools of {', '.join(sources)}"
        server = f"{ToolServer.__module__}:{ToolServer.__qualname__}"
        self.worker = Worker(server, {"sources": list(sources)}, label, "etude.tools")

    @property
    def tools(self) -> dict[str, Tool]:
        """By name. Raises ConfigError if they cannot be loaded, or not be described."""
        return {t["name"]: Tool(**t) for t in self.worker.greeting()}

    def call(self, name: str, arguments: Mapping[str, Any], seconds: float, longest: int) -> str:
        """What a call returns, as text; what it spent is spent here. Raises Failed."""
        try:
            reply = self.worker.call({"name": name, "arguments": dict(arguments), "longest": longest}, seconds)
        except CallFailed as failure:
            raise Failed(_sentence(name, failure, seconds)) from None
        add(None if reply["used"] is None else Used(*reply["used"]))
        return str(reply["text"])


def _sentence(name: str, failure: CallFailed, seconds: float) -> str:
    if failure.reason is Reason.TIMED_OUT:
        return f"{name} did not return within {seconds:g} s."
    if failure.reason is Reason.DIED:
        return f"{name} ended the process that it ran in."
    return f"{name} {failure.detail}"


@cache
def served(sources: tuple[str, ...]) -> Served:
    """The process that has these tools, kept as long as this one."""
    return Served(sources)
