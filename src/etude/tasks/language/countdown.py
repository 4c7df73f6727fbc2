"""Countdown: reach a target from a few numbers with + - * and /, each number used exactly once.

    prompt      3,5,8->16:
    completion  (5-3)*8

Any expression that is right counts. It is read by the small parser below, with exact fractions: text that is too
long, is not arithmetic, or divides by zero is simply wrong.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, ClassVar, Literal

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Interval, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.tasks.pool import Pool, reserved

LONGEST = 64
"""Characters that an expression may have: bounds the parser's work and the size of its numbers."""
PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}
ATOM = 3


class Countdown(LanguageTask):
    """Arithmetic towards a target; reward 1 for a right expression, else 0.

    Args:
        numbers: how many numbers are given; each problem draws one of these.
        largest: numbers are drawn from 1 to this; targets are whole numbers from 1 to 99.
        use: whether 'all' numbers have to be used, or 'some' are enough; none may be used twice.
        seed: which problems are drawn. The train/test divide is the same for every seed.

    Splits: 'train' and 'test', which share no set of numbers with the same target.

    >>> problem = Problem("countdown/1", "2,3,4->14:", 14, info={"numbers": (2, 3, 4)})
    >>> Countdown().score(problem, "2+3*4"), Countdown().score(problem, "2+4+4*2")
    (1.0, 0.0)
    """

    id: ClassVar[str] = "countdown"
    max_tokens: ClassVar[int] = 32

    numbers: tuple[Annotated[int, Interval(ge=2, le=6)], ...] = (3,)
    largest: Annotated[int, Interval(ge=9, le=99)] = 9
    use: Literal["all", "some"] = "all"
    seed: WholeNumber = 0

    def check(self) -> None:
        if not self.numbers:
            raise ConfigError("Countdown.numbers must say at least one count of numbers, got none.")

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of countdown", split, self.splits())
        return Pool(lambda i: self._problem(split, i), 100_000 if split == "train" else 1_000)

    def score(self, problem: Problem, completion: str) -> float:
        try:
            value, used = evaluate(completion)
        except (ValueError, ZeroDivisionError):
            return 0.0
        given, taken = Counter(problem.info["numbers"]), Counter(used)
        fair = taken == given if self.use == "all" else taken <= given
        return float(fair and value == problem.answer)

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("countdown", split, index).numpy
        count = int(random.choice(self.numbers))
        while True:
            numbers = random.integers(1, self.largest + 1, size=count).tolist()
            expression = _expression(random, numbers)
            target = evaluate(expression)[0]
            if 1 <= target <= 99 and reserved(f"{sorted(numbers)}->{target}") == (split == "test"):
                break
        info = {"numbers": tuple(numbers), "demonstration": expression}
        prompt = f"{','.join(map(str, numbers))}->{target}:"
        return Problem(f"countdown/{split}/{index}", prompt, int(target), f"numbers{count}", info)


def _expression(random: Generator, numbers: Sequence[int]) -> str:
    """A random expression of all the numbers in which every division comes out even, with no needless brackets."""
    items = [(Fraction(n), str(n), ATOM) for n in numbers]
    while len(items) > 1:
        (left, left_text, left_rank), (right, right_text, right_rank) = (
            items.pop(int(random.integers(len(items)))) for _ in range(2)
        )
        even = right != 0 and (left / right).denominator == 1
        operator = str(random.choice([*"+-*/"] if even else [*"+-*"]))
        rank = PRECEDENCE[operator]
        if left_rank < rank:
            left_text = f"({left_text})"
        if right_rank < rank or (right_rank == rank and operator in "-/"):
            right_text = f"({right_text})"
        items.append((_apply(operator, left, right), left_text + operator + right_text, rank))
    return items[0][1]


def _apply(operator: str, left: Fraction, right: Fraction) -> Fraction:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case _:
            return left / right


def evaluate(text: str) -> tuple[Fraction, list[int]]:
    """The exact value of an expression of whole numbers, + - * / and brackets, and the numbers it uses.

    >>> evaluate("(5-3)*8")
    (Fraction(16, 1), [5, 3, 8])

    Raises:
        ValueError: it is longer than LONGEST characters, or is not such an expression.
        ZeroDivisionError: it divides by zero.
    """
    if len(text) > LONGEST:
        raise ValueError(f"An expression may have {LONGEST} characters, got {len(text)}.")
    tokens = re.findall(r"[0-9]+|\S", text)
    tokens.reverse()  # the next token is the last, so that it can be popped
    used: list[int] = []
    value = _sum(tokens, used)
    if tokens:
        raise ValueError(f"Expected an operator, got {tokens[-1]!r}.")
    return value, used


def _sum(tokens: list[str], used: list[int]) -> Fraction:
    value = _product(tokens, used)
    while tokens and tokens[-1] in ("+", "-"):
        value = _apply(tokens.pop(), value, _product(tokens, used))
    return value


def _product(tokens: list[str], used: list[int]) -> Fraction:
    value = _atom(tokens, used)
    while tokens and tokens[-1] in ("*", "/"):
        value = _apply(tokens.pop(), value, _atom(tokens, used))
    return value


def _atom(tokens: list[str], used: list[int]) -> Fraction:
    token = tokens.pop() if tokens else "the end"
    if token.isascii() and token.isdecimal():
        used.append(int(token))
        return Fraction(token)
    if token != "(":
        raise ValueError(f"Expected a number or a bracket, got {token!r}.")
    value = _sum(tokens, used)
    if not tokens or tokens.pop() != ")":
        raise ValueError("A bracket is not closed.")
    return value


countdown = Countdown()
