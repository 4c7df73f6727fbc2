"""Sorting: eight digits in order, with or without a thought before the answer.

    prompt      52871632>
    completion  (2578,1236)12235678     the thought stands in brackets: both halves of the prompt, sorted
                12235678                with thinks=false

An answer is worth 1 - inversions / 28, of 28 pairs of places; a digit of the prompt that it lacks, and one that it has
besides, cost 7 pairs each, and nothing is worth less than 0. Only what stands behind the thought is the answer: what
was thought has no say. The writer of the worked answers merges the two halves and now and then takes the wrong head, so
that copying does not solve the task; with and without a thought the answers are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any, ClassVar

from numpy.random import Generator

from etude.core.episodes import Episode, Problem
from etude.core.errors import UnknownNameError
from etude.core.fields import Count, Probability, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.tasks.pool import Pool, reserved

DIGITS, PAIRS, LOST = 8, 28, 7
"""Digits of a prompt, pairs of their places, and how many pairs a digit costs that is missing or too many."""
SWAPS, SPOILT = 4, 0.2
"""Of the answers in pairs: places that change at most, and share of those in which one digit is any."""
ENDS = ")"
"""What ends a thought."""


def worth(shown: str, answer: str) -> float:
    """What an answer is worth, exactly.

    >>> worth("31", "13"), worth("31", "31"), worth("31", "1"), worth("31", "0123456789")
    (1.0, 0.9642857142857143, 0.75, 0.0)
    """
    said, wanted = Counter(answer), Counter(shown)
    inversions = sum(a > b for a, b in combinations(answer, 2))
    wrong = (said - wanted).total() + (wanted - said).total()
    return max(0.0, 1 - (inversions + LOST * wrong) / PAIRS)


class Sorting(LanguageTask):
    """Eight digits in order; the reward is `worth` of what stands behind the thought, and a success all in order.

    Problems come with a `demonstration`, and with a pair of answers without thoughts, `chosen` and `rejected`: the one
    with fewer faults is chosen, but for `wrong` of the pairs.

    Args:
        thinks: whether worked answers have a thought before them.
        size: problems of the split 'train', each with a pair; smaller pools are the first of larger ones.
        slips: chance of each step of the worked answers' merge that the wrong head is taken.
        wrong: share of the pairs whose labels are the wrong way round.
        seed: which problems are drawn. The train/test divide is the same for every seed.

    Splits: 'train' and 'test', which share no eight digits in any order.

    >>> problem = Sorting().problems("train")[0]
    >>> Sorting().score(problem, "(whatever)" + "".join(sorted(digits_of(problem))))
    1.0
    """

    id: ClassVar[str] = "sorting"
    max_tokens: ClassVar[int] = 2 + (DIGITS + 1) + DIGITS + 1
    thought: ClassVar[tuple[str, str]] = ("(", ENDS)
    shows_how: ClassVar[bool] = False

    thinks: bool = True
    size: Count = 4000
    slips: Probability = 0.2
    wrong: Probability = 0.1
    seed: WholeNumber = 0

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of sorting", split, self.splits())
        return Pool(lambda i: self._problem(split, i), self.size if split == "train" else 1_000)

    def score(self, problem: Problem, completion: str) -> float:
        return worth(digits_of(problem), self.answer(completion))

    def success(self, episode: Episode) -> bool:
        return self.score(episode.problem, episode.completion) == 1

    def answer(self, completion: str) -> str:
        """What stands behind the last end of a thought; all of it where there is none."""
        return completion.rpartition(ENDS)[2].strip()

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("sorting", split, index).numpy
        while True:
            shown = "".join(map(str, random.integers(10, size=DIGITS)))
            if reserved("".join(sorted(shown))) == (split == "test"):
                break
        return Problem(f"sorting/{split}/{index}", f"{shown}>", info=self._written(shown, random))

    def _written(self, shown: str, random: Generator) -> dict[str, Any]:
        """A worked answer, and two of which one is better."""
        half, other = ("".join(sorted(some)) for some in (shown[: DIGITS // 2], shown[DIGITS // 2 :]))
        answer = merged(half, other, self.slips, random)
        one = two = spoilt(shown, random)
        while worth(shown, one) == worth(shown, two):
            one, two = spoilt(shown, random), spoilt(shown, random)
        first = (worth(shown, one) > worth(shown, two)) ^ (random.random() < self.wrong)
        chosen, rejected = (one, two) if first else (two, one)
        thought = f"({half},{other}{ENDS}" if self.thinks else ""
        return {"demonstration": thought + answer, "chosen": chosen, "rejected": rejected}


def merged(one: str, two: str, slips: float, random: Generator) -> str:
    """Two sorted texts merged; with chance `slips` at each step the larger head is taken.

    >>> merged("2578", "1236", 0.0, Stream(0).numpy)
    '12235678'
    """
    heads, said = [list(one), list(two)], ""
    while heads[0] and heads[1]:
        smaller = int(heads[1][0] < heads[0][0])
        said += heads[smaller ^ (random.random() < slips)].pop(0)
    return said + "".join(heads[0] + heads[1])


def spoilt(shown: str, random: Generator) -> str:
    """The right answer with up to four pairs of places exchanged, and now and then with any digit in one place."""
    said = sorted(shown)
    for _ in range(int(random.integers(SWAPS + 1))):
        i, j = random.choice(DIGITS, 2, replace=False).tolist()
        said[i], said[j] = said[j], said[i]
    if random.random() < SPOILT:
        said[int(random.integers(DIGITS))] = str(random.integers(10))
    return "".join(said)


def digits_of(problem: Problem) -> str:
    """The digits of a prompt."""
    return str(problem.prompt).partition(">")[0]


sorting = Sorting()
