"""Facts in chunks: questions of `facts` about a list that is read piece by piece, with a note of what was read.

    ?c3+a7                    the question, then a piece of the list; the player writes what it wants to remember
    b0=a7;c3=19;...           c3=19
    d1=0;a7=4;...             c3=19;a7=4
    >                         the list is over; the player answers: 19,4,23

How much of it is seen at once is the view's (`experience.view=memory-and-chunk`): the question, the last note and the
next piece, so that a list may be longer than the context.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from etude.core.episodes import Problem, Segment
from etude.core.errors import EnvironmentFault
from etude.core.fields import Count
from etude.core.streams import Stream
from etude.core.task import Environment, StepResult
from etude.tasks.language.facts import Facts
from etude.tasks.pool import Pool

NOTHING = "-"
"""A note in which nothing is."""
ASKED = ">"
"""What follows the last piece: the answer is wanted now."""


class FactsInChunks(Facts):
    """Questions about a list of facts that comes in pieces; reward 1 for the right answer at the end, else 0.

    A fact that points at another one stands before it, so that reading once is enough.

    Args:
        chunk: facts in a piece.

    Splits: as of `facts`.

    >>> task = FactsInChunks(chunk=2)
    >>> game = task.environment()
    >>> shown = game.reset(Problem("1", "?c3\\n", "4", info={"facts": ["b0=7", "d1=2", "c3=4"]}), seed=0)
    >>> [segment.text for segment in shown], game.step(Segment("assistant", "-")).segments[0].text
    (['?c3\\n', 'b0=7;d1=2\\n'], 'c3=4\\n')
    >>> game.step(Segment("assistant", "c3=4")).segments[0].text, game.step(Segment("assistant", "4")).reward
    ('>', 1.0)
    """

    id: ClassVar[str] = "facts-in-chunks"
    max_tokens: ClassVar[int] = 20

    chunk: Count = 16

    @property
    def max_turns(self) -> int:  # type: ignore[override]  # a constant elsewhere, here it follows from the lists
        """A note for each piece of the longest list, and the answer."""
        return -(-max(self.facts) // self.chunk) + 1

    def problems(self, split: str) -> Sequence[Problem]:
        whole = super().problems(split)
        return Pool(lambda i: _read_once(whole[i]), len(whole))

    def environment(self) -> Environment:
        return Reading(self)

    def script(self, problem: Problem, stream: Stream) -> list[Segment]:
        """One of the views in which something is said: the question, the note so far and what comes next."""
        pieces = _pieces(problem, self.chunk)
        place = int(stream.numpy.integers(len(pieces) + 1))
        shown = [Segment("user", str(problem.prompt))]
        if place:
            shown.append(Segment("user", note(problem, pieces[:place]) + "\n"))
        if place == len(pieces):
            answer = Segment("assistant", problem.info["demonstration"], reward=1.0)
            return [*shown, Segment("user", ASKED), answer]
        said = note(problem, pieces[: place + 1])
        return [*shown, Segment("user", ";".join(pieces[place]) + "\n"), Segment("assistant", said)]


class Reading:
    """One list being read. `info` of the last step: `success`."""

    def __init__(self, task: FactsInChunks) -> None:
        self.task, self.over = task, True
        self.left: list[list[str]] = []

    def reset(self, problem: Problem, seed: int) -> list[Segment]:
        self.problem, self.over = problem, False
        first, *self.left = _pieces(problem, self.task.chunk)
        return [Segment("user", str(problem.prompt)), Segment("user", ";".join(first) + "\n")]

    def step(self, segment: Segment) -> StepResult:
        """Show the next piece after a note, ask after the last, judge an answer. Raises EnvironmentFault when over."""
        if self.over:
            raise EnvironmentFault("This list of facts-in-chunks was answered for; call reset() to read another.")
        if self.left == [[ASKED]]:
            self.over = True
            score = self.task.score(self.problem, segment.text)
            return StepResult([], score, terminated=True, info={"success": score >= 1})
        if not self.left:
            self.left = [[ASKED]]
            return StepResult([Segment("user", ASKED)])
        return StepResult([Segment("user", ";".join(self.left.pop(0)) + "\n")])

    def snapshot(self) -> dict[str, Any]:
        """Where the reading stands, as JSON values but for the problem."""
        return {"problem": self.problem, "left": [list(piece) for piece in self.left], "over": self.over}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a snapshot."""
        self.problem, self.over = state["problem"], state["over"]
        self.left = [list(piece) for piece in state["left"]]


def note(problem: Problem, pieces: Sequence[Sequence[str]]) -> str:
    """What has to be remembered of the pieces that were read.

    >>> asked = Problem("1", "?b0\\n", "4", info={"kind": "hops", "facts": ["b0=a7", "a7=4"]})
    >>> [note(asked, read) for read in ([["c3=1"]], [["b0=a7"]], [["b0=a7", "a7=4"]])]
    ['-', 'b0=a7', 'b0=a7;a7=4']
    """
    read = dict(fact.split("=") for piece in pieces for fact in piece)
    wanted = _wanted(problem)
    if problem.info["kind"] == "hops" and wanted[0] in read:
        wanted = [*wanted, read[wanted[0]]]
    return ";".join(f"{key}={read[key]}" for key in wanted if key in read) or NOTHING


def _wanted(problem: Problem) -> list[str]:
    """The keys that the question names."""
    return str(problem.prompt).strip("?\n").partition(":")[0].split("+")


def _pieces(problem: Problem, chunk: int) -> list[list[str]]:
    facts = problem.info["facts"]
    return [facts[i : i + chunk] for i in range(0, len(facts), chunk)]


def _read_once(problem: Problem) -> Problem:
    """The problem with its question first and its list apart, in which what points stands before what it points at."""
    listed, _, question = str(problem.prompt).rstrip(">").partition("?")
    facts = listed.split(";")
    keys = [fact.partition("=")[0] for fact in facts]
    if problem.info["kind"] == "hops":
        pointer = keys.index(question)
        target = keys.index(facts[pointer].partition("=")[2])
        if target < pointer:
            facts[pointer], facts[target] = facts[target], facts[pointer]
    return dataclasses.replace(
        problem, id=problem.id.replace("facts/", "facts-in-chunks/"), prompt=f"?{question}\n",
        info={**problem.info, "facts": facts},
    )  # fmt: skip


facts_in_chunks = FactsInChunks()
