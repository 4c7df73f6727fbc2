"""Mini-SWE in one turn: the issue and all files are shown, and a patch is written that repairs the fault.

    | clip(3, 2, 5) should be 3
    | ### sums.py
    | def clip(x, low, high):
    |     if x < low:
    |         return low
    |     if x > low:
    |         return high
    |     return x
    | <think> clip sums</think>
    | <solution>
    | ### sums.py
    | <<<<<<< SEARCH
    |     if x > low:
    | =======
    |     if x > high:
    | >>>>>>> REPLACE
    | </solution>

Packages are those of `mini-swe`, the format is that of `rewards/patches.py`. A patch is right if all tests pass behind
it, which run in the sandbox; what a method pays for it beside that is the method's (`swe-rl` compares it with the
right one, which is `info["fixed"]`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from etude.core.episodes import Problem
from etude.core.errors import UnknownNameError
from etude.core.fields import Interval, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.rewards.patches import Edit, applied, edits_in, written
from etude.rewards.testing import judged, unit_tests_of
from etude.runtime.sandbox.limits import Limits
from etude.runtime.sandbox.pool import refusal
from etude.tasks.agents.mini_swe import Templates, templates_of
from etude.tasks.agents.packages import SECONDS, package, program
from etude.tasks.pool import Pool, reserved


class MiniSWEPatch(LanguageTask):
    """Packages with one fault, shown whole; 1 for a patch behind which all tests pass, else 0.

    Args:
        templates: which functions have faults: 'all', the 'old' half of them or the 'fresh' one.
        tests: of the function that the issue is about; others have half as many.
        seed: which packages are drawn. The train/test divide is the same for every seed.

    Splits: 'train' and 'test', which share no package. Levels are kinds of faults. Code is not run where there is no
    sandbox: a ConfigError.

    What is no patch is worth nothing, and has no answer:

    >>> MiniSWEPatch().score(Problem("1", "?"), "x = 1"), MiniSWEPatch().answer("x = 1")
    (0.0, '')
    """

    id: ClassVar[str] = "mini-swe-patch"
    max_tokens: ClassVar[int] = 96

    templates: Templates = "all"
    tests: Annotated[int, Interval(ge=1, le=7)] = 4
    seed: WholeNumber = 0

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError(f"split of {self.id}", split, self.splits())
        return Pool(lambda i: self._problem(split, i), 20_000 if split == "train" else 1_000)

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split(self.id, split, index).numpy
        while True:
            info = package(random, templates_of(self.templates), self.tests)
            if info is not None and reserved(str(info["files"])) == (split == "test"):
                break
        worked = written([right_edit(info)], f" {info['issue'].partition('(')[0]} {info['file'].removesuffix('.py')}")
        return Problem(f"{self.id}/{split}/{index}", shown(info), None, info["kind"], {**info, "demonstration": worked})

    def needs_reward(self) -> str | None:
        """Why tests cannot be run here; None if they can."""
        return refusal()

    def expect(self, asked: Sequence[tuple[Problem, str]]) -> None:
        """Run all tests at once, so that as many programs run side by side as there is room for."""
        judged([t for problem, text in asked if (t := _tried(problem, text)) is not None], Limits(seconds=SECONDS))

    def score(self, problem: Problem, completion: str) -> float:
        tried = _tried(problem, completion)
        return 0.0 if tried is None else float(judged([tried], Limits(seconds=SECONDS))[0].right)

    def answer(self, completion: str) -> str:
        """The edits, without the thought; '' where there are none."""
        return str(edits_in(completion) or "")


def shown(info: dict[str, Any]) -> str:
    """The issue, and every file whole.

    >>> shown({"issue": "two() should be 2", "files": {"a.py": "x\\n"}})
    ' two() should be 2\\n### a.py\\nx\\n'
    """
    return f" {info['issue']}\n" + "".join(f"### {name}\n{text}" for name, text in info["files"].items())


def right_edit(info: dict[str, Any]) -> Edit:
    """The edit that takes the fault out: its line, with as many before it as it takes to be the first such place."""
    name, last = info["file"], info["line"]
    before, after = (info[key][name].splitlines(keepends=True) for key in ("files", "fixed"))
    for first in range(last - 1, -1, -1):
        edit = Edit(name, "".join(before[first:last]), "".join(after[first:last]))
        if applied(info["files"], [edit]) == info["fixed"]:
            return edit
    raise AssertionError(f"{name}: the whole beginning of a file is there once.")


def _tried(problem: Problem, completion: str) -> tuple[str, tuple[Any, ...]] | None:
    """The program that a completion makes of a package, and its tests; None where no patch can be made of it."""
    edits = edits_in(completion)
    files = None if edits is None else applied(problem.info["files"], edits)
    if files is None:
        return None
    return program(files), unit_tests_of(problem.info["tests"], f"Problem {problem.id!r}")


mini_swe_patch = MiniSWEPatch()
