"""Lookups: two skills that can be checked, one to be trained and one to be watched.

    prompt      =dkqt>       look: every letter's digit, in a table that is never shown
    completion  4821
    prompt      !4kz>        follow: four letters, k among them, z the last
    completion  kabz

What is looked up has one right answer, what is followed has many; both are right or wrong, and of nothing in between.
Whoever wrote the worked answers slips now and then: one digit is another, or one of the three constraints is broken.
So imitation comes to where the writer is, and who can check goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Count, Probability, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.tasks.pool import Pool, reserved

Skill = Literal["look", "follow"]
LETTERS = "abcdeghijklmopqrtuvxz"
"""One token each in `tiny`, whichever stand beside each other."""
TABLE = dict(zip(LETTERS, Stream(0).split("lookups", "table").numpy.integers(10, size=len(LETTERS)).tolist()))
"""The digit of every letter."""
LOOKED, FOLLOWED = (2, 4), (2, 4)
"""Letters that are looked up, and letters that are written; in the split 'unseen' the length between them."""


class Lookups(LanguageTask):
    """Letters to look up, or constraints to follow; reward 1 if the answer is right, else 0.

    Args:
        skills: what is asked; each problem draws one of these, and `Problem.level` says which.
        size: problems of the split 'train'; smaller pools are the first of larger ones.
        slips: share of the worked answers with a fault.
        leaked: share of the training problems that are test problems, as where data was gathered without a look.
        seed: which problems are drawn. The table and the train/test divide are the same for every seed.

    Splits: 'train' and 'test', which share no prompt but for what leaked, and 'unseen', of other lengths.

    >>> problem = Problem("1", "!4kz>")
    >>> [Lookups().score(problem, text) for text in ("abkz", "kabz", "abcz", "abkc", "akz")]
    [1.0, 1.0, 0.0, 0.0, 0.0]
    """

    id: ClassVar[str] = "lookups"
    max_tokens: ClassVar[int] = max(FOLLOWED) + 2
    shows_how: ClassVar[bool] = False

    skills: tuple[Skill, ...] = ("look", "follow")
    size: Count = 4000
    slips: Probability = 0.4
    leaked: Probability = 0.0
    seed: WholeNumber = 0

    def check(self) -> None:
        if not self.skills:
            raise ConfigError("Lookups.skills must have at least one entry, got none.")

    def splits(self) -> tuple[str, ...]:
        return ("train", "test", "unseen")

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of lookups", split, self.splits())
        return Pool(lambda i: self._problem(split, i), self.size if split == "train" else 1_000)

    def score(self, problem: Problem, completion: str) -> float:
        return float(right(str(problem.prompt), completion))

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("lookups", split, index).numpy
        if split == "train" and random.random() < self.leaked:
            known = self._problem("test", int(random.integers(1_000)))
            return Problem(f"lookups/{split}/{index}", known.prompt, known.answer, known.level, known.info)
        skill = self.skills[int(random.integers(len(self.skills)))]
        while True:
            prompt = _asked(skill, split == "unseen", random)
            if reserved(prompt) == (split != "train"):
                break
        answer = _answered(prompt, random)
        info: dict[str, Any] = {"demonstration": _slipped(prompt, answer, self.slips, random)}
        return Problem(f"lookups/{split}/{index}", prompt, answer, skill, info)


def right(prompt: str, answer: str) -> bool:
    """Whether an answer is what was looked up, or keeps all three constraints.

    >>> right("=ab>", f"{TABLE['a']}{TABLE['b']}"), right("!3kz>", "kkz"), right("!3kz>", "k1z")
    (True, True, False)
    """
    asked = prompt[1:-1]
    if prompt.startswith("="):
        return answer == looked_up(asked)
    size, inside, last = int(asked[0]), asked[1], asked[2]
    return len(answer) == size and inside in answer and answer.endswith(last) and set(answer) <= set(LETTERS)


def looked_up(letters: str) -> str:
    """The digit of every letter."""
    return "".join(str(TABLE[letter]) for letter in letters)


def _asked(skill: Skill, unseen: bool, random: Generator) -> str:
    """A prompt of a skill; two different letters in what is followed."""
    sizes = LOOKED if skill == "look" else FOLLOWED
    size = sum(sizes) // 2 if unseen else sizes[int(random.integers(2))]
    if skill == "look":
        return f"={_letters(size, random)}>"
    inside, last = (LETTERS[i] for i in random.permutation(len(LETTERS))[:2])
    return f"!{size}{inside}{last}>"


def _answered(prompt: str, random: Generator) -> str:
    """A right answer; of those that follow, any that begins with the wanted letter."""
    asked = prompt[1:-1]
    if prompt.startswith("="):
        return looked_up(asked)
    return asked[1] + _letters(int(asked[0]) - 2, random) + asked[2]


def _slipped(prompt: str, answer: str, slips: float, random: Generator) -> str:
    """The answer as somebody wrote it who is wrong so often."""
    if random.random() >= slips:
        return answer
    said = answer
    while right(prompt, said):
        place = int(random.integers(len(answer)))
        if prompt.startswith("="):
            said = answer[:place] + str(random.integers(10)) + answer[place + 1 :]
        else:
            said = _broken(answer, prompt, int(random.integers(3)), random)
    return said


def _broken(answer: str, prompt: str, constraint: int, random: Generator) -> str:
    """The answer with one of its constraints broken: a letter more, the wanted one away, another at the end."""
    other = _letters(1, random)
    if constraint == 0:
        return other + answer
    return answer.replace(prompt[2], other) if constraint == 1 else answer[:-1] + other


def _letters(count: int, random: Generator) -> str:
    return "".join(LETTERS[i] for i in random.integers(len(LETTERS), size=count))


lookups = Lookups()
