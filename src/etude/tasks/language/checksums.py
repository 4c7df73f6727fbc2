"""Checksums: strings in which every symbol must agree with the two before it, by a rule that is never shown.

    prompt      8:af>            eight symbols, after a and f
    completion  cbhdgaef         each allowed after the two before it
    completion  cbhx!dgaef       one that is not is taken back by a repair right behind it

After two symbols four of eight may follow. A symbol that may not follow, without a repair right behind it, makes the
string invalid for good, however it goes on: mistakes of imitation add up with length. Worked answers hardly ever show a
repair, and 'rejected' answers slip once and never repair it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Count, Interval, Probability, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.tasks.pool import Pool, reserved

SYMBOLS, REPAIR, CHOICES = "abcdefgh", "!", 4
"""What strings are of; what takes a symbol back; and how many symbols may follow two others."""
Length = Annotated[int, Interval(ge=1, le=96)]


def _rule() -> dict[str, str]:
    random = Stream(0).split("checksums", "rule").numpy
    pairs = (a + b for a in SYMBOLS for b in SYMBOLS)
    return {pair: "".join(sorted(SYMBOLS[i] for i in random.permutation(len(SYMBOLS))[:CHOICES])) for pair in pairs}


ALLOWED = _rule()
"""What may follow two symbols; the same for every seed."""


class Walk(NamedTuple):
    """How far a string has come.

    Args:
        kept: its symbols, the prompt's two first, without those that were taken back.
        open: whether its last symbol may not stand there, so that only a repair may follow.
        left: the place in the string at which it left the valid beginnings for good; None if it has not.
    """

    kept: str
    open: bool = False
    left: int | None = None


def walk(first: str, text: str, length: int) -> Walk:
    """The string `text` of `length` symbols after two others, symbol by symbol.

    >>> good = ALLOWED["af"][0]
    >>> bad = next(s for s in SYMBOLS if s not in ALLOWED["af"])
    >>> [walk("af", text, 2)[1:] for text in (good, bad, bad + "!" + good, bad + good, "!")]
    [(False, None), (True, None), (False, None), (False, 1), (False, 0)]
    """
    kept, open_error = first, False
    for place, symbol in enumerate(text):
        if open_error != (symbol == REPAIR) or (symbol not in SYMBOLS and symbol != REPAIR):
            return Walk(kept, False, place)
        if symbol == REPAIR:
            open_error = False
        elif symbol not in ALLOWED[kept[-2:]]:
            open_error = True
        elif len(kept) == len(first) + length:
            return Walk(kept, False, place)
        else:
            kept += symbol
    return Walk(kept, open_error)


def asked(problem: Problem) -> tuple[str, int]:
    """The two symbols that a problem begins with, and how many are wanted.

    >>> asked(Problem("1", "16:af>"))
    ('af', 16)
    """
    length, _, first = str(problem.prompt).partition(":")
    return first[:2], int(length)


class Checksums(LanguageTask):
    """Strings whose every symbol agrees with the two before it; the reward is 1 for a whole valid one, else 0.

    Args:
        lengths: symbols that are wanted; each problem draws one of these.
        size: problems of the split 'train'; smaller pools are the first of larger ones.
        repairs: chance of a symbol of a worked answer to be a slip with its repair.
        seed: which problems are drawn. The rule and the train/test divide are the same for every seed.

    Splits: 'train' and 'test', which share no prompt. `info` has 'demonstration', 'chosen' and 'rejected'.

    >>> good = walk("af", "", 2).kept + ALLOWED["af"][0]
    >>> Checksums().score(Problem("1", "1:af>"), good[2:]), Checksums().score(Problem("1", "2:af>"), good[2:])
    (1.0, 0.0)
    """

    id: ClassVar[str] = "checksums"

    lengths: tuple[Length, ...] = (8,)
    size: Count = 1000
    repairs: Probability = 0.002
    seed: WholeNumber = 0

    def check(self) -> None:
        if not self.lengths:
            raise ConfigError("Checksums.lengths must have at least one entry, got none.")

    @property
    def max_tokens(self) -> int:  # type: ignore[override]  # a constant elsewhere, here it follows from the fields
        """Room for two repairs and the end."""
        return max(self.lengths) + 5

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of checksums", split, self.splits())
        return Pool(lambda i: self._problem(split, i), self.size if split == "train" else 1_000)

    def score(self, problem: Problem, completion: str) -> float:
        first, length = asked(problem)
        found = walk(first, completion.strip(), length)
        return float(found.left is None and not found.open and len(found.kept) == len(first) + length)

    def left(self, problem: Problem, completion: str) -> int | None:
        """The place at which a completion left the valid beginnings for good; None if it has not."""
        first, length = asked(problem)
        return walk(first, completion.strip(), length).left

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("checksums", split, index).numpy
        length = self.lengths[int(random.integers(len(self.lengths)))]
        while True:
            first = "".join(SYMBOLS[i] for i in random.integers(len(SYMBOLS), size=2))
            if reserved(first) == (split == "test"):
                break
        shown, chosen = (valid(first, length, random, self.repairs) for _ in range(2))
        known = {"demonstration": shown, "chosen": chosen, "rejected": _slipped(first, length, random)}
        return Problem(f"checksums/{split}/{index}", f"{length}:{first}>", info=known)


def valid(first: str, length: int, random: Generator, repairs: float = 0.0) -> str:
    """A valid string, all of them as likely, with slips that are repaired now and then."""
    kept, text = first, ""
    for _ in range(length):
        allowed = ALLOWED[kept[-2:]]
        if random.random() < repairs:
            text += _wrong(allowed, random) + REPAIR
        symbol = allowed[int(random.integers(CHOICES))]
        kept, text = kept + symbol, text + symbol
    return text


def _slipped(first: str, length: int, random: Generator) -> str:
    """One that slips at one place and goes on as if nothing had happened."""
    place = int(random.integers(length))
    text = valid(first, place, random)
    text += _wrong(ALLOWED[(first + text)[-2:]], random)
    return text + valid((first + text)[-2:], length - place - 1, random)


def _wrong(allowed: str, random: Generator) -> str:
    others = np.array([s for s in SYMBOLS if s not in allowed])
    return str(others[int(random.integers(len(others)))])


checksums = Checksums()
