"""Digest: sixteen words, of which an answer names those that matter, at a price for each word that it has.

    prompt      kC0eMb9T2xJhUaR7>       sixteen different words of 48; a word is one character
    completion  xT9                     one to eight words

Each of the 48 words has an importance of 0, 1, 2 or 3 (twelve words of each) that no text says. An answer is worth the
importances of the prompt's words that it names, 1/2 less for each word that is said again or that is not in the prompt,
and 1/4 less for each word: it pays to name the eight that matter most. A writer who copies words at random, whatever
they are worth, wrote the worked answers (so imitation does not solve the task), the pairs and the scored answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.random import Generator

from etude.core.episodes import Episode, Problem
from etude.core.errors import UnknownNameError
from etude.core.fields import Count, Probability, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.policies.byte_tokenizer import NODES
from etude.tasks.pool import Pool, reserved

VOCABULARY = NODES[:48]
"""The words, one token each in `tiny`, whose neighbours are not merged."""
SHOWN, LONGEST, ANSWERS = 16, 8, 4
"""Words of a prompt, words of an answer at most, scored answers to a prompt."""
IMPORTANCE = {w: int(k) % 4 for w, k in zip(VOCABULARY, Stream(0).split("digest", "importance").numpy.permutation(48))}
WRONG, EACH = 0.5, 0.25
"""What a word costs that is said again or is not in the prompt, and what every word costs."""

SLIPS, MISSING = 0.3, 0.1
"""Of annotated answers: chance of each word to be any, and share of annotations that leave out what is good."""


def gold(prompt: str, answer: str) -> float:
    """What an answer is worth, exactly: a multiple of 1/4. What is no word counts as one that is not in the prompt.

    >>> (one, two), (useless,) = [w for w in IMPORTANCE if IMPORTANCE[w] == 3][:2], [w for w in "0" if w in IMPORTANCE]
    >>> gold(one + two, one), gold(one + two, one + two), gold(one + two, one + one), gold(one, two)
    (2.75, 5.5, 2.0, -0.75)
    """
    named = set(answer) & set(prompt) & IMPORTANCE.keys()
    return sum(IMPORTANCE[w] for w in named) - WRONG * (len(answer) - len(named)) - EACH * len(answer)


def best(prompt: str) -> float:
    """What the best answer is worth: the eight words that matter most, without those that do not."""
    return sum(sorted((IMPORTANCE[w] - EACH for w in set(prompt) & IMPORTANCE.keys()), reverse=True)[:LONGEST])


class Digest(LanguageTask):
    """Words that matter out of sixteen; the reward is `gold`, and a success the best answer that there is.

    Problems come with `demonstration`, `chosen` and `rejected`, `responses` and their gold `scores`, all by the writer.
    Which of two answers is chosen is drawn with the chance sigmoid of the difference of what they are worth.

    Args:
        size: problems of the split 'train', each with a pair; smaller pools are the first of larger ones.
        slips: chance of each word of an answer that any of the 48 is written for it, said before or not in the prompt.
        wrong: share of the pairs whose labels are the wrong way round besides.
        asks: 'answers', or 'critiques': problems are answers to prompts then, and worked answers their critiques.
        corrupted: share of the scored answers in which half of the words are others that are not in the prompt.
        seed: which problems are drawn. Importances and the train/test divide are the same for every seed.

    Splits: 'train' and 'test', which share no prompt.

    >>> problem = Digest().problems("train")[0]
    >>> len(problem.info["responses"]), Digest().score(problem, problem.info["demonstration"]) <= problem.info["best"]
    (4, True)
    """

    id: ClassVar[str] = "digest"
    max_tokens: ClassVar[int] = LONGEST + 1
    step_joint: ClassVar[str] = ""
    shows_how: ClassVar[bool] = False

    size: Count = 4000
    slips: Probability = 0.0
    wrong: Probability = 0.0
    corrupted: Probability = 0.0
    asks: Literal["answers", "critiques"] = "answers"
    seed: WholeNumber = 0

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of digest", split, self.splits())
        return Pool(lambda i: self._problem(split, i), self.size if split == "train" else 1_000)

    def score(self, problem: Problem, completion: str) -> float:
        return gold(words_of(problem), completion)

    def solution_steps(self, completion: str) -> list[str]:
        """The words of an answer."""
        return list(completion)

    def given_solutions(self, problem: Problem) -> list[tuple[list[str], int]]:
        """The words that matter most, in any order, and the same with one of them replaced by one not in the prompt."""
        random = Stream(self.seed).split("digest", "spoilt", problem.id).numpy
        shown = words_of(problem)
        ranked = sorted(shown, key=lambda w: IMPORTANCE[w], reverse=True)[:LONGEST]
        good = [w for w in random.permutation(ranked).tolist() if IMPORTANCE[w]]
        place, spoilt = int(random.integers(len(good))), list(good)
        spoilt[place] = str(random.choice([w for w in VOCABULARY if w not in shown]))
        return [(good, -1), (spoilt, place)]

    def critique(self, problem: Problem, completion: str) -> str:
        """What an annotator writes of an answer."""
        return critique(words_of(problem), completion)

    def success(self, episode: Episode) -> bool:
        return self.score(episode.problem, episode.completion) >= float(episode.problem.info["best"])

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("digest", split, index).numpy
        while True:
            shown = "".join(random.permutation(list(VOCABULARY))[:SHOWN])
            if reserved("".join(sorted(shown))) == (split == "test"):
                break
        problem = Problem(f"digest/{split}/{index}", f"{shown}>", info={"best": best(shown)})
        if self.asks == "critiques":
            (answer,) = copied(shown, 1, SLIPS, random)
            told = replace(problem, prompt=f"{shown}>{answer}~")
            return replace(
                told, info={**told.info, "demonstration": critique(shown, answer, random.random() < MISSING)}
            )
        return replace(problem, info={**problem.info, **self._written(shown, random)})

    def _written(self, shown: str, random: Generator) -> dict[str, Any]:
        """What the writer says to a prompt: a worked answer, a pair, and scored answers."""
        said = copied(shown, 3 + ANSWERS, self.slips, random)
        demonstration, one, two = said[:3]
        first = random.random() < 1 / (1 + np.exp(gold(shown, two) - gold(shown, one)))
        first ^= random.random() < self.wrong
        spoilt = random.random(ANSWERS) < self.corrupted
        responses = [shuffled(shown, text, random) if bad else text for text, bad in zip(said[3:], spoilt)]
        chosen, rejected = (one, two) if first else (two, one)
        return {"demonstration": demonstration, "chosen": chosen, "rejected": rejected, "responses": responses,
                "scores": [gold(shown, text) for text in responses]}  # fmt: skip


def critique(shown: str, answer: str, careless: bool = False) -> str:
    """At most two good words and two poor ones, in the order in which they are said, and a score of each word.

    Good are words of importance 3 that the prompt has, poor those that were said before or that it has not. `k*` is a
    key fact, `k!` said again and `k?` not in the prompt; `careless` leaves out what is good.

    >>> key, useless = (next(w for w in IMPORTANCE if IMPORTANCE[w] == k) for k in (3, 0))
    >>> critique(key, key + useless + key).replace(key, "k").replace(useless, "u")
    'k*u?k!|k+ u- k-'
    """
    left, marks, scores = {"+": 0 if careless else 2, "-": 2}, [], []
    for place, word in enumerate(answer):
        again, there = word in answer[:place], word in shown
        mark = "!" if again else "?" if not there else "*" if IMPORTANCE.get(word) == 3 else ""
        score = "=" if not mark else "+" if mark == "*" else "-"
        if left.get(score, 0):
            left[score] -= 1
            marks.append(word + mark)
        else:
            score = "="
        scores.append(word + score)
    return f"{''.join(marks)}|{' '.join(scores)}"


def words_of(problem: Problem) -> str:
    """The words of a prompt."""
    return str(problem.prompt).partition(">")[0]


def copied(shown: str, count: int, slips: float, random: Generator) -> list[str]:
    """So many answers: one to eight words of the prompt, all lengths as likely, at random; by a slip any word instead.

    >>> [set(text) <= set("abcdefgh") for text in copied("abcdefgh", 2, 0.0, Stream(0).numpy)]
    [True, True]
    """
    lengths = random.integers(1, LONGEST + 1, count)
    order = random.permuted(np.tile(np.arange(len(shown)), (count, 1)), axis=1)[:, :LONGEST]
    slipped = random.random((count, LONGEST)) < slips
    other = random.integers(len(VOCABULARY), size=(count, LONGEST))
    words = np.where(slipped, np.array(list(VOCABULARY))[other], np.array(list(shown))[order])
    return ["".join(row[:length]) for row, length in zip(words, lengths)]


def shuffled(shown: str, text: str, random: Generator) -> str:
    """The answer with half of its words, rounded up, replaced by words that are not in the prompt."""
    others = [w for w in VOCABULARY if w not in shown]
    kept, places = list(text), random.permutation(len(text))[: (len(text) + 1) // 2]
    for place, word in zip(places, random.permutation(others)):
        kept[place] = str(word)
    return "".join(kept)


digest = Digest()
