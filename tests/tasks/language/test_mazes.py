"""Mazes: every cell is reached in one way, walks that meet a wall count for nothing, and the divide."""

from __future__ import annotations

import pytest

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.tasks.language.mazes import Mazes, mazes

SMALL = Problem("1", "#######\n#S..#G#\n###.#.#\n#.....#\n#######>")


@pytest.mark.parametrize("said, right", [("RDRU", 1.0), ("RDLRRU", 1.0), (" RDRU\n", 1.0), ("RRD", 0.0), ("RDR", 0.0),
                                         ("", 0.0), ("RDRX", 0.0), ("rdru", 0.0), ("DRRU", 0.0)])  # fmt: skip
def test_only_walks_that_end_on_the_goal_count(said: str, right: float) -> None:
    assert mazes.score(SMALL, said) == right


@pytest.mark.parametrize("task", [Mazes(), Mazes(rows=2, columns=5), Mazes(rows=4, columns=4, loops=3)])
def test_a_maze_is_a_tree_with_as_many_loops_as_asked_for(task: Mazes) -> None:
    for problem in task.problems("train")[:30]:
        lines = str(problem.prompt).removesuffix(">").split("\n")
        assert len(lines) == 2 * task.rows + 1 and {len(x) for x in lines} == {2 * task.columns + 1}
        free = sum(c != "#" for line in lines for c in line)
        cells = task.rows * task.columns
        assert free == cells + (cells - 1) + task.loops
        assert sum(line.count("S") + line.count("G") for line in lines) == 2


def test_worked_answers_are_right_and_no_walk_is_shorter() -> None:
    for problem in Mazes(loops=1).problems("train")[:40]:
        path = str(mazes.demonstration(problem))
        assert mazes.score(problem, path) == 1.0 and problem.level == f"steps{len(path)}"
        walks = [""]
        for _ in range(len(path) - 1):
            walks = [w + letter for w in walks for letter in "UDLR"]
            if len(walks) > 5000:
                break
            assert not any(mazes.score(problem, w) for w in walks)


@pytest.mark.slow
def test_splits_share_no_maze_and_problems_are_the_same_every_time() -> None:
    train = {str(p.prompt) for p in mazes.problems("train")[:500]}
    assert not train & {str(p.prompt) for p in mazes.problems("test")[:200]}
    assert Mazes().problems("test")[7] == mazes.problems("test")[7]
    with pytest.raises(UnknownNameError, match="mazes"):
        mazes.problems("dev")
    with pytest.raises(ConfigError, match=r"Mazes.rows must be"):
        Mazes(rows=1)
