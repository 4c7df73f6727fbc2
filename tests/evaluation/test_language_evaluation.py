"""What training and evaluation report where a reward function scores: accuracy is the task's, the reward its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.core.episodes import Episode, Problem
from etude.core.errors import RewardError
from etude.evaluation.language import Evaluation, evaluate_split
from etude.experience.groups import Groups
from etude.methods.rlvr.dapo import dapo
from etude.methods.rlvr.grpo import grpo
from etude.optimizers.adam import AdamW
from etude.rewards.function import CallableReward
from etude.runs.training import Options, compose_method, compose_task
from etude.runs.worlds.language import evaluation
from etude.tasks.language.files import DataFile
from language_toys import Toy, make_loop
from plain_rewards import even, two

small = grpo.replace(problems=2, experience=Groups(size=4), optimizer=AdamW(lr=1e-3))


def write(folder: Path, **columns: Any) -> str:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{i}:", "id": str(i), **columns}) + "\n" for i in range(6)))
    return str(path)


def looked(method: Any, task: Any, reward: Any) -> tuple[Any, dict[str, float], dict[str, Any]]:
    """A loop, the metrics of its first step, and an evaluation of the train split before it."""
    goal = compose_task(
        task, ["task.test_fraction=0", "task.max_tokens=8"] if isinstance(task, DataFile) else [], reward
    )
    loop = make_loop(compose_method(method, reward=reward), goal)
    found = evaluation(loop, goal, Options(evaluate=6, quiet=True), "before").scores
    return loop, loop.step().metrics, next(iter(found.values()))


@pytest.mark.slow
@pytest.mark.parametrize("method", [small, dapo.replace(problems=2, experience=Groups(size=4))])
def test_a_reward_function_does_not_decide_what_is_right(method: Any, tmp_path: Path) -> None:
    """A random model has no answer right, whatever the function pays."""
    task = DataFile(write(tmp_path, answer="an answer that no random model gives"))
    loop, metrics, found = looked(method, task, two)
    assert metrics["accuracy"] == 0 and metrics["reward/function-reward"] == 2
    assert (found["pass@1"]["value"], found["reward"]["value"]) == (0, 2)
    assert loop.task.success(Episode(Problem("1", "p", "a"), outcome=2.0)) is False


@pytest.mark.slow
def test_on_a_named_task_an_evaluation_reports_the_functions_reward_too() -> None:
    _, metrics, found = looked(small, Toy(scoring=lambda problem, said: 0.25), two)
    assert (metrics["accuracy"], metrics["reward"]) == (0, 2)
    assert (found["pass@1"]["value"], found["reward"]["value"]) == (0, 2)


@pytest.mark.slow
def test_without_answers_an_outcome_of_one_is_a_success_whatever_the_penalties(tmp_path: Path) -> None:
    """The overlong penalty lowers the reward of what was cut, and says nothing about whether it is right."""
    method = dapo.replace(problems=2, experience=Groups(size=4, max_tokens=4))
    loop, metrics, found = looked(method, DataFile(write(tmp_path)), lambda completions: [1.0] * len(completions))
    assert metrics["accuracy"] == 1 and metrics["reward/overlong-penalty"] < 0
    assert found["pass@1"]["value"] == found["reward"]["value"] == 1
    assert [loop.task.success(Episode(Problem("1", "p"), outcome=x)) for x in (0.9, 1.0)] == [False, True]


@pytest.mark.slow
def test_what_no_reward_applies_to_counts_neither_for_nor_against(tmp_path: Path) -> None:
    _, metrics, found = looked(small.replace(problems=6), DataFile(write(tmp_path)), even)
    assert metrics["accuracy"] == metrics["reward"] == 1 and metrics["no_reward"] > 0
    assert found["pass@1"]["value"] == found["reward"]["value"] == 1
    with pytest.raises(RewardError, match="No reward applies to any completion of the split 'train'"):
        looked(small, DataFile(write(tmp_path)), lambda completions: [None] * len(completions))


@pytest.mark.slow
def test_parts_see_what_is_solved_in_a_file_without_answers(tmp_path: Path) -> None:
    seen: list[bool] = []

    class Sees(AdamW):
        """Keeps what the batch calls solved."""

        def before_update(self, batch: Any) -> None:
            seen.extend(batch.solved.tolist())

    looked(small.replace(optimizer=Sees(lr=1e-3)), DataFile(write(tmp_path)), two)
    assert seen == [True] * 8


def test_the_mean_reward_leaves_out_what_has_none() -> None:
    rewards = np.array([[1.0, np.nan], [np.nan, np.nan], [0.0, 0.5]])
    found = Evaluation("test", np.zeros((3, 2), bool), rewards, [], []).summary((1,))
    assert found["reward"].value == pytest.approx((1 + 0.25) / 2)
    none = Evaluation("test", np.zeros((1, 2), bool), np.full((1, 2), np.nan), [], []).summary((1,))
    assert "reward" not in none


def test_a_function_scores_an_evaluation_beside_the_task() -> None:
    loop = make_loop(small, Toy(scoring=lambda problem, said: 1.0))
    found = evaluate_split(loop.policy, loop.task, "test", samples=2, rewards=[CallableReward(two).bind()])
    assert found.correct.all() and (found.rewards == 2).all()
