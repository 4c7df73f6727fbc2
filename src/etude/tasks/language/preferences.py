"""Preferences: the problems of `compose`, each with a right and a wrong worked answer.

    prompt      f6(f1(x)) cab>
    chosen      f1:abc>f6:cab
    rejected    f1:abc>f2:bcd        one step is wrong: another function in its place
                f1:abc               or it is missing

Every step that is written down is done correctly, so only its choice is to blame. Since the right string is known,
what was learned from the pairs can be measured as in `compose`. For methods that learn from scores there are both and
two more wrong ones in `responses`, each with the share of its last string's letters that stand where they should in
`scores`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.streams import Stream
from etude.tasks.language.compose import FUNCTIONS, Compose, worked


class Preferences(Compose):
    """`compose` with `info['chosen']`, `info['rejected']`, `info['responses']` and `info['scores']`; splits, reward and
    arguments are those of `compose`.

    >>> pair = Preferences().problems("train")[0]
    >>> [Preferences().score(pair, pair.info[which]) for which in ("chosen", "rejected")]
    [1.0, 0.0]
    """

    id: ClassVar[str] = "preferences"

    def _problem(self, split: str, index: int) -> Problem:
        problem = super()._problem(split, index)
        random = Stream(self.seed).split("preferences", split, index).numpy
        right = problem.info["demonstration"]
        wrong, *others = (one_wrong_step(problem.info["functions"], problem.info["input"], random) for _ in range(3))
        responses = [right, wrong, *others]
        scores = [closeness(last(said), last(right)) for said in responses]
        info = {**problem.info, "chosen": right, "rejected": wrong, "responses": responses, "scores": scores}
        return replace(problem, id=f"preferences/{split}/{index}", info=info)


def last(answer: str) -> str:
    """The string that a worked answer ends with."""
    return answer.rpartition(":")[2]


def closeness(said: str, right: str) -> float:
    """Share of letters that stand where they should.

    >>> closeness("abd", "abc"), closeness("abc", "abc")
    (0.6666666666666666, 1.0)
    """
    return sum(a == b for a, b in zip(said, right)) / max(len(said), len(right))


def one_wrong_step(functions: Sequence[str], text: str, random: Generator) -> str:
    """A worked answer in which one function is left out (half of the time) or replaced, and which ends differently.

    There always is one: of the last string before the last step, its next and its previous letters, at most one is
    right.
    """
    right = last(worked(functions, text))
    wrong = [answer for chain in _slips(functions) if last(answer := worked(chain, text)) not in ("", right)]
    return wrong[random.integers(len(wrong))]


def _slips(functions: Sequence[str]) -> list[list[str]]:
    """Chains with one slip; a missing step weighs as much as all the replacements together."""
    chains = []
    for k, name in enumerate(functions):
        others = [n for n in FUNCTIONS if n != name]
        chains += [[*functions[:k], other, *functions[k + 1 :]] for other in others]
        chains += [[*functions[:k], *functions[k + 1 :]]] * len(others)
    return chains


preferences = Preferences()
