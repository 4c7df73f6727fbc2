"""A maze in text: from anywhere to anywhere, step by step.

The maze is the same in every game and is never shown: the player has to know it, or to remember where walls were.

     goal 4 3
     at 2 3                         right
     at 3 3                         right
     there

Fully observed the player is told its column and row, both from 0; with `seen=walls` only the directions that are
walled. A step into a wall leaves the player where it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.fields import Count, Interval, NonNegative, Probability
from etude.core.streams import Stream
from etude.policies.agent_words import MOVES
from etude.tasks.agents.games import Game, Heard, Posed, TurnTask, one_of, spaced

Cell = tuple[int, int]
Ways = Mapping[Cell, tuple[str, ...]]
"""The directions that are open from each cell."""


class TextMaze(TurnTask):
    """A maze in words: 1 at the goal, and `-cost` for every other turn.

    Args:
        size: cells along each side.
        loops: share of the walls that are taken out of a maze without a round way.
        seen: 'cell', column and row; 'walls', the directions that are walled.
        cost: what a turn takes that does not reach the goal.
        max_turns, slips, seed: as of `TurnTask`; the seed also draws the maze.

    Splits: 'train' and 'test', which share no pair of start and goal. Levels say how many steps the shortest way has.

    >>> from etude.core.episodes import Segment
    >>> game = TextMaze(size=3, max_turns=4).environment()
    >>> shown = game.reset(Problem("1", "", info={"start": (0, 0), "goal": (1, 0)}), 0)
    >>> [game.step(Segment("assistant", said)).segments[0].text for said in (" up", " right", " down")]
    [' at 0 0\\n', ' at 0 0\\n', ' at 0 1\\n']
    """

    id: ClassVar[str] = "text-maze"
    max_tokens: ClassVar[int] = 2

    size: Annotated[int, Interval(ge=3, le=10)] = 5
    loops: Probability = 0.1
    seen: Literal["cell", "walls"] = "cell"
    cost: NonNegative = 0.0
    max_turns: Count = 16  # type: ignore[misc]

    @property
    def ways(self) -> Ways:
        """Where one can go from each cell."""
        return _maze(self.size, self.loops, self.seed)

    def posed(self, random: Generator) -> Posed | None:
        start, goal = ((int(random.integers(self.size)), int(random.integers(self.size))) for _ in range(2))
        steps = distances(self.ways, goal)[start]
        if not 1 <= steps <= self.max_turns:
            return None
        told = spaced("at", *start) if self.seen == "cell" else walls(self.ways[start])
        info = {"start": start, "goal": goal}
        return Posed(f"{spaced('goal', *goal)}\n{told}\n", None, f"steps{steps}", info)

    def divided(self, posed: Posed) -> str:
        return f"{posed.info['start']}{posed.info['goal']}"

    def environment(self) -> Wanderer:
        return Wanderer(self)


@cache
def _maze(size: int, loops: float, seed: int) -> Ways:
    """A tree over all cells, drawn by a random walk that turns back at dead ends, and then some more openings."""
    random = Stream(seed).split("text-maze", "walls").numpy
    ways: dict[Cell, set[str]] = {(x, y): set() for x in range(size) for y in range(size)}
    back = {"up": "down", "down": "up", "left": "right", "right": "left"}

    def opened(cell: Cell, move: str) -> None:
        ways[cell].add(move)
        ways[stepped(cell, move)].add(back[move])

    path, met = [(0, 0)], {(0, 0)}
    while path:
        fresh = [m for m in MOVES if (there := stepped(path[-1], m)) in ways and there not in met]
        if not fresh:
            path.pop()
            continue
        move = str(one_of(random, fresh))
        opened(path[-1], move)
        path.append(stepped(path[-1], move))
        met.add(path[-1])
    shut = [(c, m) for c in ways for m in ("down", "right") if stepped(c, m) in ways and m not in ways[c]]
    for k in random.permutation(len(shut))[: round(loops * len(shut))]:
        opened(*shut[int(k)])
    return {cell: tuple(m for m in MOVES if m in open_) for cell, open_ in ways.items()}


def stepped(cell: Cell, move: str) -> Cell:
    """The cell beside."""
    return cell[0] + MOVES[move][0], cell[1] + MOVES[move][1]


def distances(ways: Ways, goal: Cell) -> dict[Cell, int]:
    """Steps to the goal from everywhere, by breadth-first search.

    >>> distances({(0, 0): ("right",), (1, 0): ("left",)}, (1, 0))
    {(1, 0): 0, (0, 0): 1}
    """
    steps, queue = {goal: 0}, deque([goal])
    while queue:
        here = queue.popleft()
        for there in (stepped(here, move) for move in ways[here]):  # ways lead back, too
            if there not in steps:
                steps[there] = steps[here] + 1
                queue.append(there)
    return steps


def walls(open_: Sequence[str]) -> str:
    """The directions that are not open, as they are told.

    >>> walls(["up", "left"])
    ' wall down right'
    """
    return spaced("wall", *(m for m in MOVES if m not in open_))


class Wanderer(Game):
    """One game."""

    def __init__(self, task: TextMaze) -> None:
        super().__init__(task)
        self.task = task

    def begun(self, problem: Problem) -> dict[str, Any]:
        return {"at": list(problem.info["start"]), "goal": list(problem.info["goal"])}

    @property
    def at(self) -> Cell:
        """Where the player is."""
        x, y = self.state["at"]
        return x, y

    def said(self, words: Sequence[str]) -> Heard:
        move = words[0] if len(words) == 1 else ""
        if move in self.task.ways[self.at]:
            self.state["at"] = [*stepped(self.at, move)]
        if self.state["at"] == self.state["goal"]:
            return Heard(spaced("there"), 1.0, True, True)
        told = spaced("at", *self.at) if self.task.seen == "cell" else walls(self.task.ways[self.at])
        return Heard(told, 0.0 - self.task.cost, valid=move in MOVES)

    def best(self, random: Generator) -> str:
        x, y = self.state["goal"]
        away, ways = distances(self.task.ways, (x, y)), self.task.ways[self.at]
        return spaced(one_of(random, [m for m in ways if away[stepped(self.at, m)] < away[self.at]]))

    def anything(self, random: Generator) -> str:
        return spaced(one_of(random, [*MOVES]))

    def tools(self) -> list[dict[str, Any]]:
        """What can be said."""
        return [{"name": "step", "example": " up", "arguments": {"direction": list(MOVES)}}]


text_maze = TextMaze()
