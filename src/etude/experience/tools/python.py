"""Python for a policy that writes programs, each in a sandbox of its own."""

from __future__ import annotations

from collections.abc import Callable

from etude.runtime.sandbox.limits import Ended, Limits, Outcome, Program
from etude.runtime.sandbox.pool import shared_pool

SECONDS = 4.0
"""That a program may take: less than `task.tools.seconds`, so that it is told why it was stopped."""
WHY = {
    Ended.TIMEOUT: f"It was stopped after {SECONDS:g} s.",
    Ended.OUTPUT: "It was stopped: it printed too much.",
    Ended.DIED: "Its process ended without a word.",
}
"""What is said of those who cannot say it themselves."""


def runner() -> Callable[..., str]:
    """The tool `python`. Raises ConfigError where there is no sandbox."""
    pool = shared_pool()

    def python(code: str) -> str:
        """Run a Python program and read what it prints. Nothing is kept between programs, and there is no network.

        Args:
            code: the program; it prints what is to be seen.
        """
        (outcome,) = pool.run([Program(code, limits=Limits(seconds=SECONDS))])
        return told(outcome)

    return python


def told(outcome: Outcome) -> str:
    """What came of a program, for those who wrote it: what it printed, and how it ended if that was not well.

    >>> told(Outcome(Ended.DONE, stdout="42\\n")), told(Outcome(Ended.TIMEOUT, stdout="so far"))
    ('42', 'so far\\nIt was stopped after 4 s.')
    """
    why = "" if outcome.ended in (Ended.DONE, Ended.EXITED) else WHY.get(outcome.ended, outcome.detail)
    said = [text.rstrip() for text in (outcome.stdout, outcome.stderr, why)]
    return "\n".join(text for text in said if text) or "It printed nothing."
