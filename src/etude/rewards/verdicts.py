"""Verdicts on lists: how they are read, how well they are formed, and how far they agree with what was wanted.

A verdict is a text with a thought in tags and one JSON object, with scores by name and names from best to worst:

    <think>B says everything</think>{"scores":{"A":2,"B":5},"best-to-worst":["B","A"]}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from etude.core.episodes import Problem
from etude.core.errors import DataError

OPENING, CLOSING = "<think>", "</think>"
SCORES, ORDER = "scores", "best-to-worst"
LONG = 50
"""Characters of a thought from which on it is more than a word or two."""


def names_of(count: int) -> list[str]:
    """How candidates are called, in the order in which they are shown.

    >>> names_of(3), names_of(28)[-2:]
    (['A', 'B', 'C'], ['A2', 'B2'])
    """
    return [chr(ord("A") + i % 26) + (str(i // 26 + 1) if i >= 26 else "") for i in range(count)]


def listed(asked: str, candidates: Sequence[str]) -> str:
    """A prompt that shows what was asked and then every candidate under its name.

    >>> listed("2+5=", ["7", "8"])
    '2+5=\\nA:7\\nB:8\\n'
    """
    return "\n".join([asked, *(f"{name}:{said}" for name, said in zip(names_of(len(candidates)), candidates)), ""])


class Candidates(NamedTuple):
    """What of a problem is to be ranked: what was asked, the answers, and what each is worth."""

    asked: str
    answers: Sequence[str]
    targets: Sequence[float]

    @property
    def wanted(self) -> dict[str, float]:
        """What each is worth, by its name."""
        return dict(zip(names_of(len(self.targets)), map(float, self.targets)))


def candidates_of(problem: Problem) -> Candidates:
    """What a problem's info says of them (`asked`, `candidates`, `targets`). Raises DataError where it does not."""
    asked, answers, targets = (problem.info.get(k) for k in ("asked", "candidates", "targets"))
    if not isinstance(asked, str) or not isinstance(answers, Sequence) or not isinstance(targets, Sequence):
        raise DataError(
            f"Problem {problem.id!r} has no list of answers to rank: give data files the columns 'asked', 'candidates' "
            "and 'targets', a number for each candidate, or choose a task that has them, like 'principles'."
        )
    if len(answers) != len(targets) or len(answers) < 2:
        raise DataError(
            f"Problem {problem.id!r} must have as many targets as candidates, two or more, got {len(targets)} targets "
            f"for {len(answers)} candidates."
        )
    return Candidates(asked, answers, targets)


class Verdict(NamedTuple):
    """What a text says of a list.

    Args:
        said: the object; empty where there is none.
        cut: whether it had to be cut out of other text.
    """

    said: dict[str, Any]
    cut: bool = False

    @property
    def scores(self) -> dict[str, Any]:
        """What it says under "scores", as far as that is by name."""
        found = self.said.get(SCORES)
        return found if isinstance(found, dict) else {}

    @property
    def numbers(self) -> dict[str, float]:
        """Those of its scores that are numbers."""
        return {name: value for name, given in self.scores.items() if (value := _number(given)) is not None}


def verdict_of(text: str) -> Verdict:
    """The object behind the thought, or between its first and last brace.

    >>> verdict_of('<think>?</think>{"scores":{"A":2}}').numbers, verdict_of('I say {"scores":{"A":2}}.').cut
    ({'A': 2.0}, True)
    """
    before, opened, rest = text.partition(OPENING)
    _, closed, after = rest.partition(CLOSING)
    text = (before + after if opened and closed else text).strip()
    if found := _object(text):
        return Verdict(found)
    return Verdict(_object(text[text.find("{") : text.rfind("}") + 1]), cut=True)


def formed(text: str, names: Sequence[str]) -> float:
    """F, how well a verdict on candidates of these names is formed, in [0, 1].

    0.15 for both tags (0.05 for one), 0.05 for a thought of more than 50 characters, 0.2 for an object (0.15 where it
    has to be cut out of other text), 0.1 for each of its two keys, 0.2 times the share of candidates that it scores,
    and 0.2 times how far its order and its scores agree.

    >>> good = '<think>A is wrong</think>{"scores":{"A":1,"B":5},"best-to-worst":["B","A"]}'
    >>> [round(formed(text, "AB"), 2) for text in (good, good.replace('["B","A"]', '["A","B"]'), good[7:], "B")]
    [0.95, 0.75, 0.8, 0.0]
    """
    verdict, tags = verdict_of(text), (OPENING in text) + (CLOSING in text)
    thought = text.partition(OPENING)[2].partition(CLOSING)[0] if tags == 2 else ""
    found = (0.0, 0.05, 0.15)[tags] + 0.05 * (len(thought.strip()) > LONG)
    if verdict.said:
        found += 0.15 if verdict.cut else 0.2
        found += 0.1 * (SCORES in verdict.said) + 0.1 * (ORDER in verdict.said)
        found += 0.2 * len(set(names) & verdict.scores.keys()) / len(names) + 0.2 * in_agreement(verdict)
    return min(1.0, found)


def in_agreement(verdict: Verdict) -> float:
    """Share of the pairs of its order, of candidates that it scores, of which the first has no lower score.

    0 where there is no such pair.

    >>> in_agreement(Verdict({"scores": {"A": 1, "B": 5, "C": 5}, "best-to-worst": ["C", "A", "B"]}))
    0.6666666666666666
    """
    order, scores = verdict.said.get(ORDER), verdict.numbers
    if not isinstance(order, list):
        return 0.0
    told = [scores[name] for name in dict.fromkeys(n for n in order if isinstance(n, str)) if name in scores]
    pairs = list(combinations(told, 2))
    return sum(a >= b for a, b in pairs) / len(pairs) if pairs else 0.0


def listwise_accuracy(said: Mapping[str, Any], wanted: Mapping[str, float], unranked: float = 1.0) -> float:
    """A = max(0, 1 - sum of penalties / sum of weights) over all pairs of candidates, in [0, 1].

    A pair weighs w = 1 + |g_a - g_b|, g what is wanted. Penalties are w where its order is reversed, w / 2 where scores
    are equal that should not be, else 0. A pair with a score that is no number has no weight; all without any are 0.

    Args:
        unranked: what fewer than two candidates are worth that have a score; the released code says 1.

    >>> wanted = {"A": 1.0, "B": 2.0, "C": 4.0}
    >>> [listwise_accuracy(dict(zip("ABC", s)), wanted) for s in ((1, 3, 5), (3, 3, 3), (5, 3, 1))]
    [1.0, 0.5, 0.0]
    >>> listwise_accuracy({"A": 2, "B": 1, "C": 3}, wanted), listwise_accuracy({}, wanted)  # 1 - 2 / (2 + 4 + 3)
    (0.7777777777777778, 1.0)
    """
    common = [name for name in wanted if name in said]
    if len(common) < 2:
        return unranked
    penalty = total = 0.0
    for a, b in combinations(common, 2):
        one, other = _number(said[a]), _number(said[b])
        if one is None or other is None:
            continue
        gap, ours = wanted[a] - wanted[b], one - other
        weight = 1 + abs(gap)
        total += weight
        penalty += weight if gap * ours < 0 else weight / 2 if gap and not ours else 0.0
    return max(0.0, 1 - penalty / total) if total else 0.0


def pair_accuracy(said: Mapping[str, float], wanted: Mapping[str, float]) -> float:
    """Share of the pairs of different worth whose scores are in their order; equal scores are half right.

    A pair without both scores is wrong. Kendall's tau, of all these pairs, is 2 of it less 1.

    >>> wanted = {"A": 1.0, "B": 2.0, "C": 4.0}
    >>> pair_accuracy({"A": 2, "B": 1, "C": 3}, wanted), pair_accuracy({"A": 2, "C": 2}, wanted)
    (0.6666666666666666, 0.16666666666666666)
    """
    pairs = [(a, b) if wanted[a] > wanted[b] else (b, a) for a, b in combinations(wanted, 2) if wanted[a] != wanted[b]]
    right = [(1 + (said[a] > said[b]) - (said[a] < said[b])) / 2 for a, b in pairs if a in said and b in said]
    return sum(right) / len(pairs) if pairs else 1.0


def gain_of_order(said: Mapping[str, float], wanted: Mapping[str, float]) -> float:
    """NDCG: what candidates are worth in the order of their scores, the k-th divided by log2(k + 1), of the most.

    Of equal scores those that are named first come first; those without one come last.

    >>> round(gain_of_order({"A": 2, "B": 1}, {"A": 1.0, "B": 3.0}), 4)  # (1 + 3 / log2 3) / (3 + 1 / log2 3)
    0.7967
    """
    order = sorted(wanted, key=lambda name: said.get(name, -math.inf), reverse=True)
    found, most = (
        sum(value / math.log2(k + 2) for k, value in enumerate(values))
        for values in ([wanted[name] for name in order], sorted(wanted.values(), reverse=True))
    )
    return found / most if most > 0 else 1.0


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _number(value: object) -> float | None:
    """A score as a finite number; None if it is none."""
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None
