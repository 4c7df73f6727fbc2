"""The chain maze: a push by hand, slow turns, walls that hold every point, links that hold, and who knows the way."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.core.population import Member
from etude.core.registry import get_method
from etude.evaluation.animation import animate
from etude.loops.off_policy import OffPolicyLoop
from etude.tasks import resolve_task
from etude.tasks.control._chainmaze import (
    FASTEST,
    FASTEST_TURN,
    LIMITS,
    LINK,
    POINTS,
    PUSH,
    SPIN,
    TAUT,
    ChainMazeArrays,
    ChainMazePictures,
    points_of,
)
from etude.tasks.control._pointmaze import GAP, LAYOUTS, RADIUS, REACH, TAU
from replay_toys import small as small_replay

each_layout = pytest.mark.parametrize("layout", list(LAYOUTS))
DRAWN = {"starts": "drawn", "goals": "drawn"}


def made(layout: str = "umaze", seeds: Any = (0,), count: int = 1, **fields: Any) -> ChainMazeArrays:
    task: Any = resolve_task(f"chainmaze-{layout}")
    vector = task.replace(**fields).make(seeds, count)
    assert isinstance(vector, ChainMazeArrays)
    vector.reset()
    return vector


def state(places: Any, speed: float = 0.0, turning: float = 0.0, heading: float = 0.0, goal: Any = (1.5, 1.5)) -> Any:
    first, *rest = places
    return [*first, speed, turning, heading, *(x for place in rest for x in place), *goal]


def push(vector: ChainMazeArrays, left: float, right: float) -> Any:
    return vector.step(np.array([[[left, right]]], np.float32))


def links(vector: ChainMazeArrays) -> np.ndarray:
    places = points_of(vector.states)
    found: np.ndarray = np.sqrt(np.square(places[..., 1:, :] - places[..., :-1, :]).sum(-1))
    return found


def test_a_push_by_hand() -> None:
    """Both legs push along the heading; the second point is drawn along, the third lies on a slack string."""
    vector = made()
    vector.states[:] = state([(2.0, 3.5), (1.75, 3.5), (1.6, 3.5)], speed=1.0)
    step = push(vector, 0.5, 9.0)  # more than a full push is a full push
    speed = 1 + TAU * (PUSH * 0.75 - 1.0)
    turning = TAU * SPIN * 0.25
    heading = TAU * turning
    assert (speed, turning, heading) == pytest.approx((1.05, 0.05, 0.005))
    x, y = 2 + TAU * speed * math.cos(heading), 3.5 + TAU * speed * math.sin(heading)
    far = math.hypot(x - 1.75, y - 3.5)
    second = (1.75 + (x - 1.75) * (1 - LINK / far), 3.5 + (y - 3.5) * (1 - LINK / far))
    far = math.hypot(second[0] - 1.6, second[1] - 3.5)
    third = (1.6 + (second[0] - 1.6) * (1 - LINK / far), 3.5 + (second[1] - 3.5) * (1 - LINK / far))
    assert far > LINK and vector.states[0, 0].tolist() == pytest.approx(
        state([(x, y), second, third], speed, turning, heading)
    )
    assert links(vector)[0, 0].tolist() == pytest.approx([LINK, LINK])
    seen = step.observations[0, 0].tolist()
    about = [z - w for place in (second, third) for z, w in zip(place, (x, y), strict=True)]
    assert seen == pytest.approx([x - 2.5, y - 2.5, speed, turning, math.cos(heading), math.sin(heading), *about])
    assert step.rewards.item() == 0 and not (step.terminated | step.truncated).any()
    slack = made()
    slack.states[:] = state([(2.0, 3.5), (1.9, 3.5), (1.9, 3.4)])
    push(slack, -1.0, -1.0)  # backwards: nobody is pushed
    assert points_of(slack.states)[0, 0, 1:].tolist() == [[1.9, 3.5], [1.9, 3.4]] and slack.states[0, 0, 0] < 2.0


def test_turning_is_slow_and_in_place() -> None:
    vector = made()
    vector.states[:] = state([(2.0, 3.5)] * POINTS)
    taken = 0
    while vector.states[0, 0, 4] < math.pi / 2:
        push(vector, -1.0, 1.0)
        assert vector.states[0, 0, 3] <= FASTEST_TURN
        taken += 1
    assert 16 <= taken <= 22 and vector.states[0, 0, :3].tolist() == [2.0, 3.5, 0.0]
    for _ in range(100):
        push(vector, -1.0, 1.0)
        assert -math.pi <= vector.states[0, 0, 4] < math.pi


def test_a_wall_stops_the_first_point_and_leaves_what_speed_it_has_along_its_heading() -> None:
    vector = made()
    vector.states[:] = state([(3.85, 3.5)] * POINTS, speed=1.0, heading=-math.pi / 4)
    push(vector, 0.5, 0.5)
    down = -TAU * math.sqrt(0.5)
    assert vector.states[0, 0, :2].tolist() == pytest.approx([4 - RADIUS - GAP, 3.5 + down])
    assert vector.states[0, 0, 2] == pytest.approx(0.5)  # half of it was along the wall, of which half is ahead


def test_who_is_caught_at_a_corner_holds_all() -> None:
    """The others lie below the wall, the first is beyond its end; when it stops they come after."""
    vector, below = made(), (2.7, 3.0 + RADIUS + GAP)
    vector.states[:] = state([(3.0 + RADIUS + 0.01, 2.7), below, below], speed=2.0, heading=-math.pi / 2)
    before = points_of(vector.states).copy()
    assert LINK < links(vector).max() < TAUT
    push(vector, 1.0, 1.0)
    assert (points_of(vector.states) == before).all() and vector.states[0, 0, 2] == 0.0
    for _ in range(30):
        push(vector, 1.0, 1.0)
    places = points_of(vector.states)[0, 0]
    assert (places[:, 1] < 2.0).all() and links(vector).max() < TAUT


@given(
    layout=st.sampled_from(list(LAYOUTS)), seed=st.integers(0, 2**32 - 1), hold=st.integers(1, 30),
    reach=st.sampled_from([0.3, 1.0, 50.0]),
)  # fmt: skip
@settings(max_examples=10, deadline=None, derandomize=True)
@pytest.mark.slow
def test_no_point_is_ever_in_a_wall_and_no_link_gives_more(layout: str, seed: int, hold: int, reach: float) -> None:
    vector, rng = made(layout, [seed], 50, **DRAWN, limit=10_000), np.random.default_rng(seed)
    offsets = RADIUS * np.array([(-1, -1), (-1, 1), (1, -1), (1, 1)])
    for t in range(120):
        if t % hold == 0:
            legs = reach * (rng.choice([-1.0, 1.0, 1.0], (1, 50, 1)) + rng.normal(size=(1, 50, 2)))
        step = vector.step(legs.astype(np.float32))
        at = np.floor(points_of(vector.states)[..., None, :] + offsets).astype(int)
        assert not vector.maze.walls[at[..., 1], at[..., 0]].any()
        assert links(vector).max() <= TAUT
        assert np.abs(vector.states[..., 2]).max() <= FASTEST and np.abs(vector.states[..., 3]).max() <= FASTEST_TURN
        assert all(vector.observation_space.contains(x) for x in step.observations[0, :3])


def test_the_same_seed_is_the_same_and_members_are_their_own_runs() -> None:
    rng = np.random.default_rng(0)
    pushes = rng.uniform(-1, 1, (40, 2, 3, 2)).astype(np.float32)
    both, again, alone = (made("medium", s, 3, **DRAWN, limit=9) for s in ([3, 4], [3, 4], [4]))
    other = made("medium", [5], 3, **DRAWN, limit=9)
    kept = None
    for t, legs in enumerate(pushes):
        if t == 20:
            kept = both.state()
        one, two, own = both.step(legs), again.step(legs), alone.step(legs[1:])
        other.step(legs[1:])
        assert (one.observations == two.observations).all() and (one.rewards == two.rewards).all()
        assert (one.observations[1] == own.observations[0]).all() and (one.truncated[1] == own.truncated[0]).all()
    assert not np.array_equal(other.states[0], both.states[1])
    assert kept is not None
    again.restore(kept)
    for legs in pushes[20:]:
        last = again.step(legs)
    assert (again.states == both.states).all() and last.observations.shape == (2, 3, 12)
    set_by_hand = made("medium", [3, 4], 3, **DRAWN, limit=9)
    set_by_hand.states[:] = both.states
    assert (set_by_hand.step(pushes[0]).rewards == both.step(pushes[0]).rewards).all()
    assert (set_by_hand.states[..., :2] == both.states[..., :2])[both.elapsed > 0].all()


def test_arriving_is_the_first_points_and_the_limit_truncates() -> None:
    vector = made(count=2, limit=2)
    goal = vector.maze.middles[vector.maze.goal]
    near = (goal[0] + REACH + 0.1, goal[1])
    vector.states[0, 0] = state([near, (near[0] + LINK, near[1]), (near[0] + 2 * LINK, near[1])], -2.0, goal=goal)
    first = vector.step(np.zeros((1, 2, 2), np.float32))
    assert first.terminated.tolist() == [[True, False]] and first.rewards.tolist() == [[1.0, 0.0]]
    assert first.final is not None and first.final.shape == (1, 10)
    begun = points_of(vector.states)[0, 0]
    assert (begun == begun[0]).all() and not vector.states[0, 0, 2:4].any()
    second = vector.step(np.zeros((1, 2, 2), np.float32))
    assert second.truncated.tolist() == [[False, True]] and not second.rewards.any()
    dense = made(dense=True)
    dense.states[:] = state([(1.5, 3.5)] * POINTS)
    assert push(dense, 0.0, 0.0).rewards.item() == -2.0


def test_headings_and_starts_are_drawn() -> None:
    vector = made("umaze", [0, 1], 300)
    assert (vector.maze.cell(vector.states[..., :2]) == vector.maze.start).all()
    share, _ = np.histogram(vector.states[..., 4], 4, (-np.pi, np.pi))
    assert share.min() > 100 and vector.limit == LIMITS["umaze"]
    assert vector.observation_space.shape == (10,) and made(**DRAWN).observation_space.shape == (12,)


@each_layout
@pytest.mark.slow
def test_who_knows_the_way_arrives(layout: str) -> None:
    """From every start to every goal, long before the limit; and pushes that point there alone do not."""
    task: Any = resolve_task(f"chainmaze-{layout}")
    task = task.replace(**DRAWN)
    vector, controller, steps, arrived = task.make([0, 1], 20), task.controller(), 0, 0
    seen, ways = vector.reset(), task.ways()
    again = ways.towards(seen, seen[..., -2:].astype(np.float64) + vector.centre)
    assert np.allclose(again, controller(seen))
    for _ in range(vector.limit):
        step = vector.step(controller(seen).astype(np.float32))
        seen = step.observations
        assert not step.truncated.any()
        arrived, steps = arrived + int(step.terminated.sum()), steps + step.terminated.size
    assert steps / arrived < vector.limit / 5


def test_a_picture_shows_the_chain_and_its_way() -> None:
    task: Any = resolve_task("chainmaze-umaze")
    vector, plain = task.pictured(0, "animation 0"), task.make([0], 1, "animation 0")
    assert isinstance(vector, ChainMazePictures)
    assert (vector.reset() == plain.reset()).all()
    before = vector.render()
    for _ in range(40):
        legs = np.full((1, 1, 2), [0.6, 1.0], np.float32)
        assert (vector.step(legs).observations == plain.step(legs).observations).all()
    after = vector.render()
    assert before.shape == (160, 160, 3) and before[48, 48].tolist() == [232, 196, 120]
    x, y = (int(z * 32) for z in points_of(vector.states)[0, 0, -1])
    assert after[y, x].tolist() in ([98, 130, 190], [24, 72, 150]) and before[y, x].tolist() != after[y, x].tolist()
    assert (after == (158, 190, 226)).all(-1).any() and (after == (200, 60, 50)).all(-1).any()


@pytest.mark.slow
def test_it_is_trained_and_drawn(tmp_path: Any) -> None:
    task: Any = resolve_task("chainmaze-umaze")
    task = task.replace(limit=12)
    loop = OffPolicyLoop(small_replay(get_method("sac")), task, [Member(0)], 2, 20)
    assert np.isfinite(loop.step().metrics["critic_loss"])
    assert animate(loop, task, tmp_path / "way.gif") in (0.0, 1.0)
    assert (tmp_path / "way.gif").read_bytes()[:3] == b"GIF"
