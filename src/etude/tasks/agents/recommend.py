"""Recommend: find out what somebody likes, and then, once, what to do.

A persona has six preferences, a to f, each of which is there or not. Which of the eight activities is theirs depends on
three of them alone; who does not know that can ask about all, but not in five turns.

    plan?
    ask b                           yes
    ask e                           no                      e makes no difference
    ask a                           no
    ask c                           yes
    go 3                            the third of 8, for a = 0, b = 1, c = 1: 1 if it is theirs, and the end

Anything else that is said is answered with `what?`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_lowercase
from typing import Annotated, Any, ClassVar

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.fields import Count, Interval, NonNegative
from etude.tasks.agents.games import Game, Heard, Posed, TurnTask, one_of


class Recommend(TurnTask):
    """Ask, then recommend: 1 for the right activity, 0 for another, and either ends it; `-cost` for every question.

    Args:
        preferences: of a persona, each there or not.
        matter: how many of them, the first ones, decide which of 2^matter activities is right.
        cost: what a question takes.
        max_turns, slips, seed: as of `TurnTask`.

    Splits: 'train' and 'test', which share no persona.

    >>> from etude.core.episodes import Segment
    >>> game = recommend.environment()
    >>> shown = game.reset(Problem("1", "plan?\\n", "011000"), 0)
    >>> [(r.segments[0].text, r.reward) for r in (game.step(Segment("assistant", s)) for s in ("ask b", "go 3"))]
    [('yes\\n', 0.0), ('thanks\\n', 1.0)]
    """

    id: ClassVar[str] = "recommend"
    max_tokens: ClassVar[int] = 8

    preferences: Annotated[int, Interval(ge=1, le=12)] = 6
    matter: Annotated[int, Interval(ge=1, le=3)] = 3
    cost: NonNegative = 0.0
    max_turns: Count = 5  # type: ignore[misc]

    @property
    def activities(self) -> int:
        """How many there are."""
        return int(2 ** min(self.matter, self.preferences))

    def right(self, persona: str) -> int:
        """The activity of a persona.

        >>> recommend.right("110000"), recommend.right("110111")
        (6, 6)
        """
        return int(persona[: self.matter], 2)

    def posed(self, random: Generator) -> Posed:
        persona = "".join(str(int(b)) for b in random.integers(2, size=self.preferences))
        return Posed("plan?\n", persona, f"matter{self.matter}", {})

    def divided(self, posed: Posed) -> str:
        return str(posed.answer)

    def environment(self) -> Persona:
        return Persona(self)

    def answer(self, completion: str) -> str:
        """What was recommended."""
        return str((re.findall(r"go (\d)", completion) or [""])[-1])


class Persona(Game):
    """One dialogue. `state`: the `persona`, and what was `asked`."""

    def __init__(self, task: Recommend) -> None:
        super().__init__(task)
        self.task = task

    def begun(self, problem: Problem) -> dict[str, Any]:
        return {"persona": str(problem.answer), "asked": []}

    def said(self, words: Sequence[str]) -> Heard:
        persona: str = self.state["persona"]
        if len(words) == 2 and words[0] == "go" and words[1] in map(str, range(self.task.activities)):
            right = words[1] == str(self.task.right(persona))
            return Heard("thanks" if right else "no", float(right), True, right, more={"asked": self._useful()})
        known = ascii_lowercase[: self.task.preferences]
        if len(words) == 2 and words[0] == "ask" and len(words[1]) == 1 and words[1] in known:
            self.state["asked"].append(words[1])
            return Heard("yes" if persona[known.index(words[1])] == "1" else "no", 0.0 - self.task.cost)
        return Heard("what?", 0.0 - self.task.cost, valid=False)

    def _useful(self) -> float:
        """How many different preferences were asked about that make a difference."""
        return float(len({*self.state["asked"]} & {*ascii_lowercase[: self.task.matter]}))

    def best(self, random: Generator) -> str:
        left = [k for k in ascii_lowercase[: self.task.matter] if k not in self.state["asked"]]
        return f"ask {one_of(random, left)}" if left else f"go {self.task.right(self.state['persona'])}"

    def anything(self, random: Generator) -> str:
        if random.random() < 0.5:
            return f"ask {one_of(random, ascii_lowercase[: self.task.preferences])}"
        return f"go {int(random.integers(self.task.activities))}"

    def tools(self) -> list[dict[str, Any]]:
        """What can be said."""
        return [
            {
                "name": "ask",
                "example": "ask a",
                "arguments": {"preference": [*ascii_lowercase[: self.task.preferences]]},
            },
            {"name": "go", "example": "go 0", "arguments": {"activity": [*map(str, range(self.task.activities))]}},
        ]


recommend = Recommend()
