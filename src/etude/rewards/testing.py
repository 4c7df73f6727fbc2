"""Unit tests of programs: what a test asks, and whether a program that ran in the sandbox answered it.

A program is told which functions to call with what, and what stands on its standard input. What should come of that it
is never told: answers are plain data, and are compared here, once they have been read.
"""

from __future__ import annotations

import ast
import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etude.core.episodes import Problem, Segment
from etude.core.errors import DataError
from etude.core.task import LanguageTask, SingleTurn, StepResult
from etude.runtime.sandbox.limits import Ended, Limits, Outcome, Program, agree
from etude.runtime.sandbox.pool import shared_pool

FENCED = re.compile(r"```[ \t]*(?:python|py)?[ \t]*\r?\n(.*?)```", re.DOTALL | re.IGNORECASE)
LONGEST = 65_536
"""Characters that a program may have."""
ENDED = "ended"
"""Where the `info` of an episode has how its program ended."""
REASONS = tuple(str(e) for e in Ended if e not in (Ended.DONE, Ended.EXITED))
"""Ways to end that are counted."""
FORMS = (
    '{"call": "f", "arguments": [1], "value": 2}, {"stdin": "1", "stdout": "2"} or "assert f(1) == 2", with values '
    "that JSON has"
)


@dataclass(frozen=True)
class UnitTest:
    """One thing that a program should do: a function called `call` returns `value`, or it prints `stdout`.

    >>> UnitTest.of("assert f(1, 'a') == [2]")
    UnitTest(call='f', arguments=(1, 'a'), value=[2], stdin='', stdout='')
    """

    call: str = ""
    arguments: tuple[Any, ...] = ()
    value: Any = None
    stdin: str = ""
    stdout: str = ""

    @classmethod
    def of(cls, told: object) -> UnitTest:
        """A test as data has it. Raises DataError for what is none, or asks for what is no plain data."""
        try:
            json.dumps(told if not isinstance(told, str) else _asserted(told))
        except (TypeError, ValueError, RecursionError):
            raise DataError(f"A unit test is {FORMS}; got {told!r}.") from None
        if isinstance(told, str):
            return cls(*_asserted(told))
        if isinstance(told, Mapping):
            given = {str(k): v for k, v in told.items()}
            if given.keys() == {"call", "arguments", "value"} and isinstance(given["arguments"], (list, tuple)):
                return cls(str(given["call"]), tuple(given["arguments"]), given["value"])
            if given.keys() == {"stdin", "stdout"} and all(isinstance(v, str) for v in given.values()):
                return cls(stdin=given["stdin"], stdout=given["stdout"])
        raise DataError(f"A unit test is {FORMS}; got {told!r}.")


def unit_tests_of(told: object, where: str = "") -> tuple[UnitTest, ...]:
    """The tests of a problem. Raises DataError if there are none, or one cannot be read."""
    listed = told if isinstance(told, (list, tuple)) else ()
    if not listed:
        raise DataError(f"{where or 'The problem'} needs a list of unit tests, got {told!r}; a test is {FORMS}.")
    return tuple(UnitTest.of(one) for one in listed)


def _asserted(line: str) -> tuple[str, tuple[Any, ...], Any]:
    """Name, arguments and value of 'assert f(1) == 2'."""
    try:
        (found,) = ast.parse(line.strip()).body
        assert isinstance(found, ast.Assert) and isinstance(found.test, ast.Compare)
        assert isinstance(found.test.ops[0], ast.Eq) and len(found.test.ops) == 1
        called = found.test.left
        assert isinstance(called, ast.Call) and isinstance(called.func, ast.Name) and not called.keywords
        return (
            called.func.id,
            tuple(ast.literal_eval(a) for a in called.args),
            ast.literal_eval(found.test.comparators[0]),
        )
    except (AssertionError, ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise DataError(f"A unit test is {FORMS}; got {line!r}.") from None


def code_of(completion: str) -> str:
    """The program in a completion: its last block of code, or all of it where there is none.

    >>> code_of("So:\\n```python\\nx = 1\\n```\\nDone."), code_of("x = 2")
    ('x = 1\\n', 'x = 2')
    """
    blocks = FENCED.findall(completion)
    return str(blocks[-1]) if blocks else completion


@dataclass(frozen=True)
class Verdict:
    """Which tests a program passed, and how it ended: in the first way that was none to go on."""

    passed: tuple[bool, ...]
    ended: Ended = Ended.DONE

    @property
    def share(self) -> float:
        """Of its tests."""
        return sum(self.passed) / len(self.passed)

    @property
    def right(self) -> bool:
        """Whether it passed all of them."""
        return all(self.passed)


Try = tuple[str, tuple[UnitTest, ...]]
"""A program, and its tests."""
_known: OrderedDict[str, Verdict] = OrderedDict()
KEPT = 4_096
"""Verdicts that are remembered: a policy says the same program many times."""


def judged(tries: Sequence[Try], limits: Limits | None = None) -> list[Verdict]:
    """What comes of programs under their tests, all at once. Raises ConfigError where there is no sandbox."""
    limits = limits or Limits()
    keys = [repr((code, tests, limits)) for code, tests in tries]
    new = {key: one for key, one in zip(keys, tries) if key not in _known}
    listed = {key: _programs(code, tests, limits) for key, (code, tests) in new.items()}
    ran = iter(shared_pool().run([p for programs in listed.values() for p in programs]) if listed else ())
    fresh = {key: _verdict([next(ran) for _ in listed[key]], tests) for key, (_, tests) in new.items()}
    verdicts = [fresh.get(key) or _known[key] for key in keys]
    _remember({key: v for key, v in fresh.items() if v.ended is not Ended.TIMEOUT})  # which depends on the clock
    return verdicts


def passes(completion: str, problem: Problem, seconds: float = 5.0) -> float:
    """1 if the program in a completion passes all unit tests of its problem, else 0."""
    return float(verdict_on(completion, problem, seconds).right)


def verdict_on(completion: str, problem: Problem, seconds: float) -> Verdict:
    """What comes of the program in a completion under the unit tests of its problem."""
    tests = unit_tests_of(problem.info.get("tests"), f"Problem {problem.id!r}")
    return judged([(code_of(completion), tests)], Limits(seconds=seconds))[0]


class Tested(SingleTurn):
    """The environment of one program: the reward is 1 if it passes all tests; `info` says how it ended."""

    def __init__(self, task: LanguageTask, seconds: float) -> None:
        super().__init__(task)
        self.seconds = seconds

    def step(self, segment: Segment) -> StepResult:
        verdict = verdict_on(segment.text, self.problem, self.seconds)
        return StepResult([], reward=float(verdict.right), terminated=True, info={ENDED: str(verdict.ended)})


def ends(infos: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Which share of programs ended in each way that is none to go on; nothing where there are no programs.

    A rise in those that no honest program comes to (`network`, `forbidden`, `processes`) is worth a look.

    >>> found = ends([{ENDED: "timeout"}, {ENDED: "done"}, {}])
    >>> found["programs/timeout"], found["programs/network"], ends([{}])
    (0.5, 0.0, {})
    """
    seen = [info[ENDED] for info in infos if ENDED in info]
    return {f"programs/{how}": seen.count(how) / len(seen) for how in REASONS} if seen else {}


def _remember(fresh: Mapping[str, Verdict]) -> None:
    _known.update(fresh)
    while len(_known) > KEPT:
        _known.popitem(last=False)


def _programs(code: str, tests: Sequence[UnitTest], limits: Limits) -> list[Program]:
    """The runs that the tests ask for: one for all calls, one for each input; none of a program that is too long."""
    if len(code) > LONGEST or not code.strip():
        return []
    calls = tuple((t.call, t.arguments) for t in tests if t.call)
    inputs = [Program(code, stdin=t.stdin, limits=limits) for t in tests if not t.call]
    return [*([Program(code, calls, limits=limits)] if calls else []), *inputs]


def _verdict(outcomes: Sequence[Outcome], tests: Sequence[UnitTest]) -> Verdict:
    """The verdict: the only place where what should have come meets what came."""
    if not outcomes:
        return Verdict((False,) * len(tests), Ended.RAISED)
    left = list(outcomes)
    called = left.pop(0) if any(t.call for t in tests) else None
    passed, number = [], 0
    for test in tests:
        if test.call:
            assert called is not None
            passed.append(number in called.answers and agree(test.value, called.answers[number]))
            number += 1
        else:
            outcome = left.pop(0)
            went = outcome.ended in (Ended.DONE, Ended.EXITED)
            passed.append(went and _lines(outcome.stdout) == _lines(test.stdout))
    fine = (Ended.DONE, Ended.EXITED) if called is None else (Ended.DONE,)
    return Verdict(tuple(passed), next((o.ended for o in outcomes if o.ended not in fine), Ended.DONE))


def _lines(text: str) -> list[str]:
    """Lines without what cannot be seen at their ends, nor empty ones at the end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
