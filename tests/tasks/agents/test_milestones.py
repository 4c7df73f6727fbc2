"""Milestones: a game by hand, what cannot be done, the four milestones, shortest ways."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from etude.core.episodes import Problem, Segment
from etude.core.errors import ConfigError
from etude.core.streams import Stream
from etude.tasks.agents.milestones import Milestones, milestones

INFO = {
    "row": ["hall", "attic", "kitchen", "cellar"], "lies": {"key": "attic", "lamp": "cellar", "rope": "hall"},
    "thing": "lamp", "goal": "attic", "start": "kitchen",
}  # fmt: skip
PROBLEM = Problem("1", "", info=INFO)
WAY = ["go attic", "take key", "go kitchen", "open", "go cellar", "take lamp", "go kitchen", "go attic", "put lamp"]


def play(texts: list[str], task: Milestones = milestones) -> list[Any]:
    game = task.environment()
    game.reset(PROBLEM, 0)
    return [game.step(Segment("assistant", text)) for text in texts]


def test_a_game_by_hand() -> None:
    found = play(WAY)
    assert [r.segments[0].text for r in found] == [
        " attic\n", " got key\n", " kitchen\n", " opened\n", " cellar\n", " got lamp\n", " kitchen\n", " attic\n",
        " put lamp\n",
    ]  # fmt: skip
    assert [r.info["milestones"] for r in found] == [0, 1, 1, 2, 2, 3, 3, 3, 4]
    assert [r.reward for r in found] == [0.0] * 8 + [1.0] and found[-1].terminated and found[-1].info["success"]


def test_each_milestone_is_paid_once() -> None:
    paid = Milestones(pays="milestones")
    again = [*WAY[:2], "put key", "take key", *WAY[2:6], "put lamp", "take lamp", *WAY[6:]]
    assert [r.reward for r in play(again, paid)] == [0, 0.25, 0, 0, 0, 0.25, 0, 0.25, 0, 0, 0, 0, 0.25]


def test_the_share_of_milestones_is_paid_in_the_last_turn() -> None:
    paid = Milestones(pays="share")
    assert [r.reward for r in play(WAY, paid)] == [0.0] * 8 + [1.0]
    for last in ("go kitchen", "open"):  # what can be done, and what cannot
        late = play([*WAY[:4], *["open"] * 11, last], paid)
        assert [r.reward for r in late] == [0.0] * 15 + [0.5] and late[-1].truncated


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ([], "go cellar"),  # locked
        ([], "go hall"),  # two rooms away
        ([], "go kitchen"),  # where one is
        ([], "open"),  # without the key
        (["go attic", "take key"], "open"),  # from elsewhere
        ([], "take lamp"), ([], "put lamp"), (["go attic"], "take rope"), ([], "take"), ([], "go"), ([], ""),
        (WAY[:4], "open"),  # it is
    ],
)  # fmt: skip
def test_what_cannot_be_done_changes_nothing(before: list[str], text: str) -> None:
    game = milestones.environment()
    game.reset(PROBLEM, 0)
    for said in before:
        assert game.step(Segment("assistant", said)).info["valid"]  # type: ignore[index]
    state = game.snapshot()["state"]
    result = game.step(Segment("assistant", text))
    assert result.segments[0].text == " no\n" and result.info["valid"] is False  # type: ignore[index]
    assert game.snapshot()["state"] == state


def test_a_thing_that_nobody_wants_is_no_delivery() -> None:
    found = play(["go attic", "go hall", "take rope", "go attic", "put rope"])
    assert not any(r.reward or r.terminated for r in found)


@pytest.mark.slow
def test_levels_are_the_shortest_ways() -> None:
    """Against breadth-first search over all that can be said."""
    for i in range(6):
        problem = milestones.problems("train")[i]
        game = milestones.environment()
        game.reset(problem, 0)
        things = ["key", problem.info["thing"]]
        words = [f"go {r}" for r in problem.info["row"]] + ["open"]
        words += [f"{verb} {thing}" for verb in ("take", "put") for thing in things]
        queue, met = deque([(0, game.snapshot())]), set[str]()
        while queue:
            steps, kept = queue.popleft()
            for word in words:
                game.restore({**kept, "turn": 0})
                result = game.step(Segment("assistant", word))
                after = game.snapshot()
                if result.terminated:
                    queue.clear()
                    break
                if result.info["valid"] and (mark := str(after["state"])) not in met:  # type: ignore[index]
                    met.add(mark)
                    queue.append((steps + 1, after))
        script = [s for s in milestones.script(problem, Stream(i)) if s.role == "assistant"]
        assert problem.level == f"steps{steps + 1}" == f"steps{len(script)}"


def test_games_must_be_long_enough() -> None:
    with pytest.raises(ConfigError, match="at least 12 for 4 rooms, got 11"):
        Milestones(max_turns=11)
