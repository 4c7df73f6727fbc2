"""Collecting tasks of software engineering: candidates, filters with a count for each reason, and tests that are run.

A candidate is what a repository has of a change: the files before, the files after, what the issue says, and the tests
that came with it. What is kept is a task: whoever repairs it passes all its tests, and whoever does nothing does not.
The stages are those of SWE-rebench (arXiv:2505.20411): what can be read off first, then what comes of running the tests
before and after the change, several times, each in a sandbox of its own (`docs/code-safely.md`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from etude.core.episodes import Problem
from etude.rewards.testing import judged, unit_tests_of
from etude.runtime.sandbox.limits import Limits
from etude.tasks.agents.mini_swe import asked
from etude.tasks.agents.packages import SECONDS, program

SHORTEST, MOST_FILES, RUNS = 10, 15, 5
"""Characters that an issue has more than; files that a change touches at most; how often tests are run."""
PERMISSIVE = frozenset({"MIT", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "ISC", "0BSD", "Unlicense"})


class Refused(StrEnum):
    """Why a candidate is no task, in the order in which it is looked at."""

    SHORT_ISSUE = "too short an issue"
    SEVERAL_CHANGES = "not resolved by exactly one change"
    NO_TESTS = "no tests"
    LICENCE = "no permissive licence"
    NO_FILES = "no file changed"
    MANY_FILES = "too many files"
    NOT_PYTHON = "mostly not Python"
    FLAKY = "flaky tests"
    NOTHING_FAILS = "no test fails before"
    UNRELATED = "unrelated patch"


@dataclass(frozen=True)
class Candidate:
    """A change with its issue and its tests.

    Args:
        created_at: ISO date of the issue.
        files, patched: by name the text of every file, before and after.
        tests: lines like "assert f(1) == 2"; none may be here.
        changes: how many merged changes say that they resolve the issue.
        licence: its identifier (SPDX).
    """

    id: str
    created_at: str
    issue: str
    files: Mapping[str, str]
    patched: Mapping[str, str]
    tests: tuple[str, ...]
    changes: int = 1
    licence: str = "MIT"

    @property
    def touched(self) -> list[str]:
        """Files that the change makes, takes away or writes anew."""
        return sorted(n for n in {*self.files, *self.patched} if self.files.get(n) != self.patched.get(n))


@dataclass(frozen=True)
class Collection:
    """What came of candidates: the tasks, as problems of `mini-swe`, and why the others are none."""

    kept: tuple[Problem, ...]
    refused: Mapping[str, Refused]

    @property
    def counts(self) -> dict[str, int]:
        """Of each reason, none left out, in their order."""
        found = Counter(self.refused.values())
        return {str(reason): found[reason] for reason in Refused}


def collect(candidates: Sequence[Candidate], runs: int = RUNS) -> Collection:
    """The candidates that are tasks. Raises ConfigError where there is no sandbox.

    Args:
        runs: how often all tests are run before and after the change; a test that does not come to the same every time
            is flaky.
    """
    refused = {c.id: reason for c in candidates if (reason := read_off(c)) is not None}
    asked_of = [c for c in candidates if c.id not in refused]
    kept = []
    for candidate, (before, after) in zip(asked_of, _ran(asked_of, runs)):
        reason = ran_off(before, after)
        if reason is None:
            kept.append(_task(candidate, before[0], after[0]))
        else:
            refused[candidate.id] = reason
    return Collection(tuple(kept), {c.id: refused[c.id] for c in candidates if c.id in refused})


def read_off(candidate: Candidate) -> Refused | None:
    """Why a candidate is no task, as far as nothing has to be run.

    >>> read_off(Candidate("1", "2025-01-01", "it fails", {}, {}, ()))
    <Refused.SHORT_ISSUE: 'too short an issue'>
    """
    touched = candidate.touched
    wrong: dict[Refused, Callable[[], bool]] = {
        Refused.SHORT_ISSUE: lambda: len(candidate.issue.strip()) <= SHORTEST,
        Refused.SEVERAL_CHANGES: lambda: candidate.changes != 1,
        Refused.NO_TESTS: lambda: not candidate.tests,
        Refused.LICENCE: lambda: candidate.licence not in PERMISSIVE,
        Refused.NO_FILES: lambda: not touched,
        Refused.MANY_FILES: lambda: len(touched) > MOST_FILES,
        Refused.NOT_PYTHON: lambda: 2 * sum(name.endswith(".py") for name in touched) < len(touched),
    }
    return next((reason for reason, is_so in wrong.items() if is_so()), None)


Passed = tuple[bool, ...]


def ran_off(before: Sequence[Passed], after: Sequence[Passed]) -> Refused | None:
    """Why a candidate is no task, by which tests passed in each run before and after its change.

    >>> ran_off([(False, True)] * 2, [(True, True)] * 2), ran_off([(False,)] * 2, [(False,)] * 2)
    (None, <Refused.UNRELATED: 'unrelated patch'>)
    """
    if len({*before}) > 1 or len({*after}) > 1:
        return Refused.FLAKY
    if all(before[0]):
        return Refused.NOTHING_FAILS
    return None if any(now and not then for then, now in zip(before[0], after[0])) else Refused.UNRELATED


def _ran(candidates: Sequence[Candidate], runs: int) -> list[tuple[list[Passed], list[Passed]]]:
    """Of each candidate which tests pass, in each run before its change and after; all are run side by side."""
    tries = [
        (f"{program(files)}\n# run {run}", unit_tests_of(candidate.tests, candidate.id))  # equal programs run once
        for candidate in candidates for files in (candidate.files, candidate.patched) for run in range(runs)
    ]  # fmt: skip
    found = [verdict.passed for verdict in judged(tries, Limits(seconds=SECONDS))]
    return [(found[k : k + runs], found[k + runs : k + 2 * runs]) for k in range(0, len(found), 2 * runs)]


def _task(candidate: Candidate, before: Passed, after: Passed) -> Problem:
    """The task: tests that pass after the change, whether they failed before or not; what else fails is not asked."""
    mended = [t for t, then, now in zip(candidate.tests, before, after) if now and not then]
    kept = [t for t, then, now in zip(candidate.tests, before, after) if now and then]
    info: dict[str, Any] = {
        "issue": candidate.issue, "files": dict(candidate.files), "fixed": dict(candidate.patched),
        "tests": [*mended, *kept], "fail_to_pass": mended, "pass_to_pass": kept, "created_at": candidate.created_at,
    }  # fmt: skip
    return Problem(candidate.id, asked(info), None, "collected", info)
