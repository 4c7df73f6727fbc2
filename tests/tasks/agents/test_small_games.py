"""Text maze, menus and Wordle: each by hand, and against an independent count."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from etude.core.episodes import Problem, Segment
from etude.policies.agent_words import APPS, MOVES
from etude.tasks.agents.menus import HOME, Menus, menus
from etude.tasks.agents.text_maze import TextMaze, distances, stepped, text_maze, walls
from etude.tasks.agents.wordle import Wordle, marks, wordle


def play(game: Any, problem: Problem, texts: list[str]) -> list[Any]:
    game.reset(problem, 0)
    return [game.step(Segment("assistant", text)) for text in texts]


# Maze


@pytest.mark.parametrize("size", [3, 5, 10])
def test_every_cell_can_be_reached_and_ways_lead_back(size: int) -> None:
    ways = TextMaze(size=size, loops=0.0, max_turns=200).ways
    assert len(distances(ways, (0, 0))) == size**2
    assert sum(map(len, ways.values())) == 2 * (size**2 - 1), "a tree"
    back = {"up": "down", "down": "up", "left": "right", "right": "left"}
    assert all(back[m] in ways[stepped(c, m)] for c, moves in ways.items() for m in moves)
    assert sum(map(len, TextMaze(size=size, loops=1.0).ways.values())) == 4 * size * (size - 1), "no wall"


def test_walls_stop_and_the_goal_ends() -> None:
    ways = text_maze.ways
    cell = next(c for c in ways if len(ways[c]) == 2)
    move = ways[cell][0]
    shut = next(m for m in MOVES if m not in ways[cell])
    problem = Problem("1", "", info={"start": cell, "goal": stepped(cell, move)})
    found = play(TextMaze(cost=0.5).environment(), problem, [shut, "north", move])
    assert [r.segments[0].text for r in found] == [f" at {cell[0]} {cell[1]}\n"] * 2 + [" there\n"]
    assert [(r.reward, r.terminated, r.info["valid"]) for r in found] == [
        (-0.5, False, True), (-0.5, False, False), (1.0, True, True),
    ]  # fmt: skip
    unseen = play(TextMaze(seen="walls").environment(), problem, [shut])
    assert unseen[0].segments[0].text == f"{walls(ways[cell])}\n" and f" {shut}" in unseen[0].segments[0].text


def test_distances_are_those_of_every_way_tried() -> None:
    goal, ways = (4, 1), text_maze.ways
    away = distances(ways, goal)
    for cell in list(ways)[::6]:
        reached, steps = {cell}, 0
        while goal not in reached:
            reached = {stepped(c, m) for c in reached for m in ways[c]}
            steps += 1
        assert away[cell] == steps


# Menus


def test_taps_by_hand() -> None:
    folder = next(f for f, below in menus.tree.items() if "network" in below)
    on = {s: False for menu in APPS.values() for s in menu}
    state = {"on": on, "wanted": {"wifi": True, "spam": True}, "screen": HOME}
    up = next(f for f, below in menus.tree.items() if "mail" in below)
    texts = [f"tap {folder}", "tap wifi", "tap network", "tap wifi", "tap wifi", "tap wifi", "back", "back",
             f"tap {up}", "tap mail", "tap spam"]  # fmt: skip
    found = play(menus.environment(), Problem("1", "", info=state), texts)
    shown = [r.segments[0].text for r in found]
    assert shown[0] == f" {folder} {' '.join(menus.tree[folder])}\n"
    assert shown[1] == " no\n" and not found[1].info["valid"], "not on this screen"
    assert shown[2:4] == [
        " network wifi off bluetooth off hotspot off\n", " network wifi on bluetooth off hotspot off\n",
    ]  # fmt: skip
    assert [r.info["right"] for r in found] == [0, 0, 0, 1, 0, 1, 1, 1, 1, 1, 2]
    assert shown[7] == f" home {' '.join(menus.tree[HOME])}\n" and found[-1].terminated and found[-1].reward == 1.0
    assert on["wifi"] is False, "the problem stays as it was"


def test_levels_count_the_taps_of_the_script_and_every_menu_is_somewhere() -> None:
    from etude.core.streams import Stream

    for i in range(10):
        problem = Menus(wanted=3, max_turns=30).problems("train")[i]
        said = [s for s in Menus(wanted=3, max_turns=30).script(problem, Stream(i)) if s.role == "assistant"]
        assert problem.level == f"taps{len(said)}"
    below = [entry for screen in menus.tree.values() for entry in screen]
    assert len(below) == len({*below}) == 3 + 9 + 27


# Wordle


def test_marks_are_those_of_counting_letter_by_letter() -> None:
    """Against a slow rule: a letter that is not right is elsewhere if the word has it more often than it was used up
    by right ones and by earlier ones elsewhere."""
    for word, guess in itertools.islice(itertools.product(("abab", "aabb", "cabc"), ("baba", "aaaa", "bccb")), 9):
        expected = ""
        for k, letter in enumerate(guess):
            if word[k] == letter:
                expected += "+"
                continue
            there = sum(w == letter and w != g for w, g in zip(word, guess))
            used = sum(g == letter and word[j] != g for j, g in enumerate(guess[:k]))
            expected += "?" if used < there else "-"
        assert marks(word, guess) == expected
    assert marks("kito", "keto") == "+-++" and marks("kito", "kito") == "++++"


def test_a_game_of_words() -> None:
    first, second = wordle.list[:2]
    found = play(Wordle(cost=0.25).environment(), Problem("1", "", second), ["xxxx", first, " ".join(second)])
    assert [r.segments[0].text for r in found] == [" no\n", f"{marks(second, first)}\n", " there\n"]
    assert [r.reward for r in found] == [-0.25, -0.25, 1.0] and found[-1].terminated
    assert len({*wordle.list}) == 60 and all(len(w) == 4 for w in wordle.list)
