"""Sub-goals in MiniGrid: their order, when they are completed, what completing them is said to be, and wrong ones."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import numpy as np
import pytest
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX

from etude.core.errors import ConfigError, MissingExtraError, UnknownNameError
from etude.tasks import resolve_task
from etude.tasks.control import _subgoals
from etude.tasks.control._grid_teacher import around, other_objects, places_at, subgoals
from etude.tasks.control._subgoals import SubGoals
from etude.tasks.control.minigrid_subgoals import MiniGridSubgoals

LEFT, RIGHT, FORWARD, PICK, DROP, TOGGLE = range(6)
DIRECTIONS = [(1, 0), (0, 1), (-1, 0), (0, -1)]
LEVELS = ["DoorKey-6x6", "MultiRoom-N2-S4", "KeyCorridorS3R1", "UnlockPickup", "Unlock", "Empty-5x5"]


def made(level: str = "DoorKey-5x5", seed: int = 0, **fields: Any) -> SubGoals:
    env = MiniGridSubgoals(level=f"MiniGrid-{level}-v0", **fields).single()
    env.reset(seed=seed)
    assert isinstance(env, SubGoals)
    return env


def turn_towards(world: Any, cell: tuple[int, int]) -> list[int]:
    """Turns until the agent faces the cell beside it."""
    wanted = DIRECTIONS.index((cell[0] - world.agent_pos[0], cell[1] - world.agent_pos[1]))
    return [[], [RIGHT], [RIGHT, RIGHT], [LEFT]][(wanted - world.agent_dir) % 4]


def way(world: Any, target: tuple[int, int]) -> list[tuple[int, int]]:
    """Cells from the agent to the target, over those that can be entered now."""
    start = tuple(int(x) for x in world.agent_pos)
    came, queue = {start: start}, deque([start])
    while queue and target not in came:
        cell = queue.popleft()
        for near in around(cell):
            thing = world.grid.get(*near)
            if near not in came and (near == target or thing is None or thing.can_overlap()):
                came[near] = cell
                queue.append(near)
    path = [target]
    while path[-1] != start:
        path.append(came[path[-1]])
    return path[-2::-1]


class Expert:
    """Does what an agent that knows the level does: goes to the next sub-goal, and does there what there is to do."""

    def __init__(self, env: SubGoals) -> None:
        self.env, self.world = env, env.grid_world
        self.paid: list[float] = []
        self.reward, self.over = 0.0, False

    def act(self, *actions: int) -> None:
        for action in actions:
            *_, reward, terminated, truncated, info = self.env.step(action)
            self.paid.append(info["subgoal_progress"])
            self.reward, self.over = self.reward + reward, terminated or truncated

    def reach(self, target: tuple[int, int]) -> None:
        for cell in way(self.world, target):
            self.act(*turn_towards(self.world, cell))
            thing = self.world.grid.get(*cell)
            if cell == target and thing is not None and thing.type in ("key", "ball", "box"):
                if self.world.carrying is not None:
                    self.put_down()
                    self.reach(target)
                    return
                self.act(PICK)
            elif cell == target and thing is not None and thing.type == "door" and not thing.is_open:
                self.act(TOGGLE)
            else:
                self.act(FORWARD)

    def put_down(self) -> None:
        """Into the first free cell beside the agent that is none of a door's."""
        for cell in around(tuple(int(x) for x in self.world.agent_pos)):
            if self.world.grid.get(*cell) is None:
                self.act(*turn_towards(self.world, cell), DROP)
                return

    def play(self) -> None:
        while not self.over:
            aim, taken = self.env.active, len(self.paid)
            assert aim is not None
            self.reach(aim)
            assert self.env.active != aim and len(self.paid) > taken  # it was completed


def test_names_are_those_of_minigrid() -> None:
    assert list(_subgoals.TYPES) == sorted(OBJECT_TO_IDX, key=OBJECT_TO_IDX.__getitem__)
    assert list(_subgoals.COLOURS) == sorted(COLOR_TO_IDX, key=COLOR_TO_IDX.__getitem__)
    assert list(_subgoals.STATES) == sorted(STATE_TO_IDX, key=STATE_TO_IDX.__getitem__)
    assert max(OBJECT_TO_IDX.values()) == _subgoals.LARGEST


def test_the_order_of_what_has_to_be_done() -> None:
    """The paper's example: to the door, take the key, open the locked door, take the ball."""
    env = made("KeyCorridorS3R1", seed=1)
    kinds = [env.grid_world.grid.get(*cell) for cell in env.ahead]
    assert [thing.type for thing in kinds] == ["door", "key", "door", "ball"]
    assert not kinds[0].is_locked and kinds[2].is_locked and kinds[1].color == kinds[2].color
    rooms = made("MultiRoom-N4-S5", seed=1)
    things = [rooms.grid_world.grid.get(*cell).type for cell in rooms.ahead]
    assert things == ["door"] * (len(things) - 1) + ["goal"] and len(things) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_who_does_what_is_said_collects_everything_and_reaches_the_end(level: str) -> None:
    for seed in range(6):
        env = made(level, seed)
        count, expert = len(env.ahead), Expert(env)
        expert.play()
        assert expert.reward > 0.5, (level, seed)
        paid = [x for x in expert.paid if x]
        assert len(paid) == count and not env.ahead
        assert all(0 <= x < 1 for x in paid)


def test_a_sub_goal_is_worth_what_is_left_of_the_limit_since_it_became_active() -> None:
    """Two turns wasted first: the key by step 2 + k of 250, the door counted from there."""
    env = made(seed=0)
    expert = Expert(env)
    key, door = env.ahead[:2]
    expert.act(LEFT, RIGHT)
    expert.reach(key)
    first = len(expert.paid)
    assert [i for i, x in enumerate(expert.paid) if x] == [first - 1]
    assert expert.paid[-1] == pytest.approx(1 - first / 250)
    assert env.active == door
    expert.reach(door)
    assert expert.paid[-1] == pytest.approx(1 - (len(expert.paid) - first) / 250)


def test_each_pays_once_however_often_it_is_done_again() -> None:
    env = made(seed=0)
    expert = Expert(env)
    expert.reach(env.ahead[0])
    expert.reach(env.ahead[0])
    paid = len([x for x in expert.paid if x])
    expert.act(TOGGLE, TOGGLE, TOGGLE)  # the door shut and opened again
    expert.put_down()
    assert paid == 2 and len([x for x in expert.paid if x]) == paid


def test_what_is_shown_is_the_way_to_what_is_there_now() -> None:
    env = made(seed=0)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    x, y = env.ahead[0]
    at = env.grid_world.agent_pos
    thing = env.grid_world.grid.get(x, y)
    assert observation["subgoal"].tolist() == [x - at[0], y - at[1], *thing.encode()] and thing.type == "key"
    expert = Expert(env)
    expert.play()
    assert env._shown(observation)["subgoal"].tolist() == list(_subgoals.NONE)


def test_without_a_word_nothing_is_shown_and_nothing_completed_and_all_else_is_as_before() -> None:
    told, untold = made(seed=3), made(seed=3, told=0.0)
    assert told.ahead and not untold.ahead
    for action in np.random.default_rng(0).integers(7, size=40):
        with_word, without = told.step(action), untold.step(action)
        assert np.array_equal(with_word[0]["image"], without[0]["image"]) and with_word[1:4] == without[1:4]
        assert without[0]["subgoal"].tolist() == list(_subgoals.NONE) and without[4]["subgoal_progress"] == 0
    half = [bool(made(seed=seed, told=0.5).ahead) for seed in range(60)]
    assert 18 <= sum(half) <= 42


@pytest.mark.slow
def test_a_wrong_sub_goal_is_any_other_object_as_often() -> None:
    """Of key, door and goal each is replaced by one of the other two, each as likely: 0.5 +- 4 deviations."""
    seen: Counter[tuple[str, str]] = Counter()
    rounds = 150
    for seed in range(rounds):
        env = made(seed=seed, accuracy=0.0)
        grid, right = env.grid_world.grid, subgoals(env.grid_world)
        for meant, said in zip(right, env.ahead, strict=True):
            seen[grid.get(*meant).type, grid.get(*said).type] += 1
    assert {pair[0] for pair in seen} == {"key", "door", "goal"} and all(a != b for a, b in seen)
    assert all(abs(n / rounds - 0.5) < 4 * (0.25 / rounds) ** 0.5 for n in seen.values()) and len(seen) == 6


@pytest.mark.slow
def test_as_many_are_right_as_the_accuracy_says() -> None:
    right = [
        meant == said
        for seed in range(100)
        for env in [made(seed=seed, accuracy=0.7)]
        for meant, said in zip(subgoals(env.grid_world), env.ahead, strict=True)
    ]
    assert abs(np.mean(right) - 0.7) < 4 * (0.21 / len(right)) ** 0.5


@pytest.mark.slow
def test_a_wrong_place_is_as_far_away_as_it_is_told() -> None:
    """Within the outer walls of a grid of 5 x 5 nothing is further than 4 away; without spread all are as far."""
    for seed in range(20):
        env = made(seed=seed, accuracy=0.0, error="place", mean=2.0, deviation=0.0)
        for meant, said in zip(subgoals(env.grid_world), env.ahead, strict=True):
            assert abs(meant[0] - said[0]) + abs(meant[1] - said[1]) == 2
            assert all(1 <= x <= 3 for x in said)
    grid = made(seed=0).grid_world.grid
    assert sorted(places_at((1, 1), 9, grid)) == [(3, 3)] and sorted(places_at((2, 2), 1, grid)) == [
        (1, 2), (2, 1), (2, 3), (3, 2)
    ]  # fmt: skip
    spread = made("FourRooms", seed=0, accuracy=0.0, error="place", mean=1.0, deviation=3.0)
    assert spread.ahead != subgoals(spread.grid_world)


def test_one_object_cannot_be_another() -> None:
    env = made("Empty-5x5")
    with pytest.raises(ConfigError, match=r"only one: set task\.error=place, or task\.accuracy=1"):
        other_objects(env.ahead[0], env.grid_world.grid)


@pytest.mark.slow
def test_vectors_say_it_and_go_on_where_they_were() -> None:
    task = resolve_task("minigrid-subgoals")
    assert isinstance(task, MiniGridSubgoals)
    one, other = task.make([0, 1], 3), task.make([0, 1], 3)
    moves = np.random.default_rng(0).integers(7, size=(60, 2, 3, 1)).astype(np.float32)
    first = one.reset()
    assert first.shape == (2, 3, 4 + 147 + 5) and np.array_equal(first[..., :4].sum(-1), np.ones((2, 3)))
    steps = [one.step(move) for move in moves[:30]]
    assert all(s.progress is not None and s.progress.shape == (2, 3) and s.costs is None for s in steps)
    other.reset()
    other.restore(one.state())
    for move in moves[30:]:
        a, b = one.step(move), other.step(move)
        assert np.array_equal(a.observations, b.observations) and np.array_equal(a.progress, b.progress)
    one.close(), other.close()


@pytest.mark.parametrize(
    ("level", "error", "sentence"),
    [
        ("MiniGrid-DoorKey-7x7-v0", UnknownNameError, "no level of MiniGrid named .* Did you mean"),
        ("MiniGrid-Fetch-5x5-N2-v0", ConfigError, "FetchEnv has no goal tile, no door to open and nothing to fetch"),
        ("MiniGrid-BlockedUnlockPickup-v0", ConfigError, r"finds no way from \(\d, \d\) to .* Set task.level"),
    ],
)
def test_levels_that_cannot_be_taught_are_refused(level: str, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        MiniGridSubgoals(level=level).make([0], 1)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "minigrid", None)
    with pytest.raises(MissingExtraError, match=r"task minigrid-subgoals needs .* pip install 'etude\[minigrid\]'"):
        MiniGridSubgoals().make([0], 1)
