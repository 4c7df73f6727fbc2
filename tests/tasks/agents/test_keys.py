"""Keys: the grid by hand, shortest ways, replay, branching, the divide."""

from __future__ import annotations

import pytest

from etude.core.episodes import Problem, Segment
from etude.core.errors import EnvironmentFault, UnknownNameError
from etude.core.streams import Stream
from etude.tasks.agents.keys import MOVES, Grid, Keys, Stand, distances, keys, moved, walk

INFO = {"start": (0, 0), "key": (0, 2), "door": (3, 1), "walls": ((1, 1), (2, 0))}
PROBLEM = Problem("1", "k02 d31 w11 w20\n00\n", info=INFO)


def play(letters: str, task: Keys = keys) -> list[tuple[str, float, bool, bool]]:
    game = Grid(task)
    game.reset(PROBLEM, 0)
    found = []
    for letter in letters:
        r = game.step(Segment("assistant", letter))
        found.append((r.segments[0].text, r.reward, r.terminated, r.truncated))
    return found


def test_a_game_by_hand() -> None:
    found = play("RRDDDURRRU")  # through (1, 0) no further: a wall
    assert [f[0] for f in found] == [
        "10\n", "10\n", "10\n", "10\n", "10\n", "10\n", "10\n", "10\n", "10\n", "10\n",
    ]  # fmt: skip
    found = play("DDRRRU")
    assert [f[0] for f in found] == ["01\n", "02k\n", "12k\n", "22k\n", "32k\n", "31k\n"]
    assert [f[1:] for f in found] == [(0.0, False, False)] * 5 + [(1.0, True, False)]


def test_edges_walls_and_nonsense_cost_a_step() -> None:
    assert [f[0] for f in play("ULx ")] == ["00\n"] * 4


def test_the_door_is_shut_without_the_key() -> None:
    assert moved(4, INFO, Stand((3, 2)), "U") == Stand((3, 2))
    assert moved(4, INFO, Stand((3, 2), True), "U") == Stand((3, 1), True)


def test_games_end_at_their_limit_and_are_over_then() -> None:
    found = play("U" * 12)
    assert found[-1][1:] == (0.0, False, True) and not found[-2][3]
    with pytest.raises(EnvironmentFault, match="over"):
        play("U" * 13)


def test_distances_are_those_of_every_way_tried() -> None:
    """Against brute force: all words of letters up to some length."""
    away = distances(4, INFO["key"], INFO["door"], INFO["walls"])
    reached, steps = {Stand((0, 0))}, 0
    while Stand(INFO["door"], True) not in reached:
        reached = {moved(4, INFO, s, a) for s in reached for a in MOVES}
        steps += 1
    assert away[Stand((0, 0))] == steps == 6 and away[Stand(INFO["door"], True)] == 0


def test_scripts_are_shortest_ways() -> None:
    for i in range(30):
        problem = keys.problems("train")[i]
        said = [s for s in keys.script(problem, Stream(i)) if s.role == "assistant"]
        assert problem.level == f"steps{len(said)}" and said[-1].reward == 1.0
    assert any(
        len(walk(keys, keys.problems("train")[i], Stream(i), slips=0.8))
        > len(keys.script(keys.problems("train")[i], Stream(i)))
        for i in range(10)
    )


def test_snapshots_lead_back() -> None:
    game = Grid(keys)
    game.reset(PROBLEM, 0)
    game.step(Segment("assistant", "D"))
    kept = game.snapshot()
    first = game.step(Segment("assistant", "D")).segments[0].text
    game.step(Segment("assistant", "R"))
    game.restore(kept)
    assert game.step(Segment("assistant", "D")).segments[0].text == first == "02k\n"


@pytest.mark.slow
def test_splits_share_no_grid_and_are_the_same_every_time() -> None:
    train, test = ({keys.problems(s)[i].prompt for i in range(200)} for s in ("train", "test"))
    assert not train & test
    assert keys.problems("test")[7] == Keys().problems("test")[7] != Keys(seed=1).problems("test")[7]
    with pytest.raises(UnknownNameError, match="keys"):
        keys.problems("dev")
