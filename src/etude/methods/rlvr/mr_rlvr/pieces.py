"""Exercises that are made of worked answers: blanks to be filled, and steps to be put in order."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from etude.core.errors import ConfigError, DataError
from etude.core.fields import Count, Probability
from etude.core.slots import Context, Reward
from etude.core.streams import Stream
from etude.curricula.masking import BETWEEN, has_blanks, masked
from etude.curricula.rules import asked
from etude.curricula.sources import put
from etude.stages.chain import Derive
from etude.tasks.language.answers import same

if TYPE_CHECKING:
    from etude.core.episodes import Episode, Problem
    from etude.core.task import LanguageTask

FILL, ORDER = "fill", "order"
"""Kinds of exercises: what `level` says."""
LETTERS = string.ascii_uppercase
"""What steps are called; longer solutions are not put in order."""

Row = dict[str, Any]


def fill_score(given: Sequence[str], gold: Sequence[str]) -> float:
    """Share of the blanks whose fill is right, as a value or as a text; missing and extra fills earn nothing.

    >>> fill_score(["17", "1/2", "9"], ["17", "0.5"]), fill_score(["17"], ["17", "0.5"])
    (1.0, 0.5)
    """
    return sum(_equal(a, b) for a, b in zip(given, gold)) / len(gold)


def order_score(given: str, gold: str, steps: Sequence[str]) -> float:
    """Share of the places at which the right step stands; 0 for what is no order of the letters.

    Steps with the same text may stand for each other.

    Args:
        given, gold: letters, as in 'BAC'; letter k is `steps[k]`, of those that were shown.

    >>> order_score("BCA", "BAC", ["17", "8", "19"]), order_score("BBC", "BAC", ["17", "8", "19"])
    (0.3333333333333333, 0.0)
    """
    if sorted(given) != sorted(gold):
        return 0.0
    text = dict(zip(LETTERS, steps))
    return sum(text[a] == text[b] for a, b in zip(given, gold)) / len(gold)


def _equal(given: str, gold: str) -> bool:
    return given.strip().casefold() == gold.strip().casefold() or same(given.strip(), gold.strip())


class ProcessReward(Reward):
    """What an exercise about a worked answer is worth: the share of blanks filled, or of steps in their place.

    Of rows that `Exercises` made; the answer is found in the completion as the task finds it. What cannot be read earns
    0.

    Raises: DataError for a problem that is no exercise.

    >>> from types import SimpleNamespace as Run
    >>> from etude.core.episodes import Episode, Problem, Segment
    >>> asked = Problem("1", "3+5+9=8,[1]|", "17;", level="fill", info={"gold": ["17"]})
    >>> said = Episode(asked, [Segment("assistant", "17")])
    >>> ProcessReward().score([said], Run(task=Run(answer=str.strip)))
    [1.0]
    """

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [self._of(e.problem, context.task.answer(e.completion)) for e in episodes]

    def _of(self, problem: Problem, answer: str) -> float:
        gold = problem.info.get("gold")
        if problem.level == FILL and gold:
            return fill_score(answer.split(BETWEEN), gold)
        if problem.level == ORDER and gold:
            return order_score("".join(re.findall(r"[A-Z]", answer)), "".join(gold), problem.info["steps"])
        raise DataError(
            f"Problem {problem.id!r} is no exercise about a worked answer: ProcessReward is for the data that "
            "Exercises(called=NAME) makes, task={NAME}."
        )


class Exercises(Derive):
    """Exercises about a task's worked answers, for `ProcessReward`: one of each problem, a blank text or an order.

    Worked answers without a span have no blanks, those of one step, or whose steps are all alike, no order: the other
    kind takes their place, and those of which nothing can be made are left out.

    Args:
        blanks: most blanks of a text; how many is drawn from 1 on, each as likely.
        masks: share of exercises with blanks; the others are orders.
        spans: a regular expression for what can be left blank: what carries the reasoning.
        separator: between two steps.
        fill, order: prompts. `{problem}` is the task's own, `{masked}` the text with blanks [1], [2], ..., `{steps}`
            the steps in the order shown, as in 'A:17 B:8'.

    Raises: ConfigError for a prompt without what is asked, a separator or an expression that cannot be; DataError for a
    problem without a worked answer.

    >>> from etude.core.episodes import Problem
    >>> from etude.core.task import LanguageTask
    >>> worked = Problem("1", "3+5+9=", "17", info={"demonstration": "8,17"})
    >>> made, = Exercises(masks=1.0, blanks=1).rows([worked], LanguageTask(), seed=0)
    >>> made["prompt"], made["answer"]
    ('3+5+9=[1],17|', '8')
    """

    blanks: Count = 4
    masks: Probability = 0.5
    spans: str = r"[0-9]+(?:\.[0-9]+)?"
    separator: str = ","
    fill: str = "{problem}{masked}|"
    order: str = "{problem}{steps}|"

    def check(self) -> None:
        super().check()
        for name, inside in (("fill", "masked"), ("order", "steps")):
            if f"{{{inside}}}" not in getattr(self, name):
                raise ConfigError(f"Exercises.{name} must have {{{inside}}} in it, got {getattr(self, name)!r}.")
        if not self.separator:
            raise ConfigError("Exercises.separator must be the text between two steps, got none.")
        try:
            empty = re.compile(self.spans).fullmatch("")
        except re.error as error:
            raise ConfigError(f"Exercises.spans must be a regular expression, got {self.spans!r}: {error}.") from None
        if empty:
            raise ConfigError(f"Exercises.spans must not match nothing, and {self.spans!r} does.")

    def rows(self, problems: Sequence[Problem], task: LanguageTask, seed: int) -> list[Row]:
        made = []
        for problem in problems:
            text = task.demonstration(problem)
            if text is None:
                raise DataError(
                    f"Problem {problem.id!r} of {task.id} has no worked answer to make exercises of: take a task with "
                    "demonstrations, or data with a 'completion' column."
                )
            draw = random.Random(Stream(seed).split("exercise", problem.id).key)
            kinds = [self._fill, self._order] if draw.random() < self.masks else [self._order, self._fill]
            rows = (row for kind in kinds if (row := kind(asked(problem), text, draw)) is not None)
            made += [row | {"id": problem.id} for row in (next(rows, None),) if row is not None]
        return made

    def _fill(self, asked: str, text: str, draw: random.Random) -> Row | None:
        """Blanks; None where there is nothing to be left blank, or the text could be taken for one with blanks."""
        found = list(re.finditer(self.spans, text))
        if not found or has_blanks(text):
            return None
        count = min(draw.randint(1, self.blanks), len(found))
        chosen = [found[i] for i in sorted(draw.sample(range(len(found)), count))]
        gold = [span[0] for span in chosen]
        prompt = put(self.fill, problem=asked, masked=masked(text, chosen))
        return {"prompt": prompt, "answer": BETWEEN.join(gold), "level": FILL, "gold": gold, "steps": []}

    def _order(self, asked: str, text: str, draw: random.Random) -> Row | None:
        """Steps in another order than theirs; None where there is no other."""
        steps = [s.strip() for s in text.split(self.separator) if s.strip()]
        if not 2 <= len(steps) <= len(LETTERS) or len(set(steps)) == 1:
            return None
        shown = list(range(len(steps)))
        while [steps[i] for i in shown] == steps:
            draw.shuffle(shown)
        gold = [LETTERS[shown.index(i)] for i in range(len(steps))]
        said = " ".join(f"{letter}:{steps[i]}" for letter, i in zip(LETTERS, shown))
        prompt = put(self.order, problem=asked, steps=said)
        return {
            "prompt": prompt, "answer": "".join(gold), "level": ORDER, "gold": gold, "steps": [steps[i] for i in shown]
        }  # fmt: skip
