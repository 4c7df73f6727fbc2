"""Candidates of which it is known whether they are tasks: what a collection of tasks is tried on.

Good ones are packages of `mini-swe` with the change that takes their fault out; of each reason to refuse one there are
as many that are spoilt in that way and in no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from etude.core.episodes import Problem
from etude.core.errors import ConfigError
from etude.evaluation.task_collection import MOST_FILES, Candidate, Refused
from etude.tasks.agents.mini_swe import MiniSWE

COIN = "import random\n\ndef coin(n):\n    return random.randrange(2)\n"
"""What a flaky test asks; that five runs agree on all of six calls has a chance of (1/16)^6."""
TOSSES = tuple(f"assert coin({n}) == 0" for n in range(6))


def good(problem: Problem) -> Candidate:
    """A package, and the change that repairs it."""
    info = problem.info
    said = f"{info['issue']}, and is not."
    return Candidate(problem.id, info["created_at"], said, info["files"], info["fixed"], tuple(info["tests"]))


def flaky(right: Candidate) -> Candidate:
    """With tests of a toss of a coin beside its own."""
    files, patched = ({**side, "coins.py": COIN} for side in (right.files, right.patched))
    return replace(right, files=files, patched=patched, tests=(*right.tests, *TOSSES))


def beside(right: Candidate, count: int, end: str = ".py") -> dict[str, str]:
    """Its files before, and so many new ones that no test asks about."""
    return {**right.files, **{f"more_{n}{end}": f"# {n}\n" for n in range(count)}}


SPOILT: dict[Refused, Callable[[Candidate], Candidate]] = {
    Refused.SHORT_ISSUE: lambda c: replace(c, issue="it fails"),
    Refused.SEVERAL_CHANGES: lambda c: replace(c, changes=2),
    Refused.NO_TESTS: lambda c: replace(c, tests=()),
    Refused.LICENCE: lambda c: replace(c, licence="LicenseRef-Proprietary"),
    Refused.NO_FILES: lambda c: replace(c, patched=c.files),
    Refused.MANY_FILES: lambda c: replace(c, patched={**beside(c, MOST_FILES), **c.patched}),
    Refused.NOT_PYTHON: lambda c: replace(c, patched={**beside(c, 2, ".txt"), **c.patched}),
    Refused.FLAKY: flaky,
    Refused.NOTHING_FAILS: lambda c: replace(c, files=c.patched, patched={**c.patched, "more.py": "# more\n"}),
    Refused.UNRELATED: lambda c: replace(c, patched=beside(c, 1)),
}
"""A candidate with one thing wrong, by what that is."""


def seeded(count: int, bad: int, seed: int = 0) -> tuple[list[Candidate], dict[str, Refused]]:
    """`count` good candidates and `bad` of each reason, all of other packages; and why each of the bad ones is bad.

    Packages are those of the test, which no training has. Raises ConfigError for more than there are.
    """
    pool, needed = MiniSWE(seed=seed).problems("test"), count + bad * len(SPOILT)
    if needed > len(pool):
        raise ConfigError(f"There are {len(pool):,} packages to make candidates of, and {needed:,} were asked for.")
    candidates, wrong = [good(problem) for problem in pool[:count]], dict[str, Refused]()
    rest = iter(range(count, len(pool)))
    for reason, spoil in SPOILT.items():
        for _ in range(bad):
            spoilt = spoil(good(pool[next(rest)]))
            candidates.append(spoilt)
            wrong[spoilt.id] = reason
    return candidates, wrong


def mistaken(kept: Sequence[str], refused: dict[str, Refused], wrong: dict[str, Refused]) -> list[str]:
    """Candidates that were kept or refused otherwise than they should have been, by id.

    >>> mistaken(["a", "b"], {"c": Refused.FLAKY}, {"b": Refused.FLAKY, "c": Refused.FLAKY})
    ['b']
    """
    return sorted(
        [id for id in kept if id in wrong] + [id for id, reason in refused.items() if wrong.get(id) is not reason]
    )
