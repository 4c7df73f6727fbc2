"""The generated task of two operations: what is right, that one recipe alone solves a problem, and the writer."""

from __future__ import annotations

import pytest

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.tasks import resolve_task
from etude.tasks.language.operations import RECIPES, Operations, line, operations
from etude.tasks.pool import reserved


def test_a_line_is_right_in_every_step_and_comes_to_the_goal() -> None:
    problem = Problem("1", "734:0>")
    assert operations.score(problem, "7+3=0*4=0") == 1 == operations.score(problem, " 7+3=0*4=0\n")
    for wrong in ("7+3=0*4=8", "7+3=1-4=7", "7-3=4*4=6", "3+7=0*4=0", "7+3=0*4", "7+3=0*4=0*", "0", ""):
        assert operations.score(problem, wrong) == 0
    assert operations.score(Problem("1", "734:0>+*:"), "7+3=0*4=0") == 1  # a hint in view changes nothing
    assert operations.score(Problem("1", "734:0>--:"), "7+3=0*4=0") == 1


def test_lines_by_hand() -> None:
    assert [line("259", r) for r in ("--", "*+", "**")] == ["2-5=7-9=8", "2*5=0+9=9", "2*5=0*9=0"]


def test_one_recipe_alone_solves_a_problem_and_splits_share_none() -> None:
    assert resolve_task("operations") == operations
    for split in operations.splits():
        for problem in operations.problems(split)[:100]:
            digits, _, goal = str(problem.prompt)[:-1].partition(":")
            right = [r for r in RECIPES if line(digits, r)[-1] == goal]
            assert right == [problem.info["hint"]]
            assert reserved(f"{digits}:{goal}") == (split == "test")
    with pytest.raises(UnknownNameError):
        operations.problems("dev")
    with pytest.raises(ConfigError, match="at least one entry"):
        Operations(forms=())


def test_whoever_wrote_the_lines_calculates_well_and_follows_hints_right_or_wrong() -> None:
    task = Operations(forms=("plain", "hinted", "hint"))
    seen = {"": 0, ":": 0, "?": 0}
    followed = []
    for problem in task.problems("train")[:600]:
        before, _, behind = str(problem.prompt).partition(">")
        shown, digits = problem.info["demonstration"], before[:3]
        seen[behind[-1:]] += 1
        said = shown if behind == "?" else shown[1] + shown[5]
        assert said in RECIPES and (behind == "?" or shown == line(digits, said))
        assert not behind.endswith(":") or said == behind[:-1]
        followed.append(said == problem.info["hint"])
    assert min(seen.values()) > 150
    right = 0.5 + 0.5 / 8
    assert abs(sum(followed) - 600 * right) < 4 * (600 * right * (1 - right)) ** 0.5
    assert all(p.info["demonstration"] == line(str(p.prompt)[:3], p.info["hint"])
               for p in Operations(slips=0.0).problems("train")[:50])  # fmt: skip
