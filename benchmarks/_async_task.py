"""Answers with a long tail, and a verifier that waits: the work of `async.py`, which a sampler makes by its name."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

from etude.core.episodes import Episode, Problem, Segment
from etude.core.slots import Context, Reward
from etude.core.task import Environment, LanguageTask, StepResult

TURN, LONGEST = 8, 32
"""Tokens of a turn, and turns of an answer: 8 to 256 tokens."""
MEDIAN, SPREAD = 4.0, 1.0
"""Of the log-normal law of turns: a median of 32 tokens."""
WAIT, AT_ONCE = 0.020, 8
"""Seconds that a verification waits, and how many wait at a time."""


class LongTailed(LanguageTask):
    """Goes on for as many turns of 8 tokens as the episode's seed says: log-normal, or always as many as the median."""

    id: ClassVar[str] = "long-tailed"
    max_tokens: ClassVar[int] = TURN
    max_turns: ClassVar[int] = LONGEST
    even: bool = False

    def problems(self, split: str) -> list[Problem]:
        return [Problem(f"{split}-{i}", f"{i}>") for i in range(256)]

    def environment(self) -> Environment:
        return GoesOn(self.even)


class GoesOn:
    """Listens until the answer is as long as it was to be."""

    def __init__(self, even: bool) -> None:
        self.even, self.left = even, 0

    def reset(self, problem: Problem, seed: int) -> list[Segment]:
        turns = MEDIAN * 2 if self.even else random.Random(seed).lognormvariate(0, SPREAD) * MEDIAN
        self.left = max(1, min(LONGEST, round(turns)))
        return [Segment("user", str(problem.prompt))]

    def step(self, said: Segment) -> StepResult:
        self.left -= 1
        return StepResult([Segment("tool", ";")] if self.left else [], 0.0, self.left <= 0)


class Waits(Reward):
    """The share of letters in an answer, after a wait of 20 ms, eight answers at a time."""

    def score(self, episodes: Sequence[Episode], context: Context) -> Sequence[float | None]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(_verified, [e.completion for e in episodes]))


def _verified(text: str) -> float:
    time.sleep(WAIT)
    return sum(c.isalpha() for c in text) / max(1, len(text))
