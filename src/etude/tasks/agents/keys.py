"""Keys: walk over a small grid, fetch the key, open the door.

The first line says where the key (k), the door (d) and the walls (w) are, column then row; then the player says one
letter per turn (U, D, L or R) and is told where it stands, and whether it has the key:

    k02 d31 w11 w20         D
    00                      01
                            D
                            02k

A step into a wall, over the edge, or through the door without the key leaves the player where it is. Anything else
that is said is a step that is lost. Reward 1 for reaching the door with the key, else 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple

from etude.core.episodes import Problem, Segment
from etude.core.errors import EnvironmentFault, UnknownNameError
from etude.core.fields import Count, Interval, WholeNumber
from etude.core.streams import Stream
from etude.core.task import Environment, LanguageTask, StepResult
from etude.tasks.pool import Pool, reserved

MOVES = {"U": (0, -1), "D": (0, 1), "L": (-1, 0), "R": (1, 0)}
Cell = tuple[int, int]


class Stand(NamedTuple):
    """Where the player is, and whether it has the key."""

    cell: Cell
    key: bool = False


class Keys(LanguageTask):
    """A grid world in text; 1 for success, within `max_turns` steps.

    Args:
        size: cells along each side.
        walls: cells that cannot be entered.
        max_turns: steps after which the game is truncated.
        seed: which grids are drawn. The train/test divide is the same for every seed.

    Splits: 'train' and 'test', which share no grid. Levels say how many steps the shortest way has.

    >>> info = {"start": (0, 0), "key": (0, 2), "door": (3, 1), "walls": ((1, 1), (2, 0))}
    >>> game = Keys().environment()
    >>> shown = game.reset(Problem("keys/1", "k02 d31 w11 w20\\n00\\n", info=info), seed=0)
    >>> [game.step(Segment("assistant", letter)).reward for letter in "DDRRRU"]
    [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    """

    id: ClassVar[str] = "keys"
    max_tokens: ClassVar[int] = 2

    size: Annotated[int, Interval(ge=3, le=6)] = 4
    walls: Annotated[int, Interval(ge=0, le=4)] = 2
    max_turns: Count = 12  # type: ignore[misc]  # of each task, where others have one for all
    seed: WholeNumber = 0

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of keys", split, self.splits())
        return Pool(lambda i: self._problem(split, i), 20_000 if split == "train" else 1_000)

    def environment(self) -> Environment:
        return Grid(self)

    def answer(self, completion: str) -> str:
        """The way that was walked."""
        return completion

    def script(self, problem: Problem, stream: Stream) -> list[Segment]:
        """A shortest way, drawn from all of them: what supervised methods learn from."""
        return walk(self, problem, stream)

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("keys", split, index).numpy
        cells = [(x, y) for y in range(self.size) for x in range(self.size)]
        while True:
            order = random.permutation(len(cells))[: 3 + self.walls]
            start, key, door, *walls = (cells[k] for k in order)
            info = {"start": start, "key": key, "door": door, "walls": tuple(sorted(walls))}
            marks = [("k", key), ("d", door), *(("w", w) for w in info["walls"])]
            prompt = " ".join(f"{m}{x}{y}" for m, (x, y) in marks) + f"\n{start[0]}{start[1]}\n"
            steps = distances(self.size, *(info[k] for k in ("key", "door", "walls"))).get(Stand(start))
            if steps is not None and steps <= self.max_turns and reserved(prompt) == (split == "test"):
                break
        return Problem(f"keys/{split}/{index}", prompt, None, f"steps{steps}", info)


def moved(size: int, info: Mapping[str, Any], stand: Stand, letter: str) -> Stand:
    """Where a step leads."""
    dx, dy = MOVES[letter]
    cell = (stand.cell[0] + dx, stand.cell[1] + dy)
    inside = 0 <= cell[0] < size and 0 <= cell[1] < size and cell not in info["walls"]
    if not inside or (cell == info["door"] and not stand.key):
        return stand
    return Stand(cell, stand.key or cell == info["key"])


@cache
def distances(size: int, key: Cell, door: Cell, walls: tuple[Cell, ...]) -> dict[Stand, int]:
    """Steps to the open door from everywhere that it can be reached from, by breadth-first search backwards."""
    info = {"key": key, "door": door, "walls": walls}
    cells = [(x, y) for x in range(size) for y in range(size) if (x, y) not in walls]
    before: dict[Stand, list[Stand]] = {}
    for stand in (Stand(c, k) for c in cells for k in (False, True)):
        for letter in MOVES:
            before.setdefault(moved(size, info, stand, letter), []).append(stand)
    steps, queue = {Stand(door, True): 0}, deque([Stand(door, True)])
    while queue:
        here = queue.popleft()
        for stand in before.get(here, ()):
            if stand not in steps:
                steps[stand] = steps[here] + 1
                queue.append(stand)
    return steps


class Grid:
    """One game. `info` of a step: `success` (through the door), `valid` (the letter was understood)."""

    def __init__(self, task: Keys) -> None:
        self.task, self.stand, self.turn, self.over = task, Stand((0, 0)), 0, True
        self.info: Mapping[str, Any] = {}

    def reset(self, problem: Problem, seed: int) -> list[Segment]:
        self.info, self.stand, self.turn, self.over = problem.info, Stand(problem.info["start"]), 0, False
        return [Segment("user", str(problem.prompt))]

    def step(self, segment: Segment) -> StepResult:
        """Take a step. Raises EnvironmentFault when the game is over."""
        if self.over:
            raise EnvironmentFault("This game of keys is over; call reset() to start another.")
        self.turn += 1
        letter = segment.text.strip()
        if letter in MOVES:
            self.stand = moved(self.task.size, self.info, self.stand, letter)
        opened = self.stand == Stand(self.info["door"], True)
        late = not opened and self.turn >= self.task.max_turns
        self.over = opened or late
        info = {"success": opened, "valid": letter in MOVES}
        return StepResult([Segment("user", self.seen())], float(opened), opened, late, info)

    def seen(self) -> str:
        """What the player is told."""
        (x, y), key = self.stand
        return f"{x}{y}{'k' if key else ''}\n"

    def best(self) -> str:
        """The letters that lead on along a shortest way."""
        away = distances(self.task.size, *(self.info[k] for k in ("key", "door", "walls")))
        nearer = away[self.stand] - 1
        return "".join(a for a in MOVES if away.get(moved(self.task.size, self.info, self.stand, a)) == nearer)

    def snapshot(self) -> dict[str, Any]:
        """Where the game stands, as JSON values."""
        return {"cell": list(self.stand.cell), "key": self.stand.key, "turn": self.turn, "over": self.over}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a snapshot of the same problem."""
        self.stand, self.turn, self.over = Stand(tuple(state["cell"]), state["key"]), state["turn"], state["over"]

    def tools(self) -> list[dict[str, Any]]:
        """What can be said."""
        return [{"name": "step", "example": "U", "arguments": {"letter": list(MOVES)}}]


def walk(task: Keys, problem: Problem, stream: Stream, slips: float = 0.0) -> list[Segment]:
    """A whole game by a player that takes a shortest way, or any letter in a share `slips` of its steps."""
    game, random = Grid(task), stream.numpy
    segments, over = game.reset(problem, 0), False
    while not over:
        letters = "".join(MOVES) if random.random() < slips else game.best()
        letter = letters[random.integers(len(letters))]
        result = game.step(Segment("assistant", letter))
        over = result.terminated or result.truncated
        shown = [] if result.terminated else result.segments  # as in an episode: a truncated one could have gone on
        segments += [Segment("assistant", letter, reward=result.reward), *shown]
    return segments


keys = Keys()
