"""Judges that look at two answers side by side and say which is better: a function, a model, or a simulated teacher.

What they score is the chance that what is given beats what it is held against, so that in `judge-reward` they pay how
likely an answer beats the problem's own one (an anchor).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Annotated, Literal

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, RewardError
from etude.core.fields import Interval, NonNegative, Positive, PositiveProbability
from etude.core.slots import Context
from etude.rewards.asked_judges import FunctionJudge, ModelJudge
from etude.rewards.judges import Case, Duel, Judge, Opinion


class PairJudge(Judge, abstract=True):
    """Whose `scores` say how likely what is given beats what is wanted, shown in this order.

    Args of all of them: `orders`, whether every two answers are shown in 'both' orders and the chances averaged, so
    that whichever place the judge favours two answers' chances add up to 1; or as they are 'given', once.
    """

    orders: Literal["both", "given"] = "both"

    def score(self, cases: Sequence[Case], context: Context) -> list[float | None]:
        """How likely each given answer beats the one wanted, in [0, 1]; None where it failed in either order."""
        return [None if said is None else said.chance for said in self._opinions(cases, context)]

    def compare(self, duels: Sequence[Duel], context: Context) -> list[Opinion | None]:
        return self._opinions([duel.case(duel.first, duel.second) for duel in duels], context)

    def rank(self, lists: Sequence[tuple[Problem, Sequence[str]]], context: Context) -> list[list[float] | None]:
        """The mean chance with which each answer beats the others of its list; 1/2 for one alone."""
        duels = [[Duel(p, a, b) for a, b in combinations(answers, 2)] for p, answers in lists]
        said = iter(self.compare([duel for own in duels for duel in own], context))
        return [_shares(len(answers), [next(said) for _ in own]) for (_, answers), own in zip(lists, duels)]

    def _opinions(self, cases: Sequence[Case], context: Context) -> list[Opinion | None]:
        other = [replace(c, given=" ".join(c.wanted), wanted=(c.given,)) for c in cases]
        said = super().score([*cases, *other] if self.orders == "both" else cases, context)
        straight, turned = said[: len(cases)], [None if v is None else 1 - v for v in said[len(cases) :]]
        pairs = zip(straight, turned or straight)
        found = [None if a is None or b is None else Opinion(a, b) for a, b in pairs]
        if (work := getattr(context.policy, "work", None)) is not None:
            split = sum(o is not None and (o.straight - 0.5) * (o.turned - 0.5) < 0 for o in found)
            work.update({f"judge/{self.name}/disagreed": split})
        return found


def _shares(count: int, said: Sequence[Opinion | None]) -> list[float] | None:
    """Mean chances of so many answers from those of every two of them."""
    if None in said:
        return None
    wins = [0.0 if count > 1 else 0.5] * count
    for (i, j), opinion in zip(combinations(range(count), 2), said):
        assert opinion is not None
        wins[i] += opinion.chance / (count - 1)
        wins[j] += (1 - opinion.chance) / (count - 1)
    return wins


class FunctionPairJudge(PairJudge, FunctionJudge):
    """A function of the user's that says whether `given` beats `wanted`: True, False, or a chance.

    As of `function-judge`; `wanted` is a list with the other answer.

    >>> judge = FunctionPairJudge(function="my_judges.py:better", timeout=2.0)
    >>> judge.orders, judge.timeout
    ('both', 2.0)
    """


class ModelPairJudge(PairJudge, ModelJudge):
    """A language model, asked in words which of two answers is better: the chance is that of two verdicts' tokens.

    As of `model-judge`; {given} is the answer that is shown first and {wanted} the other, `yes` the verdict for the
    first. One that is trained by next-token likelihood on verdicts in both orders is Pairwise-RL's (arXiv:2504.04950).

    >>> ModelPairJudge(question="{prompt}{given}|{wanted}?").asked(Case("2+5=", "7", ("8",)))
    '2+5=7|8?'
    """

    question: str = "Question: {prompt}\nAnswer A: {given}\nAnswer B: {wanted}\nWhich answer is better? Reply A or B.\n"
    yes: str = "A"
    no: str = "B"


class SimulatedJudge(PairJudge):
    """A teacher who knows what the task pays, and errs in the ways that people do (B-Pref, arXiv:2111.03026, 3).

        P(first is better) = (1 - mistakes) p + mistakes (1 - p),   p = sigmoid(beta (w(first) - w(second)) + bias)
        w = s_0 + sum_t gamma^(H - t) (s_t - s_{t-1})

    s_t is what the task says of the first t of H characters, so that with gamma = 1 w is what the task pays; less makes
    the teacher myopic: what was said last counts most.

    Args:
        beta: how sharply it tells apart, per unit of reward; None: it always names the better, 1/2 for equals.
        gamma: of w.
        skip: it says nothing of two answers of which neither is worth so much; None: it always answers.
        equal: two answers that differ by less are the same to it.
        mistakes: how often it says the opposite.
        bias: what it favours the answer by that is shown first, in log-odds.

    Raises: RewardError for a case whose problem is not known; ConfigError for a bias without beta.

    >>> from types import SimpleNamespace as Run
    >>> run, asked = Run(policy=None, task=Run(score=lambda p, text: float(text))), Problem("p/1", "how much?")
    >>> teacher = SimulatedJudge(beta=None, mistakes=0.25).bind()
    >>> [o.chance for o in teacher.compare([Duel(asked, "3", "1"), Duel(asked, "2", "2")], run)]
    [0.75, 0.5]
    >>> [round(x, 3) for x in teacher.rank([(asked, ["3", "1", "2"])], run)[0]]
    [0.75, 0.25, 0.5]
    """

    beta: Positive | None = 1.0
    gamma: PositiveProbability = 1.0
    skip: float | None = None
    equal: NonNegative = 0.0
    mistakes: Annotated[float, Interval(ge=0, lt=0.5)] = 0.0
    bias: float = 0.0

    def check(self) -> None:
        if self.beta is None and self.bias:
            raise ConfigError("SimulatedJudge.bias is in log-odds, and without beta there are none: set beta.")

    def scores(self, cases: Sequence[Case], context: Context) -> list[float | None]:
        return [self._says(case, context) for case in cases]

    def _says(self, case: Case, context: Context) -> float | None:
        one, other = (self.worth(case.problem, said, context) for said in (case.given, " ".join(case.wanted)))
        if self.skip is not None and max(one, other) < self.skip:
            return None
        gap = 0.0 if abs(one - other) < self.equal else one - other
        if self.beta is None:
            chance = (1 + (gap > 0) - (gap < 0)) / 2
        else:
            chance = 0.5 * (1 + math.tanh((self.beta * gap + self.bias) / 2))
        return (1 - self.mistakes) * chance + self.mistakes * (1 - chance)

    def worth(self, problem: Problem | None, text: str, context: Context) -> float:
        """What an answer is worth to it."""
        if problem is None:
            raise RewardError(
                f"SimulatedJudge asks the task what answers are worth, and nobody says which problem {text!r} answers: "
                "use it where two answers of one problem are compared."
            )
        if self.gamma == 1:
            return float(context.task.score(problem, text))
        paid = [float(context.task.score(problem, text[:t])) for t in range(len(text) + 1)]
        return paid[0] + sum(self.gamma ** (len(text) - t) * (b - a) for t, (a, b) in enumerate(pairwise(paid), 1))
