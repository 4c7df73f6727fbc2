"""Program tests: functions from lists of steps, judged by what they return."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etude.rewards.testing import unit_tests_of
from etude.tasks.language.program_tests import ENDS, STEPS, ProgramTests, program_tests
from sandboxes import needs_sandbox


def steps_of(prompt: str) -> list[str]:
    return prompt.removesuffix(">").split(",")


def test_the_tests_of_a_problem_are_what_its_worked_answer_returns() -> None:
    """By Python itself, here: worked answers are ours."""
    for split in ("train", "test"):
        for problem in program_tests.problems(split)[:60]:
            space: dict[str, object] = {}
            exec(problem.info["demonstration"], space)
            f = space["f"]
            assert callable(f)
            for test in unit_tests_of(problem.info["tests"]):
                assert f(*test.arguments) == test.value
            *steps, end = steps_of(problem.prompt)
            assert set(steps) <= set(STEPS) and end in ENDS and len(problem.info["demonstration"]) < 112


def test_no_function_is_in_both_splits() -> None:
    seen = [{p.prompt for p in program_tests.problems(split)[:300]} for split in ("train", "test")]
    assert not seen[0] & seen[1] and len(seen[1]) > 50
    fixed = ProgramTests(steps=(2,), tests=5, seed=3).problems("train")[7]
    assert fixed.level == "steps2" and len(fixed.info["tests"]) == 5
    assert fixed == ProgramTests(steps=(2,), tests=5, seed=3).problems("train")[7]


@needs_sandbox
@pytest.mark.slow
def test_any_program_that_does_the_same_is_right() -> None:
    problem = next(p for p in program_tests.problems("train") if p.prompt.startswith("sort,") and "sum" in p.prompt)
    worked = problem.info["demonstration"]
    other = f"Here:\n```python\n{worked.replace('def f(x):', 'def f(values):' + chr(10) + ' x=list(values)')}\n```\n"
    wrong = "def f(x): return -1"
    assert [program_tests.score(problem, text) for text in (worked, other, wrong, "", "(" * 999)] == [1, 1, 0, 0, 0]


@needs_sandbox
@pytest.mark.slow
def test_it_trains(tmp_path: Path) -> None:
    from etude.runs.train import train

    train("grpo", "program-tests", out=str(tmp_path / "run"), steps=1, evaluate=1, evaluate_samples=1, quiet=True,
          with_="unit-tests", set=["problems=2", "experience.size=2", "experience.max_tokens=8", "task.steps=1"],
          model="blank:1x32")  # fmt: skip
    (line,) = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert line["programs/raised"] == 1.0 and line["reward/unit-tests/passed"] == 0.0
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["unsafe_no_sandbox"] is False
