"""Mini-SWE: repair a small package of Python: look for the fault, replace a line, run the tests, submit.

     clip(9, 2, 5) should be 5
     sums.py lists.py
     search clip                        sums.py 1
     open sums.py                       1|def clip(x, low, high):
                                        2|    if x < low:
                                        3|        return low
                                        4|    if x > low:
                                        ...
     replace sums.py 4 if x > high:     ok
     run                                6 passed 0 failed
     submit                             over

A package has one to three functions (`packages.py` has the templates) in one to three files, and one fault: another
operator, a number one more or one less, another name. The tests are not shown; `run` says how many fail, and of which
functions. They run in the sandbox (`docs/code-safely.md`), at most 2 s; what they should return never enters it. A
submission is worth 1 if all tests pass, those that failed because of the fault (`fail_to_pass` of the problem's `info`)
and those that passed with it (`pass_to_pass`), else 0. A line that is replaced keeps its indentation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.errors import DataError
from etude.core.fields import Count, Interval
from etude.curricula.mutation import mutants
from etude.policies.code_words import ACTIONS
from etude.rewards.testing import unit_tests_of
from etude.runtime.jsonl import JsonLines
from etude.runtime.sandbox.pool import refusal
from etude.tasks.agents.games import Game, Heard, Posed, TurnTask, one_of, spaced
from etude.tasks.agents.packages import TEMPLATES, outcomes, package

Templates = Literal["all", "old", "fresh"]
HALF = len(TEMPLATES) // 2


def templates_of(which: Templates) -> tuple[str, ...]:
    """All functions, the older half of them, or the newer one.

    >>> templates_of("old")
    ('clip', 'add_all', 'count_of', 'average', 'initials', 'factorial')
    """
    names = tuple(TEMPLATES)
    return {"all": names, "old": names[:HALF], "fresh": names[HALF:]}[which]


class MiniSWE(TurnTask):
    """Packages with one fault; 1 for a submission that passes all tests, within `max_turns` turns.

    Args:
        templates: which functions have faults: 'all', the 'old' half of them or the 'fresh' one.
        tests: of the function that the issue is about; others have half as many.
        collected: a file of `etude data collect`, whose tasks are the split 'test'.
        max_turns, slips, seed: as of `TurnTask`.

    Splits: 'train' and 'test', which share no package. Levels are kinds of faults. `info` of a step: `tests`, the share
    that passed at the submission. Code is not run where there is no sandbox: a ConfigError.

    >>> from etude.core.episodes import Segment
    >>> info = {"files": {"sums.py": "def two():\\n    return 1\\n"}, "issue": "two() should be 2"}
    >>> game = mini_swe.environment()
    >>> game.reset(Problem("1", "", info={**info, "fixed": {}, "tests": ["assert two() == 2"]}), 0)[0].text
    ''
    >>> print(game.step(Segment("assistant", " open sums.py")).segments[0].text)
     1|def two():
     2|    return 1
    <BLANKLINE>
    """

    id: ClassVar[str] = "mini-swe"
    max_tokens: ClassVar[int] = 32

    templates: Templates = "all"
    tests: Annotated[int, Interval(ge=1, le=7)] = 4
    collected: str | None = None
    max_turns: Count = 10  # type: ignore[misc]

    def problems(self, split: str) -> Sequence[Problem]:
        if self.collected is None or split != "test":
            return super().problems(split)
        return read_tasks(Path(self.collected))

    def posed(self, random: Generator) -> Posed | None:
        info = package(random, templates_of(self.templates), self.tests)
        return None if info is None else Posed(asked(info), None, info["kind"], info)

    def divided(self, posed: Posed) -> str:
        return str(posed.info["files"])

    def needs_reward(self) -> str | None:
        """Why tests cannot be run here; None if they can."""
        return refusal()

    def environment(self) -> Repair:
        return Repair(self)


@cache
def read_tasks(path: Path) -> list[Problem]:
    """Collected tasks. Raises DataError for a file that cannot be read, or has none, or a line that is no task."""
    if not path.is_file():
        raise DataError(f"There is no file {path}; `etude data collect --out {path}` makes one.")
    found = []
    for number, info in enumerate(JsonLines.read(path), 1):
        missing = {"id", "issue", "files", "fixed", "tests", "fail_to_pass", "created_at"} - info.keys()
        if missing:
            raise DataError(f"{path}, line {number}: a task has {', '.join(sorted(missing))} too.")
        found.append(Problem(str(info["id"]), asked(info), None, str(info.get("kind", "collected")), info))
    if not found:
        raise DataError(f"{path} has no tasks.")
    return found


def asked(info: Mapping[str, Any]) -> str:
    """The issue, and which files there are."""
    return f" {info['issue']}\n{spaced(*info['files'])}\n"


class Repair(Game):
    """One package."""

    def __init__(self, task: MiniSWE) -> None:
        super().__init__(task)
        self.task = task

    def begun(self, problem: Problem) -> dict[str, Any]:
        info = problem.info
        return {
            "files": dict(info["files"]), "fixed": dict(info["fixed"]), "tests": list(info["tests"]),
            "about": info["issue"].partition("(")[0], "searched": False, "opened": [], "ran": False,
            "known": info.get("fail_to_pass") is not None and self.task.collected is None,
        }  # fmt: skip

    def said(self, words: Sequence[str]) -> Heard:
        state = self.state
        match words:
            case ["open", name] if name in state["files"]:
                state["opened"] = sorted({*state["opened"], name})
                return Heard("\n".join(f" {n}|{line}" for n, line in enumerate(self._lines(name), 1)))
            case ["search", word]:
                state["searched"] = True
                found = [spaced(name, *lines) for name in state["files"] if (lines := self._with(word, name))]
                return Heard("\n".join(found) or spaced("nothing"))
            case ["replace", name, number, *content] if name in state["files"] and self._is_line(name, number):
                self._put(name, int(number), " ".join(content))
                return Heard(spaced("ok"))
            case ["run"]:
                state["ran"] = True
                passed = self._passed()
                failed = [t.call for t, right in zip(unit_tests_of(state["tests"]), passed) if not right]
                return Heard(spaced(sum(passed), "passed", len(failed), "failed", *dict.fromkeys(failed)))
            case ["submit"]:
                passed = self._passed()
                reward, share = float(all(passed)), sum(passed) / len(passed)
                return Heard(spaced("over"), reward, True, all(passed), more={"tests": share})
        return Heard(spaced("no"), valid=False)

    def _lines(self, name: str) -> list[str]:
        return str(self.state["files"][name]).splitlines()

    def _with(self, word: str, name: str) -> list[int]:
        """The lines of a file, from 1, that have a word as a whole."""
        return [n for n, line in enumerate(self._lines(name), 1) if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", line)]

    def _is_line(self, name: str, number: str) -> bool:
        return number.isascii() and number.isdigit() and len(number) < 4 and 1 <= int(number) <= len(self._lines(name))

    def _put(self, name: str, number: int, content: str) -> None:
        lines = self._lines(name)
        before = lines[number - 1]
        lines[number - 1] = before[: len(before) - len(before.lstrip())] + content
        self.state["files"][name] = "\n".join(lines) + "\n"
        self.state["ran"] = False

    def _passed(self) -> tuple[bool, ...]:
        """Which tests pass. What passes without the fault is known of packages that were made: they are not run."""
        if self.state["known"] and self.state["files"] == self.state["fixed"]:
            return (True,) * len(self.state["tests"])
        return outcomes(self.state["files"], unit_tests_of(self.state["tests"]))

    def best(self, random: Generator) -> str:
        """Look where there are several files, put right the first line that is not, try it, submit."""
        state = self.state
        wrong = next((place for place in self._places() if place[2] != place[3]), None)
        if wrong is None:
            return spaced("submit" if state["ran"] else "run")
        name, number, _, right = wrong
        if name not in state["opened"]:
            looks = len(state["files"]) > 1 and not state["searched"]
            return spaced("search", state["about"]) if looks else spaced("open", name)
        return spaced("replace", name, number, *right.split())

    def _places(self) -> list[tuple[str, int, str, str]]:
        """Each line: file, number, as it is, as it should be."""
        fixed = {name: text.splitlines() for name, text in self.state["fixed"].items()}
        return [(f, n + 1, is_so, fixed[f][n]) for f in fixed for n, is_so in enumerate(self._lines(f))]

    def anything(self, random: Generator) -> str:
        """Any action; what is put in a line's place is that line with a fault."""
        name = one_of(random, [*self.state["files"]])
        action, others = one_of(random, ACTIONS), mutants(self.state["files"][name])
        match action:
            case "open":
                return spaced(action, name)
            case "search":
                return spaced(action, one_of(random, [*TEMPLATES]))
            case "replace" if others:
                other = one_of(random, others)
                return spaced(action, name, other.line, *other.code.splitlines()[other.line - 1].split())
        return spaced("submit" if action == "submit" else "run")

    def tools(self) -> list[dict[str, Any]]:
        """What can be said."""
        file, number = {"file": "as in sums.py"}, {"line": "a number from 1"}
        return [
            {"name": "open", "example": " open sums.py", "arguments": file},
            {"name": "search", "example": " search clip", "arguments": {"word": "any"}},
            {"name": "replace", "example": " replace sums.py 4 return x",
             "arguments": {**file, **number, "text": "of the line, without its indentation"}},
            {"name": "run", "example": " run", "arguments": {}},
            {"name": "submit", "example": " submit", "arguments": {}},
        ]  # fmt: skip


mini_swe = MiniSWE()
