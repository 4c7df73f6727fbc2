"""Running the cases of the sandbox, and saying which of them fail."""

from __future__ import annotations

import time
from collections.abc import Sequence

from etude.evaluation.environment_findings import Finding
from etude.evaluation.sandbox_check import forging, limits, walls, words
from etude.evaluation.sandbox_check.around import LOOKS, Look
from etude.evaluation.sandbox_check.case import Case
from etude.runtime.sandbox.consent import FLAG, unsafe
from etude.runtime.sandbox.jail import Walled
from etude.runtime.sandbox.limits import Outcome
from etude.runtime.sandbox.pool import Pool, kind
from etude.runtime.sandbox.probe import holes

CASES: dict[str, tuple[Case, ...]] = {
    "forging": forging.CASES, "limits": limits.CASES, "walls": walls.CASES, "words": words.CASES,
}  # fmt: skip
"""By what they are about."""


def check_sandbox() -> list[Finding]:
    """Try all cases, and say what does not hold, and how many do."""
    begun, pool = time.monotonic(), Pool()
    try:
        found = [*_probed(pool)] or [f for about, cases in CASES.items() for f in failing(pool, about, cases)]
        if not any(f.about == "start" for f in found):
            found += [f for look in LOOKS if (f := _looked(pool, look)) is not None]
    finally:
        pool.close()
    count, seconds = sum(map(len, CASES.values())) + len(LOOKS), time.monotonic() - begun
    said = f"{kind()}: {count - len(found)} of {count} cases hold ({seconds:.0f} s)."
    return [*found, *([] if any(f.about == "start" for f in found) else [Finding("fact", "sandbox", said)])]


def _probed(pool: Pool) -> list[Finding]:
    """What is wrong already with what is tried before any program runs: bombs are for those who are locked in."""
    if unsafe():
        return [Finding("fault", "start", f"With {FLAG} programs are not locked in: there is nothing to try.")]
    try:
        found = holes(pool)
    except Walled as error:
        return [Finding("fault", "start", f"No code is run here: {error}.")]
    return [Finding("fault", "start", f"A program that was tried {what}.") for what in found]


def failing(pool: Pool, about: str, cases: Sequence[Case]) -> list[Finding]:
    """A fault for each case that does not hold."""
    outcomes = pool.run([case.program for case in cases])
    return [
        Finding("fault", about, f"Not so: {case.name}. {_told(outcome)}")
        for case, outcome in zip(cases, outcomes)
        if not _holds(case, outcome)
    ]


def _holds(case: Case, outcome: Outcome) -> bool:
    try:
        return case.holds(outcome)
    except (KeyError, TypeError):  # an answer of another form
        return False


def _told(outcome: Outcome) -> str:
    answers = f", answers {dict(outcome.answers)!r:.200}" if outcome.answers else ""
    said = " ".join(f"{outcome.stdout[:100]!r} {outcome.detail or outcome.stderr}".split())[-300:]
    return f"It ended: {outcome.ended}{answers}; {said}"


def _looked(pool: Pool, look: Look) -> Finding | None:
    return None if look.holds(pool) else Finding("fault", "around", f"Not so: {look.name}.")
