"""A teacher that reads a grid of MiniGrid: what to reach first, then next, up to the end of the task.

It sees all of the grid, as the language models of "Words as Beacons" (arXiv:2410.08632) were shown a map of it, and is
asked once in an episode, when it begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from etude.core.errors import ConfigError

if TYPE_CHECKING:
    from minigrid.core.grid import Grid
    from minigrid.minigrid_env import MiniGridEnv

Cell: TypeAlias = tuple[int, int]
"""Column and row."""
Error: TypeAlias = Literal["object", "place"]
"""What a wrong sub-goal is: another object of the grid, or a place some way from the right one."""
IN_THE_WAY = frozenset({"wall", "lava", "key", "ball", "box"})


def subgoals(env: MiniGridEnv) -> list[Cell]:
    """Cells in the order in which they have to be reached: doors that are shut, keys of locked ones, and the end.

    Raises: ConfigError for a level whose end it does not know, or to which it finds no way.
    """
    return _Way(env).to(aim(env))


def aim(env: MiniGridEnv) -> Cell:
    """Where the task ends: the thing to pick up, the goal tile, the door to open. Raises ConfigError for others."""
    thing = getattr(env, "obj", None)
    if thing is not None and thing.cur_pos is not None:
        return _cell(thing.cur_pos)
    for kind in ("goal", "door"):
        found = [cell for cell, thing in things(env.grid) if thing.type == kind]
        if found:
            return found[0]
    raise ConfigError(
        f"{type(env).__name__} has no goal tile, no door to open and nothing to fetch that its teacher knows: set "
        "task.level to one that has, as MiniGrid-DoorKey-6x6-v0, MiniGrid-MultiRoom-N2-S4-v0 or "
        "MiniGrid-KeyCorridorS3R1-v0."
    )


def things(grid: Grid) -> Iterator[tuple[Cell, Any]]:
    """All of MiniGrid's objects that stand in the grid but its walls, row by row."""
    for y in range(grid.height):
        for x in range(grid.width):
            thing = grid.get(x, y)
            if thing is not None and thing.type != "wall":
                yield (x, y), thing


class _Way:
    """Goes through a grid in thought, and notes what has to be done on the way."""

    def __init__(self, env: MiniGridEnv) -> None:
        self.grid, self.here, self.level = env.grid, _cell(env.agent_pos), type(env).__name__
        self.opened: set[Cell] = set()
        self.keys: dict[str, Cell] = {}  # where those were that are in hand by now, by their colour
        self.noted: list[Cell] = []

    def to(self, target: Cell, shut: frozenset[Cell] = frozenset()) -> list[Cell]:
        """Go there without the doors that are `shut`.

        Where there is no other way, through a locked door; and past a key, which can be picked up.
        """
        locked = {c for c, thing in things(self.grid) if thing.type == "door" and self._locked(c)} - {target}
        path = self._path(target, shut | locked) or self._path(target, shut) or self._path(target, shut, lifted=True)
        if not path:
            raise ConfigError(
                f"The teacher of {self.level} finds no way from {self.here} to {target} (columns and rows): things "
                "that would have to be carried away are beyond it. Set task.level to another."
            )
        for cell in path:
            if self._locked(cell):
                self._fetch_key(cell, shut)
                return self.to(target, shut)
            thing = self._thing(cell)
            if thing is not None and thing.type == "door" and not thing.is_open and cell not in self.opened:
                self.opened.add(cell)
                self._note(cell)
        if not self.noted or self.noted[-1] != target:
            self._note(target)
        return self.noted

    def _note(self, cell: Cell) -> None:
        self.noted.append(cell)
        self.here = cell

    def _locked(self, cell: Cell) -> bool:
        thing = self._thing(cell)
        locked = thing is not None and thing.type == "door" and thing.is_locked
        return bool(locked and thing.color not in self.keys)

    def _thing(self, cell: Cell) -> Any:
        return self.grid.get(*cell)

    def _fetch_key(self, door: Cell, shut: frozenset[Cell]) -> None:
        colour = self._thing(door).color
        found = [c for c, thing in things(self.grid) if thing.type == "key" and thing.color == colour]
        if not found:
            raise ConfigError(f"The door at {door} of {self.level} is locked, and there is no {colour} key to be seen.")
        self.to(found[0], shut | {door})
        self.keys[colour] = found[0]

    def _path(self, target: Cell, shut: frozenset[Cell], lifted: bool = False) -> list[Cell] | None:
        """The shortest way, from the cell after this one to the target, over cells that can be entered.

        With `lifted` those with a key are among them.
        """
        came: dict[Cell, Cell | None] = {self.here: None}
        queue = deque([self.here])
        while queue:
            cell = queue.popleft()
            if cell == target:
                return _back(came, cell)
            for near in around(cell):
                if near not in came and (near == target or self._free(near, shut, lifted)):
                    came[near] = cell
                    queue.append(near)
        return None

    def _free(self, cell: Cell, shut: frozenset[Cell], lifted: bool) -> bool:
        x, y = cell
        if cell in shut or not (0 <= x < self.grid.width and 0 <= y < self.grid.height):
            return False
        thing = self.grid.get(x, y)
        if thing is None or thing.type not in IN_THE_WAY or cell in self.keys.values():
            return True
        return lifted and thing.type == "key"


def _back(came: dict[Cell, Cell | None], cell: Cell) -> list[Cell]:
    """The way that led here, without where it began."""
    path: list[Cell] = []
    before = came[cell]
    while before is not None:
        path.append(cell)
        cell, before = before, came[before]
    return path[::-1]


def around(cell: Cell) -> list[Cell]:
    """The four cells beside one."""
    x, y = cell
    return [(x + 1, y), (x, y + 1), (x - 1, y), (x, y - 1)]


def _cell(position: object) -> Cell:
    x, y = (int(v) for v in np.asarray(position))
    return x, y


def corrupted(
    right: list[Cell],
    grid: Grid,
    chance: np.random.Generator,
    *,
    accuracy: float,
    error: Error,
    mean: float,
    deviation: float,
) -> list[Cell]:
    """The list of a teacher who errs: each cell stays with the chance `accuracy`, else something else is in its place.

    Args:
        error: 'object': the cell of another object, each as likely, of those that stand in the grid now; 'place': a
            cell whose Manhattan distance d from the right one is drawn, d = max(1, round(N(mean, deviation))), each
            such cell within the outer walls as likely; where the grid is too small, the largest distance that it has.
        mean, deviation: of the distance, in cells.

    Raises: ConfigError where 'object' is asked for and there is but one.
    """
    found = []
    for cell in right:
        wrong = chance.random() >= accuracy
        far = max(1, round(chance.normal(mean, deviation)))
        pick = chance.random()
        if not wrong:
            found.append(cell)
            continue
        others = other_objects(cell, grid) if error == "object" else places_at(cell, far, grid)
        found.append(others[int(pick * len(others))])
    return found


def other_objects(cell: Cell, grid: Grid) -> list[Cell]:
    """Where other objects stand."""
    others = [other for other, _ in things(grid) if other != cell]
    if not others:
        raise ConfigError(
            "A teacher cannot name another object where there is only one: set task.error=place, or task.accuracy=1."
        )
    return others


def places_at(cell: Cell, distance: int, grid: Grid) -> list[Cell]:
    """Cells within the outer walls at a Manhattan distance, or at the largest below it that there is."""
    inside = [(x, y) for x in range(1, grid.width - 1) for y in range(1, grid.height - 1) if (x, y) != cell]
    away = {place: abs(place[0] - cell[0]) + abs(place[1] - cell[1]) for place in inside}
    far = max(d for d in away.values() if d <= distance)
    return [place for place, d in away.items() if d == far]
