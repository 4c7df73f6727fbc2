"""GuDA: few logs grow by symmetries of the task, and only what makes progress is kept (arXiv:2310.18247).

Changes TD3+BC in one place: before anything is learned, segments of logged episodes are moved, turned and mirrored,

    (s, a, s') -> (f(s), f(a), f(s')),    the reward and the end anew, by the task's own rule

kept if they are steps of the true dynamics, and if a rule that a person gave says that they make progress; they stand
beside the logs. What is added to data so is what an expert would have done, though nobody did it: turns and mirrors by
chance, of which most lead nowhere, are `transforms.augment.guide=any-way`.

In a maze of points (`maze-moves`) a segment goes to a random free cell, turned by quarters and mirrored. The simulator
says whether it would have gone so there, so that none crosses a wall. It makes progress (`towards-goal`) if it goes
within 45 degrees of the way to the next cell on the shortest way to the goal, or arrives. Quarters alone, since pushes
are bounded along each axis.

No code was found: the rule for mazes is a reading of the paper's, and cars, football and the baseline whose steps a
learned model of the dynamics makes up are not there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np

from etude.core.claims import Claim, Measure
from etude.core.errors import ConfigError
from etude.core.fields import Count, Interval, WholeNumber
from etude.core.log_slots import LogTransform
from etude.core.part import Part
from etude.experience.logs.table import Logs, Numbers
from etude.experience.transforms import StandardizeObservations, for_all_alike
from etude.methods.offline.td3_bc import td3_bc
from etude.tasks.control._pointmaze import RADIUS, PointMazeArrays, maze_of

if TYPE_CHECKING:
    from etude.core.method import Method

AT_A_TIME, TRIES = 1024, 200
"""Segments that are tried at a time, and how many times that yields none before it is given up."""
CLOSE = 1e-5
"""Between a moved state and where the simulator goes: what rounding makes of float32."""


class Segments(NamedTuple):
    """B segments of at most T steps: seen, led [B, T, D], done [B, T, A], paid [B, T], ended, there [B, T] bool.

    `there` is True for the steps of a segment, from its first.
    """

    seen: Numbers
    done: Numbers
    led: Numbers
    paid: Numbers
    ended: Numbers
    there: Numbers


class Symmetries(Part, abstract=True):
    """Maps of steps to steps of the same dynamics."""

    slot = "symmetries"

    def accepts(self, logs: Logs) -> None:
        """Raise ConfigError for logs whose steps these are not maps of."""

    def moved(self, segments: Segments, rng: np.random.Generator) -> tuple[Segments, Numbers]:
        """Each segment by a map that is drawn for it, and which [B] can be: no wall, no bound is crossed."""
        raise NotImplementedError


class ProgressGuide(Part, abstract=True):
    """Which moved segments are worth learning from."""

    slot = "progress"

    def progress(self, segments: Segments) -> Numbers:
        """[B] bool."""
        raise NotImplementedError


class AnyWay(ProgressGuide):
    """All of them.

    Shapes: [B].

    >>> AnyWay().progress(Segments(*np.ones((6, 2, 3), bool))).tolist()
    [True, True]
    """

    def progress(self, segments: Segments) -> Numbers:
        return np.ones(len(segments.there), bool)


class TowardsGoal(ProgressGuide):
    """Segments that go where the shortest way goes from the cell that they begin in, or that arrive.

    Args:
        layout: of the point maze. tolerance: between the two directions, in degrees.

    Shapes: [B].

    From the start of the U one goes to the right:

    >>> seen = np.zeros((2, 1, 4)) + [-1.0, 1.0, 0.0, 0.0]
    >>> led = seen + np.array([[[0.2, 0.1, 0.0, 0.0]], [[-0.2, 0.0, 0.0, 0.0]]])
    >>> no = np.zeros((2, 1), bool)
    >>> TowardsGoal().progress(Segments(seen, seen[..., :2], led, no, no, ~no)).tolist()
    [True, False]
    """

    layout: Literal["umaze", "medium", "large"] = "umaze"
    tolerance: Annotated[float, Interval(gt=0, le=180)] = 45.0

    def progress(self, segments: Segments) -> Numbers:
        maze = maze_of(self.layout)
        centre = np.array(maze.walls.shape[::-1]) / 2
        last = segments.there.sum(1) - 1
        begun, gone = segments.seen[:, 0, :2], segments.led[np.arange(len(last)), last, :2]
        onward = maze.middles[maze.onward[maze.cell(begun + centre), maze.goal]] - centre
        way, made = onward - begun, gone - begun
        length = np.linalg.norm(way, axis=1) * np.linalg.norm(made, axis=1)
        along = (way * made).sum(1) >= np.cos(np.radians(self.tolerance)) * length
        found: Numbers = (along & (length > 0)) | segments.ended.any(1)
        return found


class MazeMoves(Symmetries):
    """Segments of a point maze go to a random place in a random free cell, turned by quarters and mirrored.

    Args:
        layout: of the maze; its goal is not drawn. dense: what is paid, as the task has it.

    Shapes: observations [B, T, 4]. Raises: ConfigError for others.

    >>> turned(np.array([[1.0, 2.0]]), quarters=np.array([1]), mirrored=np.array([False])).tolist()
    [[-2.0, 1.0]]
    """

    layout: Literal["umaze", "medium", "large"] = "umaze"
    dense: bool = False

    def accepts(self, logs: Logs) -> None:
        if logs.observations.shape[1:] != (4,) or logs.actions.shape[1:] != (2,):
            raise ConfigError(
                f"MazeMoves is for a point maze whose goal is not drawn, of 4 numbers and pushes of 2, and "
                f"{logs.where} has {list(logs.observations.shape[1:])} and {list(logs.actions.shape[1:])}."
            )

    def moved(self, segments: Segments, rng: np.random.Generator) -> tuple[Segments, Numbers]:
        arrays = PointMazeArrays([0], 1, "moves", self.layout, self.dense)
        maze, count = arrays.maze, len(segments.there)
        quarters, mirrored = rng.integers(0, 4, count), rng.random(count) < 0.5
        cells = maze.middles[rng.integers(0, len(maze.middles), count)]
        begun = cells + rng.uniform(-0.5, 0.5, (count, 2)) - arrays.centre
        seen, led = (self._states(x, segments.seen[:, :1, :2], begun, quarters, mirrored)
                     for x in (segments.seen, segments.led))  # fmt: skip
        done = turned(segments.done, quarters[:, None], mirrored[:, None])
        inside = _free(maze.walls, seen[..., :2] + arrays.centre) | ~segments.there
        where = np.where((inside & segments.there)[..., None], seen[..., :2] + arrays.centre, maze.middles[maze.start])
        goal = np.broadcast_to(maze.middles[maze.goal], where.shape)
        went, paid, ended = arrays.advance(np.concatenate([where, seen[..., 2:], goal], -1), done)
        true = np.concatenate([went[..., :2] - arrays.centre, went[..., 2:4]], -1)
        fits = (np.abs(true - led).max(-1) < CLOSE) | ~segments.there
        over = np.cumsum(ended & segments.there, 1) - (ended & segments.there) > 0  # after it has arrived
        there = segments.there & ~over
        found = Segments(seen, done, true, paid, ended & there, there)
        outside = np.linalg.norm(begun + arrays.centre - maze.middles[maze.goal], axis=1) > 0.5
        return found, ((fits & inside) | over).all(1) & outside

    def _states(self, states: Numbers, about: Numbers, begun: Numbers, quarters: Numbers, mirrored: Numbers) -> Numbers:
        turns = quarters[:, None], mirrored[:, None]
        return np.concatenate(
            [turned(states[..., :2] - about, *turns) + begun[:, None], turned(states[..., 2:], *turns)], -1
        )


def turned(vectors: Numbers, quarters: Numbers, mirrored: Numbers) -> Numbers:
    """Vectors [..., 2] in float64, first mirrored in x where that is said, [...], then turned by so many quarters."""
    x, y = np.where(mirrored, -1.0, 1.0) * vectors[..., 0], vectors[..., 1].astype(np.float64)
    cos, sin = np.array([1.0, 0.0, -1.0, 0.0])[quarters % 4], np.array([0.0, 1.0, 0.0, -1.0])[quarters % 4]
    return np.stack([cos * x - sin * y, sin * x + cos * y], -1)


def _free(walls: Numbers, places: Numbers) -> Numbers:
    """[...] at which places [..., 2] a point is within the maze, and touches no wall."""
    height, width = walls.shape
    found: Numbers = np.ones(places.shape[:-1], bool)
    for corner in ((-1, -1), (-1, 1), (1, -1), (1, 1)):
        at = np.floor(places + RADIUS * np.array(corner)).astype(np.int64)
        found &= (at >= 0).all(-1) & (at[..., 0] < width) & (at[..., 1] < height)
        found &= ~walls[at[..., 1].clip(0, height - 1), at[..., 0].clip(0, width - 1)]
    return found


class Augment(LogTransform):
    """Segments of the logs, mapped by symmetries, stand beside them: those that are possible and make progress.

    Args:
        symmetries: how a segment is mapped. guide: which of those are kept.
        rows: how many are added. longest: steps of a segment, drawn from 1 on. seed: of all that is drawn.

    Shapes: rows [N, ...] -> [N + rows, ...]; each segment is an episode, truncated unless it terminates.
    Raises: ConfigError where nothing is kept.

    >>> Augment(rows=500, longest=5).rows
    500
    """

    symmetries: Symmetries = MazeMoves()
    guide: ProgressGuide = TowardsGoal()
    rows: Count = 100_000
    longest: Count = 20
    seed: WholeNumber = 0

    def __call__(self, logs: Logs, method: Method) -> Logs:
        self.symmetries.accepts(logs)
        for part in (self, self.symmetries, self.guide):
            for_all_alike(part)
        rng, added, count, vain = np.random.default_rng(self.seed), list[Segments](), 0, 0
        while count < self.rows:
            found, possible = self.symmetries.moved(self._drawn(logs, rng), rng)
            kept = np.flatnonzero(possible)
            kept = kept[self.guide.progress(Segments(*(column[kept] for column in found)))] if len(kept) else kept
            vain = 0 if len(kept) else vain + 1
            if vain == TRIES:
                raise ConfigError(
                    f"Augment tried {TRIES * AT_A_TIME:,} segments in a row, and {type(self.symmetries).__name__} and "
                    f"{type(self.guide).__name__} kept none: give shorter ones (longest), or another guide."
                )
            added.append(Segments(*(column[kept] for column in found)))
            count += int(added[-1].there.sum())
        return self._beside(logs, added)

    def _drawn(self, logs: Logs, rng: np.random.Generator) -> Segments:
        """Segments that begin anywhere and end where their episode does, at the latest."""
        starts, lengths = rng.integers(0, logs.rows, AT_A_TIME), rng.integers(1, self.longest + 1, AT_A_TIME)
        ends = logs.ends[np.searchsorted(logs.ends, starts)]
        steps = np.arange(self.longest)
        there = (steps < lengths[:, None]) & (starts[:, None] + steps <= ends[:, None])
        at = np.where(there, starts[:, None] + steps, starts[:, None])
        return Segments(
            logs.observations[at], logs.actions[at], logs.next_observations[at], logs.rewards[at],
            logs.terminated[at] & there, there,
        )  # fmt: skip

    def _beside(self, logs: Logs, added: list[Segments]) -> Logs:
        there = np.concatenate([x.there for x in added])
        flat = {
            name: np.concatenate([getattr(x, name) for x in added])[there][: self.rows] for name in Segments._fields
        }
        last = np.concatenate([there[:, :-1] & ~there[:, 1:], there[:, -1:]], 1)[there][: self.rows]
        last[-1] = True
        names = {"observations": "seen", "actions": "done", "next_observations": "led", "rewards": "paid"}
        columns: dict[str, Any] = {
            k: np.concatenate([getattr(logs, k), flat[v].astype(np.float32)]) for k, v in names.items()
        }
        terminated, truncated = flat["ended"], last & ~flat["ended"]
        return replace(
            logs, terminated=np.concatenate([logs.terminated, terminated]),
            truncated=np.concatenate([logs.truncated, truncated]), returns_to_go=None, next_actions=None,
            behaviour_logp=None, expert=None, **columns,
        )  # fmt: skip

    def sentence(self, before: Logs, after: Logs) -> str:
        return (
            f"{self.rows:,} of them are moved by {self.symmetries.name}, kept by {self.guide.name}, in "
            f"{after.episodes - before.episodes:,} segments; seed {self.seed}"
        )


guda = td3_bc.replace(
    id="guda",
    title="Guided Data Augmentation for Offline Reinforcement Learning and Imitation Learning",
    paper="arXiv:2310.18247",
    transforms=(Augment(), StandardizeObservations()),
    claim=Claim(
        statement=(
            "In a maze TD3+BC arrives more often from few logs that grew by a guide than where they grew by chance, or "
            "not at all."
        ),
        task="pointmaze-medium",
        setting=(
            "2 logged episodes of who knows the way but pushes by chance in 8 of 10 steps, and 20,000 moved rows; "
            "every step costs 1; networks of 64-64, 5,000 updates, alpha 0.5, 100 episodes of likeliest actions, from "
            "anywhere"
        ),
        measures=(
            Measure(name="arrived", smallest=0.1, bounds=(0.0, 1.0)),
            Measure(name="arrived beside no more rows", smallest=0.1, bounds=(0.0, 1.0)),
        ),
        equal=("updates",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on=None,
        paper_effect="more than random augmentation, and that more than none, in mazes and on a field (figure 4)",
    ),
)
