"""Rewards written as arithmetic over four primitives of an episode."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from etude.core.episodes import Episode
from etude.core.errors import ConfigError
from etude.core.slots import Context, Reward
from etude.rewards.length import length_share

OFFSET = 1e-6
"""Added to every primitive, so that dividing by one is defined (arXiv:2512.13399, section 4)."""
LONGEST = 400
TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?|g[1-4]|[-+*/()])")
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide,
}  # fmt: skip
Primitive = Literal["outcome", "format", "steps", "soft", "length"]
Tree = Any
"""A number, the place of a primitive as ('g', i), or (operator, left, right)."""


class FormulaReward(Reward):
    """The value of an arithmetic expression over primitives g1 to g4 of an episode (arXiv:2512.13399).

    expression = term {(+|-) term};  term = factor {(*|/) factor};  factor = number | g1..g4 | ( expression )

    Each primitive is in [0, 1], plus 1e-6: `outcome` the task calls it a success; `format` it was not cut and the task
    finds an answer in it; `steps` one of `marks` is there; `soft` the right answer occurs anywhere; `length` the share
    of the token limit that its turns used, which has nothing to do with being right.

    Args:
        formula: over g1..g4.
        primitives: what g1, g2, g3, g4 are.
        marks: texts that show a worked chain.

    Raises: ConfigError for a formula that is not of the grammar; RewardError in a run where it divides by zero.

    >>> evaluate(parse("0.5*g1 + (1 - g2)/2"), np.array([[1.0], [0.0], [0.0], [0.0]])).tolist()
    [1.0]
    """

    formula: str = "g1"
    primitives: tuple[Primitive, ...] = ("outcome", "format", "steps", "soft")
    marks: tuple[str, ...] = (",", ">", ";", "\n")

    def check(self) -> None:
        parse(self.formula)
        if len(self.primitives) != 4:
            raise ConfigError(f"FormulaReward.primitives must name what g1, g2, g3 and g4 are, got {self.primitives}.")

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        found: list[float] = evaluate(parse(self.formula), self.columns(episodes, context)).tolist()
        return found

    def columns(self, episodes: Sequence[Episode], context: Context) -> NDArray[np.float64]:
        """[4, B] values of g1 to g4."""
        rows = [[self._measure(kind, e, context) for e in episodes] for kind in self.primitives]
        return np.array(rows, dtype=np.float64) + OFFSET

    def _measure(self, kind: Primitive, episode: Episode, context: Context) -> float:
        said = episode.completion
        match kind:
            case "outcome":
                return float(context.task.success(episode))
            case "format":
                return float(not episode.stop.cut and bool(context.task.answer(said).strip()))
            case "steps":
                return float(any(mark in said for mark in self.marks))
            case "soft":
                return float(episode.problem.answer is not None and str(episode.problem.answer) in said)
        return length_share(episode, context.max_tokens)


@cache
def parse(text: str) -> Tree:
    """The tree of an expression. Raises ConfigError in a sentence if it is none."""
    words, place = [], 0
    while place < len(text.rstrip()):
        found = TOKEN.match(text, place)
        if found is None:
            raise _refused(text, f"{text[place:].strip()[:8]!r} is neither a number, g1 to g4, + - * / nor a bracket")
        words.append(found[1])
        place = found.end()
    if not 0 < len(words) <= LONGEST:
        raise _refused(text, f"it has {len(words)} symbols, and 1 to {LONGEST} are allowed")
    tree, rest = _sum(words, 0, text)
    if rest < len(words):
        raise _refused(text, f"nothing may follow at {words[rest]!r}")
    return tree


def _sum(words: Sequence[str], place: int, text: str) -> tuple[Tree, int]:
    return _chain(words, place, text, "+-", lambda at: _chain(words, at, text, "*/", lambda x: _factor(words, x, text)))


def _chain(
    words: Sequence[str], place: int, text: str, signs: str, operand: Callable[[int], tuple[Tree, int]]
) -> tuple[Tree, int]:  # fmt: skip
    """Operands joined by `signs`, from the left."""
    tree, place = operand(place)
    while place < len(words) and words[place] in signs:
        sign = words[place]
        right, place = operand(place + 1)
        tree = (sign, tree, right)
    return tree, place


def _factor(words: Sequence[str], place: int, text: str) -> tuple[Tree, int]:
    word = words[place] if place < len(words) else ""
    if word == "(":
        tree, place = _sum(words, place + 1, text)
        if place >= len(words) or words[place] != ")":
            raise _refused(text, "a bracket is not closed")
        return tree, place + 1
    if word[:1] == "g":
        return ("g", int(word[1]) - 1), place + 1
    if word[:1].isdigit():
        return float(word), place + 1
    raise _refused(text, f"a number, g1 to g4 or a bracket must stand where {word!r} is" if word else "it breaks off")


def _refused(text: str, why: str) -> ConfigError:
    return ConfigError(
        f"A formula is arithmetic over g1, g2, g3 and g4, such as 0.8*g1 + 0.2*g2; {text!r} is none: {why}."
    )


def evaluate(tree: Tree, columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """[B] values of a parsed formula for primitives [4, B]; not finite where it divides by zero."""
    if isinstance(tree, float):
        return np.full(columns.shape[1], tree)
    if tree[0] == "g":
        column: NDArray[np.float64] = columns[tree[1]]
        return column
    with np.errstate(all="ignore"):
        found: NDArray[np.float64] = OPERATIONS[tree[0]](evaluate(tree[1], columns), evaluate(tree[2], columns))
    return found
