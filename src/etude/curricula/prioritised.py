"""Problems that are not solved yet more often, easy ones first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from etude.core.batches import TokenBatch
from etude.core.episodes import Problem
from etude.core.fields import Count, NonNegative, WholeNumber
from etude.core.slots import Curriculum
from etude.core.streams import Stream
from etude.curricula.outcomes import Outcomes


class Prioritised(Curriculum):
    """Draws problem x with probability proportional to 1 - s_x, s_x its success rate so far (arXiv:2501.12599, 2.3.3).

    Problems that were never met have s_x = 0. Before that, easy ones: levels (`problem.level`, in the order of the
    numbers in them) are opened one after the other, each once `widen` problems were drawn since the one before.
    No problem is drawn twice in a step, unless there are too few.

    Args:
        size: how many of the pool's problems are drawn from.
        widen: 0 opens all levels at once.
        floor: least weight of a problem, however often it is solved.
        outcomes: the record of success rates.

    Shapes: learns from solved [B] of every scored batch.

    >>> part = Prioritised().bind()
    >>> part.outcomes.visit("met", 0.25)
    >>> part.weight("met"), part.weight("new")
    (0.75, 1.0)
    """

    chooses_ahead: ClassVar[bool] = True
    size: Count = 2000
    widen: WholeNumber = 128
    floor: NonNegative = 0.0
    outcomes: Outcomes = Outcomes(history=4)

    def initial_state(self) -> dict[str, Any]:
        return {"drawn": 0}

    def before_update(self, batch: TokenBatch) -> None:
        self.outcomes.note(batch)

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        known = self._known(pool)
        levels = sorted({p.level for p in known}, key=difficulty)
        opened = len(levels) if not self.widen else 1 + self.state["drawn"] // self.widen
        allowed = set(levels[:opened])
        candidates = [p for p in known if p.level in allowed]
        self.state["drawn"] += count
        places = self._draw(np.array([self.weight(p.id) for p in candidates]), count, stream.numpy)
        return [candidates[i] for i in places]

    def weight(self, problem: str) -> float:
        """1 - s, at least `floor`."""
        return max(self.floor, 1 - (self.outcomes.rate(problem) or 0.0))

    def _draw(self, weights: np.ndarray, count: int, random: np.random.Generator) -> list[int]:
        """Places without repetition, by weight; where too few have any, the others fill up."""
        places: list[int] = []
        while len(places) < count:
            left = (
                np.setdiff1d(np.arange(len(weights)), places) if len(places) < len(weights) else np.arange(len(weights))
            )
            likely = left[weights[left] > 0] if (weights[left] > 0).any() else left
            p = weights[likely] if weights[likely].any() else np.ones(len(likely))
            number = min(count - len(places), len(likely))
            places += random.choice(likely, number, replace=False, p=p / p.sum()).tolist()
        return places

    def _known(self, pool: Sequence[Problem]) -> list[Problem]:
        """The problems that are drawn from, read once."""
        if self.made.get("pool") is not pool:
            self.made.update(pool=pool, problems=[pool[i] for i in range(min(self.size, len(pool)))])
        found: list[Problem] = self.made["problems"]
        return found


def difficulty(level: str) -> tuple[float, str]:
    """Order of levels: the first number in the name, then the name."""
    number = re.search(r"\d+", level)
    return (float(number[0]) if number else 0.0), level
