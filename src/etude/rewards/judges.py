"""Judges: how good an answer is, said by a rule, a function or a model in one way.

A judge scores cases, compares two answers, ranks several and accepts; what rewards make of that is in `judged.py` and
`preferences.py`. It is asked about a batch at once, and where asking is dear it remembers what it said. A judge that
has no answer says None: that is not a zero. Judges that look at two answers side by side are in `pair_judges.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from etude.core.episodes import Problem
from etude.core.errors import RewardError
from etude.core.fields import Count, PositiveProbability
from etude.core.part import Part
from etude.core.slots import Context
from etude.core.task import plain
from etude.rewards.canonical import canonical_form, plain_form


@dataclass(frozen=True)
class Case:
    """What a judge is asked about.

    Args:
        prompt: the problem's, as text.
        given: what is judged.
        wanted: what it is compared with: one text, or the segments of one in their order.
        problem: where the prompt is from, for judges that ask the task.
    """

    prompt: str
    given: str
    wanted: tuple[str, ...]
    problem: Problem | None = field(default=None, repr=False, compare=False)

    @property
    def key(self) -> str:
        """A short name for it, by which an answer is remembered."""
        said = {"prompt": self.prompt, "given": self.given, "wanted": self.wanted}
        return hashlib.blake2b(json.dumps(said).encode(), digest_size=12).hexdigest()


@dataclass(frozen=True)
class Duel:
    """Two answers to a problem, of which one may be better."""

    problem: Problem
    first: str
    second: str

    def case(self, of: str, against: str) -> Case:
        """One of them as what is judged, held against the other or against what was wanted."""
        return Case(prompt_of(self.problem), of, (against,), self.problem)


class Opinion(NamedTuple):
    """What a judge says of two answers: the chance that the first is better, shown before the other and after it.

    >>> Opinion(1.0, 0.5).chance, Opinion(1.0, 0.5).unanimous, Opinion(0.9, 0.6).unanimous
    (0.75, False, True)
    """

    straight: float
    turned: float

    @property
    def chance(self) -> float:
        """The mean of both orders: two answers' chances add up to 1, whatever place the judge favours."""
        return (self.straight + self.turned) / 2

    @property
    def unanimous(self) -> bool:
        """Whether both orders are for the first; a tie is not."""
        return self.straight > 0.5 and self.turned > 0.5


class Judge(Part, abstract=True):
    """Somebody who says how good an answer is.

    Args of all judges: `least`, from which score on it accepts.
    """

    slot = "panel"
    least: PositiveProbability = 0.5

    def scores(self, cases: Sequence[Case], context: Context) -> Sequence[float | None]:
        """One number in [0, 1] per case; None where it failed to answer."""
        raise NotImplementedError

    @property
    def why(self) -> str:
        """What the last failure was, as a sentence; '' where it says no more."""
        return ""

    def score(self, cases: Sequence[Case], context: Context) -> list[float | None]:
        """The same, counted in the step's metrics: cases `asked`, of them `cached`, `accepted` and `failed`.

        Raises: RewardError for what is no number in [0, 1], or where there are more or fewer of them than cases.
        """
        said, cached = self._answers(cases, context)
        for case, value in zip(cases, said, strict=True):
            if value is not None and not 0 <= value <= 1:
                raise self._no_score(value, case)
        accepted = sum(v is not None and v >= self.least for v in said)
        counts = {"asked": len(cases), "cached": cached, "accepted": accepted, "failed": said.count(None)}
        if (work := getattr(context.policy, "work", None)) is not None:
            work.update({f"judge/{self.name}/{what}": count for what, count in counts.items()})
        return said

    def accept(self, cases: Sequence[Case], context: Context) -> list[bool | None]:
        """Whether it accepts each case; None where it failed to answer."""
        return [None if v is None else v >= self.least for v in self.score(cases, context)]

    def compare(self, duels: Sequence[Duel], context: Context) -> list[Opinion | None]:
        """Which of two answers is better: here the one with the higher score, and 1/2 for two with the same."""
        asked = [duel.case(said, answer_of(duel.problem)) for duel in duels for said in (duel.first, duel.second)]
        said = self.score(asked, context)
        return [None if a is None or b is None else Opinion(*[(1 + (a > b) - (a < b)) / 2] * 2)
                for a, b in zip(said[::2], said[1::2])]  # fmt: skip

    def rank(self, lists: Sequence[tuple[Problem, Sequence[str]]], context: Context) -> list[list[float] | None]:
        """What each of a problem's answers is worth among them, in [0, 1]: here the score of each.

        None for a list of which it failed to judge one.
        """
        asked = [Case(prompt_of(p), said, (answer_of(p),), p) for p, answers in lists for said in answers]
        return parted(self.score(asked, context), [len(answers) for _, answers in lists])

    def _answers(self, cases: Sequence[Case], context: Context) -> tuple[list[float | None], int]:
        """What it says of each case, and how many of them it did not have to be asked about.

        Raises: RewardError for more or fewer scores than cases, or one that is no number.
        """
        said = self.scores(cases, context) if cases else []
        if len(said) != len(cases):
            raise RewardError(
                f"{type(self).__name__} gave {len(said)} scores for {len(cases)} cases: its `scores` must return one "
                "for each of them, in their order, and None where it has no answer."
            )
        return [self._number(value, case) for value, case in zip(said, cases)], 0

    def _number(self, value: object, case: Case) -> float | None:
        """A score as a number; what is not finite stays so, to be refused by its range."""
        if value is None:
            return None
        if not hasattr(value, "__float__"):
            raise self._no_score(value, case)
        return float(value)

    def _no_score(self, value: object, case: Case) -> RewardError:
        """What to say of a value that is no number in [0, 1]."""
        return RewardError(
            f"{type(self).__name__} must score from 0 to 1, got {value!r} for the answer {case.given!r}, where "
            f"{' '.join(case.wanted)!r} was wanted."
        )


class RememberingJudge(Judge, abstract=True):
    """A judge whom asking costs more than looking up: equal cases have equal scores, and are asked about once.

    What it said is in the state, so that a run that was stopped goes on to the same numbers. Where it failed it is
    asked again the next time.

    Args of all of them: `remember`, how many cases at most; those asked about first are forgotten first.
    """

    remember: Count = 4096

    def initial_state(self) -> dict[str, Any]:
        return {"said": {}}

    def _answers(self, cases: Sequence[Case], context: Context) -> tuple[list[float | None], int]:
        known: dict[str, float] = self.state["said"]
        keys = [case.key for case in cases]
        new = {key: case for key, case in zip(keys, cases) if key not in known}
        fresh = dict(zip(new, super()._answers(list(new.values()), context)[0], strict=True))
        said = [known[key] if key in known else fresh[key] for key in keys]
        known.update({key: value for key, value in fresh.items() if value is not None})
        for key in list(known)[: max(0, len(known) - self.remember)]:
            del known[key]
        return said, len(cases) - len(new)


class SameAnswer(Judge):
    """1 if both are the same in one way of writing them: case, marks, and numbers in words or figures (`canonical`).

    >>> cases = [Case("2+5=", given, ("7",)) for given in ("Seven.", "7.0", "17")]
    >>> SameAnswer().bind().scores(cases, None)
    [1.0, 1.0, 0.0]
    """

    def scores(self, cases: Sequence[Case], context: Context) -> list[float]:
        forms = [(canonical_form(c.given), canonical_form(" ".join(c.wanted))) for c in cases]
        return [float(bool(given) and given == wanted) for given, wanted in forms]


class Contained(Judge):
    """1 if the answer contains what is wanted or is contained in it, case and marks apart (arXiv:2505.17667, 3.3).

    Whoever says everything contains what is wanted: limit what an answer is (`sees`, max_tokens).

    Args:
        unit: what is contained are whole 'word's, so that 1 is not in 12; or any run of 'character's, as published.

    >>> cases = [Case("Who?", given, ("Ada Lovelace",)) for given in ("lovelace", "It was Ada Lovelace.", "love", "")]
    >>> Contained().bind().scores(cases, None), Contained(unit="character").bind().scores(cases, None)
    ([1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0])
    """

    unit: Literal["word", "character"] = "word"

    def scores(self, cases: Sequence[Case], context: Context) -> list[float]:
        return [float(self._holds(plain_form(c.given), plain_form(" ".join(c.wanted)))) for c in cases]

    def _holds(self, given: str, wanted: str) -> bool:
        if not given or not wanted:
            return False
        edge = " " if self.unit == "word" else ""
        ours, theirs = edge + given + edge, edge + wanted + edge
        return ours in theirs or theirs in ours


class SegmentPrefix(Judge):
    """1 if the answer is the first segments of what follows, one or more of them, whole (arXiv:2509.19249, 2.2).

    Case, white space and what separates segments (;,. and line breaks) at the end make no difference. Part of a segment
    is not accepted: its first character would be a prefix, too.

    Args:
        most: how many segments at most; 1 is the strict judge. None: all that are wanted.

    >>> wanted = ("12*2=24;", "24-3=21;", "21+1=22;")
    >>> cases = [Case("7+5=12;", given, wanted) for given in ("12*2=24", "12*2=24; 24-3=21;", "12*2=24;9", "12*2")]
    >>> SegmentPrefix().bind().scores(cases, None), SegmentPrefix(most=1).bind().scores(cases, None)
    ([1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0])
    """

    most: Count | None = None

    def scores(self, cases: Sequence[Case], context: Context) -> list[float]:
        return [float(self.begins(case.given, case.wanted)) for case in cases]

    def begins(self, given: str, wanted: Sequence[str]) -> bool:
        """Whether a text is the first of these segments."""
        ends = range(1, min(self.most or len(wanted), len(wanted)) + 1)
        return _squeezed(given) in {_squeezed("".join(wanted[:j])) for j in ends} - {""}


class NoRepeats(Judge):
    """1 if an answer says no run of `size` units twice.

    A reward model that counts what is said pays for saying it again.

    Args:
        size: how many units make a run.
        unit: words, apart by white space; or characters, white space left out.

    >>> cases = [Case("?", given, ("",)) for given in ("a cat, a cat", "a cat, a dog", "abca")]
    >>> NoRepeats(size=1).bind().scores(cases, None), NoRepeats(size=1, unit="character").bind().scores(cases, None)
    ([0.0, 0.0, 1.0], [0.0, 0.0, 0.0])
    """

    size: Count = 4
    unit: Literal["word", "character"] = "word"

    def scores(self, cases: Sequence[Case], context: Context) -> list[float]:
        return [float(self._differ(c.given)) for c in cases]

    def _differ(self, text: str) -> bool:
        said = text.split() if self.unit == "word" else list("".join(text.split()))
        runs = [tuple(said[i : i + self.size]) for i in range(len(said) - self.size + 1)]
        return len(set(runs)) == len(runs)


def _squeezed(text: str) -> str:
    return "".join(text.split()).casefold().rstrip(";,.")


def prompt_of(problem: Problem) -> str:
    """A problem's prompt as text."""
    prompt = problem.prompt
    return prompt if isinstance(prompt, str) else "\n".join(plain(message.get("content")) for message in prompt)


def answer_of(problem: Problem) -> str:
    """A problem's answer as text."""
    return problem.answer if isinstance(problem.answer, str) else json.dumps(problem.answer)


def parted(values: Sequence[float | None], sizes: Sequence[int]) -> list[list[float] | None]:
    """Values as lists of these sizes one after the other; None for one that lacks a value.

    >>> parted([0.5, 1.0, None], [2, 1])
    [[0.5, 1.0], None]
    """
    found, left = [], iter(values)
    for size in sizes:
        own = [next(left) for _ in range(size)]
        found.append(None if None in own else [float(v) for v in own if v is not None])
    return found
