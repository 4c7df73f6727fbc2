"""Four rooms: its plan, its moves by hand, slips by their rates, and arriving by chance as often as the chain says."""

from __future__ import annotations

import numpy as np
import pytest

from etude.core.errors import ConfigError
from etude.tasks.control.four_rooms import CELLS, INDEX, NEXT, FourRooms, FourRoomsArrays

UP, RIGHT, DOWN, LEFT = range(4)


def made(members: int = 1, count: int = 1, **fields: float) -> FourRoomsArrays:
    vector = FourRooms(**fields).make(range(members), count)
    assert isinstance(vector, FourRoomsArrays)
    vector.reset()
    return vector


def act(move: int, vector: FourRoomsArrays) -> np.ndarray:
    return np.full((*vector.keys.shape, 1), move, np.float32)


def test_the_plan_has_104_cells_and_four_hallways() -> None:
    """The figure: rooms of 5x5, 6x5, 5x5 and 4x5 cells, and a hallway between each two that touch."""
    assert len(CELLS) == 25 + 30 + 25 + 20 + 4 == 104
    for hallway, ways in {
        (3, 6): (LEFT, RIGHT),
        (10, 6): (LEFT, RIGHT),
        (6, 2): (UP, DOWN),
        (7, 9): (UP, DOWN),
    }.items():
        here = INDEX[hallway]
        assert [m for m in range(4) if NEXT[here, m] != here] == sorted(ways)
    corner = INDEX[1, 1]
    assert NEXT[corner].tolist() == [corner, INDEX[1, 2], INDEX[2, 1], corner]


def test_a_walk_by_hand() -> None:
    vector = made(slip=0.0)
    vector.states = np.array([[[INDEX[5, 2], INDEX[7, 2]]]])
    blocked = vector.step(act(LEFT, vector))
    assert blocked.observations[0, 0].tolist() == pytest.approx([-0.2, -1, 0.2, -0.8, 0, 0, 1, 1])
    back = vector.step(act(RIGHT, vector))
    assert back.observations[0, 0].tolist() == pytest.approx([-0.2, -0.8, 0.2, -0.8, 0, 0, 0, 0])
    hallway = vector.step(act(DOWN, vector))
    assert hallway.observations[0, 0].tolist() == pytest.approx([0, -0.8, 0.2, -0.8, 0, 1, 0, 1])
    assert not hallway.terminated.any() and hallway.rewards.item() == 0
    there = vector.step(act(DOWN, vector))
    assert there.terminated.item() and not there.truncated.item() and there.rewards.item() == 1
    assert there.final is not None and there.final[0].tolist() == pytest.approx([0.2, -0.8, 0.2, -0.8, 0, 0, 0, 0])
    assert vector.states[0, 0, 0] != vector.states[0, 0, 1]


def test_who_does_not_arrive_is_stopped_at_the_limit_and_paid_nothing() -> None:
    vector = made(slip=0.0, limit=3)
    vector.states = np.array([[[INDEX[1, 1], INDEX[11, 11]]]])
    steps = [vector.step(act(UP, vector)) for _ in range(3)]
    assert [s.truncated.item() for s in steps] == [False, False, True]
    assert not any(s.terminated.item() or s.rewards.item() for s in steps)


@pytest.mark.slow
def test_a_slip_goes_in_each_other_direction_equally_often() -> None:
    """20,000 moves to the right: 2/3 go there, 1/9 each elsewhere, within four standard errors."""
    vector, total = made(4, 5000), 20_000
    vector.states = np.broadcast_to([INDEX[9, 3], INDEX[1, 1]], (4, 5000, 2)).copy()
    vector.step(act(RIGHT, vector))
    for move, share in {UP: 1 / 9, RIGHT: 2 / 3, DOWN: 1 / 9, LEFT: 1 / 9}.items():
        found = np.mean(vector.states[..., 0] == NEXT[INDEX[9, 3], move])
        assert abs(found - share) < 4 * np.sqrt(share * (1 - share) / total)


def test_start_and_goal_are_two_cells_and_every_pair_is_as_likely() -> None:
    least, most = 0.0, 1 - 2.0**-53
    corners = FourRoomsArrays([0], 1, "train").start(
        np.array([[least, least], [least, most], [most, least], [most, most]])
    )
    assert corners.tolist() == [[0, 1], [0, 103], [103, 0], [103, 102]]
    grid = (np.arange(104)[:, None] + 0.5) / 104, (np.arange(103)[None] + 0.5) / 103
    pairs = FourRoomsArrays([0], 1, "train").start(np.stack(np.broadcast_arrays(*grid), -1)).reshape(-1, 2)
    assert len(np.unique(pairs, axis=0)) == 104 * 103 and (pairs[:, 0] != pairs[:, 1]).all()


@pytest.mark.slow
def test_chance_arrives_as_often_as_the_chain_of_its_cells_says() -> None:
    """Moving at random is a Markov chain over the cells: its powers say exactly how many arrive within 50 steps."""
    walk = np.zeros((104, 104))
    for here, row in enumerate(NEXT):
        np.add.at(walk[here], row, 0.25)
    arrives = []
    for goal in range(104):
        away = np.delete(np.arange(104), goal)
        left = np.linalg.matrix_power(walk[np.ix_(away, away)], 50).sum(1)
        arrives.append(1 - left.mean())
    expected, vector, rng = np.mean(arrives), made(10, 40), np.random.default_rng(0)
    ended, arrived = 0, 0
    for _ in range(500):
        step = vector.step(rng.integers(0, 4, (10, 40, 1)).astype(np.float32))
        ended, arrived = ended + int((step.terminated | step.truncated).sum()), arrived + int(step.rewards.sum())
    assert ended > 3000
    assert abs(arrived / ended - expected) < 4 * np.sqrt(expected * (1 - expected) / ended)


def test_fields_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"slip must be a number in \[0, 1\], got 2"):
        FourRooms(slip=2.0)
    with pytest.raises(ConfigError, match="limit must be a whole number of at least 1, got 0"):
        FourRooms(limit=0)
