"""Mazes: walk from S to G.

    prompt      #######      '#' is a wall, '.' free; a cell is every other square
                #S..#G#
                ###.#.#
                #.....#
                #######>
    completion  RDRU         one letter for each step from cell to cell: up, down, left, right

A maze is carved by Prim's algorithm from a random cell, so that every cell is reached in exactly one way; `loops` opens
further walls, and then several walks are right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Annotated, ClassVar

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.errors import UnknownNameError
from etude.core.fields import Interval, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.tasks.pool import Pool, reserved

Side = Annotated[int, Interval(ge=2, le=9)]
Cell = tuple[int, int]
MOVES: dict[str, Cell] = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}


class Mazes(LanguageTask):
    """Reward 1 for a walk through open walls that ends on the goal, whatever its length, else 0.

    Args:
        rows, columns: cells; the picture has 2 n + 1 squares a side, so 3 x 3 cells are 7 x 7 squares.
        loops: walls that are opened beyond the tree.
        seed: which mazes are drawn. The train/test divide is the same for every seed.

    Splits: 'train' and 'test', which share no maze. Levels are lengths of the shortest walk.

    >>> problem = Problem("mazes/1", "#####\\n#S.G#\\n#####>")
    >>> Mazes().score(problem, "R"), Mazes().score(problem, "L")
    (1.0, 0.0)
    """

    id: ClassVar[str] = "mazes"
    max_tokens: ClassVar[int] = 24

    rows: Side = 3
    columns: Side = 3
    loops: WholeNumber = 0
    seed: WholeNumber = 0

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of mazes", split, self.splits())
        return Pool(lambda i: self._problem(split, i), 100_000 if split == "train" else 1_000)

    def score(self, problem: Problem, completion: str) -> float:
        return float(walk(str(problem.prompt), completion.strip()))

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("mazes", split, index).numpy
        while True:
            doors = self._carve(random)
            start, goal = (self._cell(int(k)) for k in random.choice(self.rows * self.columns, 2, replace=False))
            prompt = picture(self.rows, self.columns, doors, start, goal) + ">"
            if reserved(prompt) == (split == "test"):
                break
        path = shortest(doors, start, goal)
        return Problem(f"mazes/{split}/{index}", prompt, path, f"steps{len(path)}", {"demonstration": path})

    def _cell(self, number: int) -> Cell:
        return divmod(number, self.columns)

    def _carve(self, random: Generator) -> set[frozenset[Cell]]:
        """Pairs of neighbouring cells with no wall between them."""
        cells = [self._cell(k) for k in range(self.rows * self.columns)]
        walls = [frozenset((c, n)) for c in cells for n in ((c[0] + 1, c[1]), (c[0], c[1] + 1)) if n in cells]
        seen, doors = {cells[random.integers(len(cells))]}, set[frozenset[Cell]]()
        while len(seen) < len(cells):
            edge = [w for w in walls if len(w & seen) == 1]
            chosen = edge[random.integers(len(edge))]
            doors.add(chosen)
            seen |= chosen
        closed = [w for w in walls if w not in doors]
        extra = random.permutation(len(closed))[: self.loops]
        return doors | {closed[k] for k in extra}


def picture(rows: int, columns: int, doors: set[frozenset[Cell]], start: Cell, goal: Cell) -> str:
    """The maze as lines of text."""
    squares = [["#"] * (2 * columns + 1) for _ in range(2 * rows + 1)]
    for cell in ((r, c) for r in range(rows) for c in range(columns)):
        squares[2 * cell[0] + 1][2 * cell[1] + 1] = "S" if cell == start else "G" if cell == goal else "."
    for door in doors:
        (a, b), (c, d) = door
        squares[a + c + 1][b + d + 1] = "."
    return "\n".join(map("".join, squares))


def shortest(doors: set[frozenset[Cell]], start: Cell, goal: Cell) -> str:
    """The letters of a shortest walk."""
    walks, waiting = {start: ""}, deque([start])
    while goal not in walks:
        here = waiting.popleft()
        for letter, (down, right) in MOVES.items():
            there = here[0] + down, here[1] + right
            if frozenset((here, there)) in doors and there not in walks:
                walks[there] = walks[here] + letter
                waiting.append(there)
    return walks[goal]


def walk(prompt: str, letters: str) -> bool:
    """Whether the letters lead from S to G without meeting a wall.

    >>> walk("#####\\n#S.G#\\n#####>", "R"), walk("#####\\n#S#G#\\n#####>", "R")
    (True, False)
    """
    squares = prompt.removesuffix(">").split("\n")
    place = next((r, line.index("S")) for r, line in enumerate(squares) if "S" in line)
    for letter in letters:
        if letter not in MOVES:
            return False
        down, right = MOVES[letter]
        if squares[place[0] + down][place[1] + right] == "#":
            return False
        place = place[0] + 2 * down, place[1] + 2 * right
    return squares[place[0]][place[1]] == "G"


mazes = Mazes()
