"""Principles: four lists of words, to be scored and ranked by what a principle says; the task of a judge.

    prompt      +s-r|kC0eMb9T        a principle, eight words that were asked about, and four answers under names
                A:kkC
                B:T9x
                ...
    completion  <think>53241355</think>{"scores":{"A":4,"B":2,"C":1,"D":5},"best-to-worst":["D","A","B","C"]}

A principle is one of six atoms (short, long, many distinct words, no word twice, rare words, the prompt's words first)
or two of them, each wanted (+) or not (-). An answer has a share in [0, 1] of each atom, 1 minus that of one that is
not wanted, and is worth their mean; 24 principles are trained on, and eight pairs of atoms are met in tests alone. The
same answers are ranked differently under other principles: that cannot be learned without reading them.

What is wanted is the consensus of several judges, the mean of scores from 1 to 5, each rounded by itself; where two
judges are further apart than 1 the list is dropped. In tests it is exact: 1 + 4 times what an answer is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from etude.core.episodes import Problem, Segment
from etude.core.errors import UnknownNameError
from etude.core.fields import Count, NonNegative, WholeNumber
from etude.core.streams import Stream
from etude.core.task import Environment, LanguageTask, SingleTurn, StepResult
from etude.rewards.verdicts import (
    CLOSING,
    OPENING,
    candidates_of,
    gain_of_order,
    listed,
    names_of,
    pair_accuracy,
    verdict_of,
)
from etude.tasks.language.digest import VOCABULARY
from etude.tasks.pool import Pool

SHOWN, LONGEST, LISTED = 8, 8, 4
"""Words that are asked about, words of an answer at most, and answers in a list."""
RARE = frozenset(Stream(0).split("principles", "rare").numpy.permutation(list(VOCABULARY))[:12].tolist())
"""Words that are written a quarter as often as others."""
AGAIN, ANY = 0.25, 0.4
"""Chances that a word is said again, and that else it is any of the 48 instead of one that is asked about."""
COMMON = np.array([0.25 if w in RARE else 1.0 for w in VOCABULARY]) / (48 - 12 * 0.75)


def _first(answer: str, shown: str) -> float:
    """Share of an answer's words before the first that was not asked about."""
    return next((i for i, w in enumerate(answer) if w not in shown), len(answer)) / len(answer)


ATOMS: dict[str, Callable[[str, str], float]] = {
    "s": lambda answer, shown: (LONGEST - len(answer)) / (LONGEST - 1),
    "l": lambda answer, shown: (len(answer) - 1) / (LONGEST - 1),
    "d": lambda answer, shown: len(set(answer)) / LONGEST,
    "n": lambda answer, shown: len(set(answer)) / len(answer),
    "r": lambda answer, shown: sum(w in RARE for w in answer) / len(answer),
    "p": _first,
}
"""Short, long, distinct, no word twice, rare, prompt's words first: what share of it an answer has, given the words."""


def divided() -> tuple[list[str], list[str]]:
    """Those that are trained on, the six atoms among them, and those of tests alone.

    >>> known, unseen = divided()
    >>> len(known), len(unseen), known[:2], set(known) & set(unseen)
    (24, 8, ['+s', '+l'], set())
    """
    two = [f"{a}{x}{b}{y}" for x, y in combinations(ATOMS, 2) for a in "+-" for b in "+-"]
    told = [p for p in two if not {"s", "l"} <= set(p) and "-s" not in p and "-l" not in p]  # -s is +l, and +l -s
    drawn = Stream(0).split("principles").numpy.permutation(told).tolist()
    return [f"+{x}" for x in ATOMS] + drawn[:18], drawn[18:26]


KNOWN, UNSEEN = divided()


def shares(principle: str, answer: str, shown: str) -> list[float]:
    """What share an answer has of each atom of a principle, or, of one that is not wanted, has not."""
    found = [(sign, ATOMS[atom](answer, shown)) for sign, atom in zip(principle[::2], principle[1::2])]
    return [share if sign == "+" else 1 - share for sign, share in found]


def worth(principle: str, answer: str, shown: str) -> float:
    """What an answer is worth by a principle, in [0, 1].

    >>> worth("+s", "a", "ab"), worth("+l", "a", "ab"), worth("+n-p", "aac0", "ab")
    (1.0, 0.0, 0.625)
    """
    return float(np.mean(shares(principle, answer, shown)))


class Principles(LanguageTask):
    """Answers to rank by a principle; the reward is the share of pairs in the right order, a success all of them.

    Problems have `asked`, `candidates` and `targets`, what each is worth from 1 to 5.

    Args:
        size: problems of the split 'train'; smaller pools are the first of larger ones.
        judges: who say what is wanted in training.
        noise: standard deviation of what each of them adds, before it rounds.
        seed: which problems are drawn; principles and rare words are the same for every seed.

    Splits: 'train', 'test' with principles that were never trained on, and 'known' with those that were.

    >>> task = Principles()
    >>> problem = task.problems("train")[0]
    >>> task.score(problem, task.demonstration(problem)) > 0.5, task.score(problem, "A")
    (True, 0.0)
    """

    id: ClassVar[str] = "principles"
    max_tokens: ClassVar[int] = 112
    shows_how: ClassVar[bool] = False  # worked verdicts round, and so call answers equal that are not

    size: Count = 4000
    judges: Count = 3
    noise: NonNegative = 0.25
    seed: WholeNumber = 0

    def splits(self) -> tuple[str, ...]:
        return ("train", "test", "known")

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of principles", split, self.splits())
        return Pool(lambda i: self._problem(split, i), self.size if split == "train" else 1_000)

    def environment(self) -> Environment:
        return Ranked(self)

    def score(self, problem: Problem, completion: str) -> float:
        return pair_accuracy(verdict_of(completion).numbers, candidates_of(problem).wanted)

    def demonstration(self, problem: Problem) -> str:
        """A verdict: as a thought the score of every answer by the first atom, and then by the second."""
        asked, answers, targets = candidates_of(problem)
        principle, _, shown = asked.partition("|")
        by_atom = zip(*(shares(principle, said, shown) for said in answers))
        thought = "".join(str(_rounded(1 + 4 * share)) for atom in by_atom for share in atom)
        names = names_of(len(answers))
        told = ",".join(f'"{name}":{_rounded(value)}' for name, value in zip(names, targets))
        order = sorted(range(len(names)), key=lambda i: -targets[i])
        ranked = ",".join(f'"{names[i]}"' for i in order)
        return f'{OPENING}{thought}{CLOSING}{{"scores":{{{told}}},"best-to-worst":[{ranked}]}}'

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("principles", split, index).numpy
        pool = UNSEEN if split == "test" else KNOWN
        principle = pool[random.integers(len(pool))]
        while True:
            shown = "".join(random.permutation(list(VOCABULARY))[:SHOWN])
            answers = written_lists(shown, random)
            exact = [1 + 4 * worth(principle, said, shown) for said in answers]
            targets = exact if split != "train" else self._consensus(exact, random)
            if targets is not None and len(set(targets)) > 1:
                break
        asked = f"{principle}|{shown}"
        info = {"asked": asked, "candidates": answers, "targets": targets}
        return Problem(f"principles/{split}/{index}", listed(asked, answers), level=principle, info=info)

    def _consensus(self, exact: Sequence[float], random: Generator) -> list[float] | None:
        """The mean of what judges say; None where two of them do not agree."""
        noise = self.noise * random.standard_normal((self.judges, len(exact)))
        said = np.clip(np.floor(np.array(exact) + noise + 0.5), 1, 5)
        if (np.ptp(said, axis=0) > 1).any():
            return None
        means: list[float] = said.mean(0).tolist()
        return means


class Ranked(SingleTurn):
    """The environment of a list: what it is left with, and Kendall's tau and NDCG beside."""

    def step(self, segment: Segment) -> StepResult:
        said, wanted = verdict_of(segment.text).numbers, candidates_of(self.problem).wanted
        right = pair_accuracy(said, wanted)
        info = {"tau": 2 * right - 1, "ndcg": gain_of_order(said, wanted)}
        return StepResult([], reward=right, terminated=True, info=info)


def written_lists(shown: str, random: Generator) -> list[str]:
    """Four different answers of one to eight words each."""
    found: list[str] = []
    while len(found) < LISTED:
        answer = ""
        for _ in range(random.integers(1, LONGEST + 1)):
            again, other = answer and random.random() < AGAIN, random.random() < ANY
            pick = random.random()
            if again:
                answer += answer[int(pick * len(answer))]
            elif other:
                answer += VOCABULARY[int(np.searchsorted(COMMON.cumsum(), pick * (1 - 1e-12)))]
            else:
                answer += shown[int(pick * SHOWN)]
        if answer not in found:
            found.append(answer)
    return found


def _rounded(value: float) -> int:
    return int(value + 0.5)


principles = Principles()
