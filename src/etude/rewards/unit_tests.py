"""A reward for programs: they are run in a sandbox, and what comes of that is compared with what should."""

from __future__ import annotations

from collections.abc import Sequence

from etude.core.episodes import Episode
from etude.core.fields import Count, NonNegative, Positive, Probability
from etude.core.slots import Context, Reward
from etude.rewards.testing import ENDED, Verdict, code_of, judged, unit_tests_of
from etude.runtime.sandbox.limits import MIB, Limits


class UnitTests(Reward):
    """`weight` for a program that passes all unit tests of its problem, else weight * partial * (share of them).

    A problem has its tests in the column `tests`: `{"call": "f", "arguments": [1], "value": 2}`, `{"stdin": "1",
    "stdout": "2"}` or `"assert f(1) == 2"`. The program is the last block of code of what was said last, or all of it.
    It runs in a sandbox that does not know what is right, see `docs/code-safely.md`. A problem without tests has no
    reward of this part. Metrics: `reward/unit-tests/passed`, the share of tests, and `programs/timeout`,
    `programs/memory`, `programs/network`, ..., the share of programs that ended so.

    Args:
        partial: what the share of tests that passed is worth where it is not all.
        seconds: that one run may take.
        megabytes: of memory, for each process of a program.

    Raises: ConfigError where there is no sandbox; DataError for tests that cannot be read.

    One of two tests passed:

    >>> UnitTests(weight=2.0, partial=0.5).worth(Verdict((True, False)))
    0.5
    """

    weight: NonNegative = 1.0
    partial: Probability = 0.0
    seconds: Positive = 5.0
    megabytes: Count = 256

    def worth(self, verdict: Verdict) -> float:
        """What a verdict is worth."""
        return self.weight * (1.0 if verdict.right else self.partial * verdict.share)

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float | None]:
        limits = Limits(seconds=self.seconds, memory=self.megabytes * MIB)
        asked = [e for e in episodes if e.problem.info.get("tests") is not None]
        tries = [(code_of(said(e)), unit_tests_of(e.problem.info["tests"], f"Problem {e.problem.id!r}")) for e in asked]
        found = {id(e): verdict for e, verdict in zip(asked, judged(tries, limits))}
        for episode in asked:
            verdict = found[id(episode)]
            episode.scores[f"{self.name}/passed"] = verdict.share
            episode.info[ENDED] = str(verdict.ended)
        return [self.worth(found[id(e)]) if id(e) in found else None for e in episodes]


def said(episode: Episode) -> str:
    """What was said last."""
    return next((s.text for s in reversed(episode.segments) if s.role == "assistant"), "")
