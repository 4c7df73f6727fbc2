"""The point maze: its plans, a push by hand, walls that hold, goals and limits, who knows the way, its picture."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.core.errors import ConfigError
from etude.core.population import Member
from etude.core.registry import get_method
from etude.evaluation.animation import animate
from etude.loops.off_policy import OffPolicyLoop
from etude.tasks import resolve_task
from etude.tasks.control._pointmaze import (
    DRAG,
    GAP,
    LAYOUTS,
    PUSH,
    RADIUS,
    REACH,
    TAU,
    PointMazeArrays,
    PointMazePictures,
    Waypoints,
    maze_of,
)
from replay_toys import small as small_replay

each_layout = pytest.mark.parametrize("layout", list(LAYOUTS))
DRAWN = {"starts": "drawn", "goals": "drawn"}


def made(layout: str = "umaze", seeds: Any = (0,), count: int = 1, **fields: Any) -> PointMazeArrays:
    task: Any = resolve_task(f"pointmaze-{layout}")
    vector = task.replace(**fields).make(seeds, count)
    assert isinstance(vector, PointMazeArrays)
    vector.reset()
    return vector


def corners(vector: PointMazeArrays) -> np.ndarray:
    """[..., 4, 2] where the corners of the point are."""
    offsets = RADIUS * np.array([(-1, -1), (-1, 1), (1, -1), (1, 1)])
    return vector.states[..., None, :2] + offsets


def in_walls(vector: PointMazeArrays) -> np.ndarray:
    at = np.floor(corners(vector)).astype(int)
    found: np.ndarray = vector.maze.walls[at[..., 1], at[..., 0]].any(-1)
    return found


@each_layout
def test_every_cell_is_reached_from_every_other(layout: str) -> None:
    maze = maze_of(layout)
    cells, edge = len(maze.middles), maze.walls.copy()
    edge[1:-1, 1:-1] = True
    assert edge.all()  # nobody leaves
    assert maze.cell(maze.middles).tolist() == list(range(cells))
    at = np.broadcast_to(np.arange(cells)[:, None], (cells, cells))
    steps = np.zeros((cells, cells), int)
    for _ in range(cells):
        further = maze.onward[at, np.arange(cells)]
        far = np.abs(maze.middles[further] - maze.middles[at]).sum(-1)
        assert ((far == 1) | (at == np.arange(cells))).all()  # a neighbour, which is no wall
        steps += at != np.arange(cells)
        at = further
    assert (at == np.arange(cells)).all() and (steps == steps.T).all()
    assert steps[maze.start, maze.goal] == {"umaze": 6, "medium": 10, "large": 19}[layout]


def test_a_push_by_hand() -> None:
    vector = made()
    vector.states[:] = [1.5, 3.5, 1.0, 0.0, 1.5, 1.5]
    step = vector.step(np.array([[[0.5, -2.0]]], np.float32))  # more than a full push is a full push
    speed = np.array([1 + TAU * (PUSH * 0.5 - DRAG), -TAU * PUSH])
    assert speed.tolist() == pytest.approx([1.1, -0.4])
    assert vector.states[0, 0].tolist() == pytest.approx([1.61, 3.46, 1.1, -0.4, 1.5, 1.5])
    assert step.observations[0, 0].tolist() == pytest.approx([1.61 - 2.5, 3.46 - 2.5, 1.1, -0.4])
    assert step.rewards.item() == 0 and not (step.terminated | step.truncated).any()


def test_a_wall_stops_the_axis_that_runs_into_it() -> None:
    vector = made()
    vector.states[:] = [3.8, 3.5, 2.0, -1.0, 1.5, 1.5]
    vector.step(np.array([[[1.0, 0.0]]], np.float32))
    assert vector.states[0, 0].tolist() == pytest.approx([4 - RADIUS - GAP, 3.41, 0.0, -0.9, 1.5, 1.5])
    vector.states[:] = [1.5, 3.05 + RADIUS, 0.0, -2.0, 1.5, 1.5]  # below the wall in the middle
    vector.step(np.zeros((1, 1, 2), np.float32))
    assert vector.states[0, 0].tolist() == pytest.approx([1.5, 3 + RADIUS + GAP, 0.0, 0.0, 1.5, 1.5])


@given(
    layout=st.sampled_from(list(LAYOUTS)), seed=st.integers(0, 2**32 - 1), hold=st.integers(1, 30),
    reach=st.sampled_from([0.3, 1.0, 50.0]),
)  # fmt: skip
@settings(max_examples=12, deadline=None, derandomize=True)
@pytest.mark.slow
def test_the_point_is_never_in_a_wall(layout: str, seed: int, hold: int, reach: float) -> None:
    """Whatever is pushed for however long, from everywhere; and no step is longer than the fastest one."""
    vector, rng = made(layout, [seed], 50, **DRAWN, limit=10_000), np.random.default_rng(seed)
    for t in range(120):
        if t % hold == 0:
            push = reach * rng.choice([-1.0, 0.0, 1.0, rng.normal()], (1, 50, 2))
        before = vector.states.copy()
        step = vector.step(push.astype(np.float32))
        on = ~step.terminated
        assert not in_walls(vector).any()
        assert (np.abs(vector.states - before)[on][:, :2] <= TAU * PUSH / DRAG).all()


def test_the_same_seed_is_the_same_and_members_are_their_own_runs() -> None:
    rng = np.random.default_rng(0)
    pushes = rng.uniform(-1, 1, (40, 2, 3, 2)).astype(np.float32)
    both, again, alone = (made("medium", s, 3, **DRAWN, limit=9) for s in ([3, 4], [3, 4], [4]))
    other = made("medium", [5], 3, **DRAWN, limit=9)
    kept = None
    for t, push in enumerate(pushes):
        if t == 20:
            kept = both.state()
        one, two, own = both.step(push), again.step(push), alone.step(push[1:])
        other.step(push[1:])
        assert (one.observations == two.observations).all() and (one.rewards == two.rewards).all()
        assert (one.observations[1] == own.observations[0]).all() and (one.truncated[1] == own.truncated[0]).all()
    assert not np.array_equal(other.states[0], both.states[1])
    assert kept is not None
    again.restore(kept)
    for push in pushes[20:]:
        last = again.step(push)
    assert (again.states == both.states).all() and last.observations.shape == (2, 3, 6)


def test_arriving_ends_and_the_limit_truncates() -> None:
    vector = made(count=2, limit=2)
    goal = vector.maze.middles[vector.maze.goal]
    vector.states[0, 0] = [goal[0] + REACH + 0.15, goal[1], -2.0, 0.0, *goal]
    first = vector.step(np.zeros((1, 2, 2), np.float32))
    assert first.terminated.tolist() == [[True, False]] and first.rewards.tolist() == [[1.0, 0.0]]
    assert not first.truncated.any() and first.final is not None and first.final.shape == (1, 4)
    assert np.hypot(*(first.final[0, :2] + vector.centre - goal)) <= REACH
    assert np.hypot(*(vector.states[0, 0, :2] - vector.maze.middles[vector.maze.start])) <= 0.3 * math.sqrt(2)
    second = vector.step(np.zeros((1, 2, 2), np.float32))
    assert second.truncated.tolist() == [[False, True]] and not second.terminated.any() and not second.rewards.any()
    vector.states[0, 0] = [goal[0] + REACH + 0.15, goal[1], -2.0, 0.0, *goal]
    both = vector.step(np.zeros((1, 2, 2), np.float32))  # arriving at the limit is arriving
    assert both.terminated[0, 0] and not both.truncated[0, 0]


def test_dense_rewards_are_the_distance_that_is_left() -> None:
    vector = made(dense=True)
    vector.states[:] = [1.5, 3.5, 0.0, 0.0, 1.5, 1.5]
    assert vector.step(np.zeros((1, 1, 2), np.float32)).rewards.item() == -2.0
    vector.states[:] = [1.9, 1.5, 0.0, 0.0, 1.5, 1.5]
    arrived = vector.step(np.zeros((1, 1, 2), np.float32))
    assert arrived.terminated.item() and arrived.rewards.item() == 0.0


def test_starts_and_goals_are_fixed_or_drawn() -> None:
    fixed = made("large", [0, 1], 40)
    maze = fixed.maze
    assert (maze.cell(fixed.states[..., :2]) == maze.start).all() and (
        maze.cell(fixed.states[..., 4:]) == maze.goal
    ).all()
    drawn = made("large", [0, 1], 400, **DRAWN)
    here, there = maze.cell(drawn.states[..., :2]), maze.cell(drawn.states[..., 4:])
    assert (here != there).all() and len(np.unique(here)) == len(np.unique(there)) == len(maze.middles)
    assert fixed.observation_space.shape == (4,) and drawn.observation_space.shape == (6,)
    assert drawn.observation_space.contains(drawn.observe(drawn.states)[0, 0])
    goals = made("umaze", [0], 200, goals="drawn")  # where the goal is where episodes begin they begin elsewhere
    assert (goals.maze.cell(goals.states[..., :2]) != goals.maze.cell(goals.states[..., 4:])).all()


@each_layout
@pytest.mark.slow
def test_who_knows_the_way_arrives(layout: str) -> None:
    """From every start to every goal, long before the limit."""
    vector, steps, arrived = made(layout, [0, 1], 30, **DRAWN), 0, 0
    way = Waypoints(vector.maze)
    for _ in range(vector.limit):
        push = way(vector.states[..., :2], vector.states[..., 2:4], vector.states[..., 4:])
        step = vector.step(push.astype(np.float32))
        assert not step.truncated.any()
        arrived, steps = arrived + int(step.terminated.sum()), steps + step.terminated.size
    assert steps / arrived < vector.limit / 5
    start = made(layout, [0], 10)
    for t in range(vector.limit // 4):  # noqa: B007  # asked for after it
        step = start.step(way(start.states[..., :2], start.states[..., 2:4], start.states[..., 4:]).astype(np.float32))
        if step.terminated.any():
            break
    assert step.terminated.any() and t > 3 * {"umaze": 6, "medium": 10, "large": 19}[layout]


def test_a_picture_shows_walls_the_goal_and_the_way() -> None:
    task: Any = resolve_task("pointmaze-umaze")
    vector, plain = task.pictured(0, "animation 0"), task.make([0], 1, "animation 0")
    assert isinstance(vector, PointMazePictures)
    assert (vector.reset() == plain.reset()).all()
    before = vector.render()
    for _ in range(12):
        push = np.ones((1, 1, 2), np.float32)
        assert (vector.step(push).observations == plain.step(push).observations).all()
    after = vector.render()
    assert before.shape == (160, 160, 3) and before.dtype == np.uint8
    assert before[0, 0].tolist() == [90, 96, 108] and before[48, 48].tolist() == [232, 196, 120]
    x, y = (int(z * 32) for z in vector.states[0, 0, :2])
    assert after[y, x].tolist() == [24, 72, 150] and before[y, x].tolist() != [24, 72, 150]
    assert (after == (158, 190, 226)).all(-1).any() and not (before == (158, 190, 226)).all(-1).any()


@pytest.mark.slow
def test_it_is_trained_and_drawn(tmp_path: Any) -> None:
    task: Any = resolve_task("pointmaze-umaze")
    task = task.replace(limit=12)
    loop = OffPolicyLoop(small_replay(get_method("sac")), task, [Member(0)], 2, 20)
    assert np.isfinite(loop.step().metrics["critic_loss"])
    assert animate(loop, task, tmp_path / "way.gif") in (0.0, 1.0)
    assert (tmp_path / "way.gif").read_bytes()[:3] == b"GIF"


def test_fields_out_of_range_are_refused() -> None:
    task: Any = resolve_task("pointmaze-medium")
    assert task.id == "pointmaze-medium" and resolve_task(task.id) == task
    with pytest.raises(ConfigError, match="limit must be a whole number of at least 1 or none, got 0"):
        task.replace(limit=0)
    with pytest.raises(ConfigError, match="starts must be"):
        task.replace(starts="anywhere")
