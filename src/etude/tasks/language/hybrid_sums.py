"""Hybrid sums: answers that are worked out, and answers that are given at once, told apart by their first character.

    prompt      3+5+9+2=
    completion  T8,17,19=19     thought about: every running total, then the answer
                N19             answered at once

Worked answers of two numbers come in either mode, those of more are mostly thought about: a policy that learned from
them knows both modes everywhere, and thinks about sums of two as often as not.
"""

from __future__ import annotations

from itertools import accumulate
from typing import ClassVar

from etude.core.episodes import Problem
from etude.core.fields import Probability
from etude.core.streams import Stream
from etude.tasks.language.sums import Sums, Terms


class HybridSums(Sums):
    """Sums whose answers begin with the mode that they are given in.

    Args:
        terms: how many numbers are added: few can be added at once, many want their totals written down.
        at_once: share of the worked answers to more than two numbers that do not think; to two numbers it is a half.

    >>> problem = Problem("sums/1", "1+2+3=", "6")
    >>> [HybridSums().score(problem, said) for said in ("T3,6=6", "N6", "T3,6=7", "6", "N3,6=6")]
    [1.0, 1.0, 0.0, 0.0, 0.0]
    >>> HybridSums(at_once=0.0).demonstration(problem), HybridSums(at_once=1.0).demonstration(problem)
    ('T3,6=6', 'N6')
    """

    id: ClassVar[str] = "hybrid-sums"
    modes: ClassVar[tuple[str, str]] = ("T", "N")

    terms: tuple[Terms, ...] = (2, 4)
    at_once: Probability = 0.05

    def demonstration(self, problem: Problem) -> str:
        think, direct = self.modes
        terms = [int(t) for t in str(problem.prompt).rstrip("=").split("+")]
        draw = Stream(self.seed).split("hybrid-sums", problem.id).numpy.random()
        if draw < (self.at_once if len(terms) > 2 else 0.5):
            return f"{direct}{problem.answer}"
        return f"{think}{','.join(map(str, list(accumulate(terms))[1:]))}={problem.answer}"

    def answer(self, completion: str) -> str:
        """What follows the last sign of equality after thinking, or all that is said at once; nothing in no mode."""
        think, direct = self.modes
        said = completion.strip()
        if said.startswith(think):
            return said.rpartition("=")[2].strip() if "=" in said else ""
        return said.removeprefix(direct).strip() if said.startswith(direct) else ""


hybrid_sums = HybridSums()
