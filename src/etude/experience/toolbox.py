"""Tools around an environment: what the policy calls is run, and what comes of it is shown to it.

A reply without a call goes on to the environment itself. Whatever goes wrong with a call (no such tool, wrong
arguments, one that raises, hangs or ends its process) is said to the policy in a sentence. What is shown can neither be
read as a call nor as the end of a turn: marks of calls and stop strings are broken here, those of the tokenizer and its
chat template where the text becomes tokens (`policies/guarding.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from etude.core.episodes import Problem, Segment
from etude.core.errors import ConfigError
from etude.core.fields import Count, Positive
from etude.core.meters import spend
from etude.core.task import VALID, Environment, LanguageTask, StepResult, Toolbox
from etude.experience.calls import Call, CallForm, Misread, TaggedCalls
from etude.experience.deadline import deadline
from etude.experience.tools.outputs import broken
from etude.experience.tools.schemas import Tool, described, meant, objection
from etude.experience.tools.served import Failed, Served, called, served
from etude.runtime.serving import CallFailed

AROUND = ("<tool_response>\n", "\n</tool_response>")
"""What stands around an answer where no chat template shows it as a tool's."""


class ToolCalls(Toolbox):
    """Functions that the policy calls in what it says (`--tools my_tools.py`), and those of the environment's own.

    Functions have type hints and a docstring, which become a JSON schema. The chat template shows it, where it reads
    `tools`; elsewhere it is told in words before the problem. Functions of files run in a process of their own, shared
    by all episodes, and are stopped when they are late. Those of the environment's `tools()` run where it does.

    Args:
        functions: 'my_tools.py' (its public functions), 'my_tools.py:find', 'module:name', 'calculator',
            'search:CORPUS' (a folder of texts, or a .jsonl file), 'python' (in a sandbox) or 'sql:FILE'; several with
            commas between them. Empty: those of the environment's own `tools()`.
        calls: how calls are written.
        seconds: that a call may take.
        longest: characters that are shown of what it returned.
        turns: turns of an episode of a task that would end after one.
        prices: what a call of a function costs, as in 'search=0.5', in any unit; `used/cost` in the metrics.

    Raises: ConfigError for a price that is none, and, when the first episode begins, for functions that cannot be
        loaded or described, or none.

    >>> ToolCalls(functions="calculator, tools_2.py:find").sources
    ('calculator', 'tools_2.py:find')
    """

    functions: str = ""
    calls: CallForm = TaggedCalls()
    seconds: Positive = 5.0
    longest: Count = 2_000
    prices: tuple[str, ...] = ()

    def check(self) -> None:
        self.costs()

    def costs(self) -> dict[str, float]:
        """What a call costs, by the function's name."""
        found = {}
        for price in self.prices:
            name, _, number = price.partition("=")
            try:
                found[name.strip()] = float(number)
            except ValueError:
                found[name.strip()] = -1.0
            if not 0 <= found[name.strip()] < math.inf:
                raise ConfigError(f"ToolCalls.prices must be prices of calls, as in search=0.5, got {price!r}.")
        return found

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.functions.split(",") if name.strip())

    def around(self, environment: Environment, task: LanguageTask) -> Environment:
        return Calling(environment, task, self)


class Calling:
    """An environment with tools in reach.

    `info` of a step: `calls` and `failed_calls`, counted over the episode, and `valid`: none of the calls of this turn
    failed, and the environment did not say otherwise of what went on to it.
    """

    def __init__(self, environment: Environment, task: LanguageTask, box: ToolCalls) -> None:
        self.environment, self.box = environment, box
        self.marks = (*box.calls.marks, *(tag.strip() for tag in AROUND), *task.stop, *task.modes, *task.thought)
        self.counts = {"calls": 0, "failed_calls": 0}
        self.served: Served | None = served(box.sources) if box.sources else None
        self.own = _own(environment)
        self.tools: dict[str, Tool] = {**(self.served.tools if self.served else {}), **_described(self.own)}
        if not self.tools:
            raise ConfigError(
                f"Task {task.id or type(task).__name__!r} has no tools to call: name functions (--tools my_tools.py), "
                "or have its environment's `tools()` return some."
            )
        self.costs = box.costs()
        if unknown := [name for name in self.costs if name not in self.tools]:
            raise ConfigError(f"There is no tool {unknown[0]!r} to have a price. There are: {', '.join(self.tools)}.")
        for name in ("snapshot", "restore"):
            if hasattr(environment, name):
                setattr(self, name, getattr(environment, name))

    def reset(self, problem: Problem, seed: int) -> list[Segment]:
        """Begin an episode; the first segment says in `info["tools"]` what can be called."""
        self.counts = {"calls": 0, "failed_calls": 0}
        segments = self.environment.reset(problem, seed)
        tools = list(self.tools.values())
        segments[0].info["tools"] = {"schemas": [t.schema for t in tools], "text": self.box.calls.explained(tools)}
        return segments

    def step(self, segment: Segment) -> StepResult:
        """Answer the calls in what was said; without one, as the environment itself."""
        found = self.box.calls.read(segment.text, self.tools)
        if not found:
            result = self.environment.step(segment)
            result.info = {**self.counts, VALID: True, **(result.info or {})}
            return result
        failed = self.counts["failed_calls"]
        answers = [self._answer(item) for item in found]
        return StepResult(answers, info={**self.counts, VALID: self.counts["failed_calls"] == failed})

    def _answer(self, item: Call | Misread) -> Segment:
        name = item.name if isinstance(item, Call) else ""
        self.counts["calls"] += 1
        try:
            text = self._called(item)
        except Failed as failure:
            self.counts["failed_calls"] += 1
            text = f"Error: {failure}"
        return Segment("tool", broken(text, self.marks), info={"tool": name, "around": list(AROUND)})

    def _called(self, item: Call | Misread) -> str:
        """What a call returns. Raises Failed."""
        if isinstance(item, Misread):
            raise Failed(item.why)
        if item.name not in self.tools:
            there = ", ".join(self.tools)
            raise Failed(f"There is no tool {item.name!r}.{meant(item.name, list(self.tools))} There are: {there}.")
        if wrong := objection(self.tools[item.name], item.arguments):
            raise Failed(wrong)
        if item.name in self.costs:
            spend(cost=self.costs[item.name])
        if item.name in self.own:
            return self._here(item)
        assert self.served is not None
        return self.served.call(item.name, item.arguments, self.box.seconds, self.box.longest)

    def _here(self, call: Call) -> str:
        """What a function of the environment's returns."""
        late = Failed(f"{call.name} did not return within {self.box.seconds:g} s.")
        try:
            with deadline(self.box.seconds, lambda: late):
                return called(self.own[call.name], call.arguments, self.box.longest)
        except CallFailed as failure:
            raise Failed(f"{call.name} {failure.detail}") from None


def _own(environment: Environment) -> dict[str, Callable[..., Any]]:
    """The functions among what an environment says can be called."""
    listed = environment.tools() if hasattr(environment, "tools") else ()
    return {f.__name__: f for f in listed if callable(f)}


def _described(functions: Mapping[str, Callable[..., Any]]) -> dict[str, Tool]:
    return {name: described(function) for name, function in functions.items()}
