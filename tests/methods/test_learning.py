"""The foundation methods really learn, from `tiny`, each in seconds on an idle core.

Margins: measured gains are half as large again or more; a policy that is not trained, or trained on a wrong sign, has
none at all.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from etude.core.kinds import TokenMethod
from etude.core.method import Method
from etude.core.registry import get_method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.evaluation.language import evaluate_split
from etude.experience.data import Pairs
from etude.experience.groups import Groups
from etude.loops.language import LanguageLoop
from etude.policies.language import LanguagePolicy
from etude.rewards.model import values
from etude.tasks import resolve_task

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


RATE = 3e-4
"""Three times the rate that `tiny` has by default: as much is learned in a third of the steps."""


def train(method: Method, task: str, steps: int, rate: float = RATE) -> LanguagePolicy:
    policy = LanguagePolicy.load("tiny", device="cpu")
    assert isinstance(method, TokenMethod) and method.optimizer is not None
    faster = method.replace(optimizer=method.optimizer.replace(lr=rate))
    loop = LanguageLoop(faster, resolve_task(task), policy, seed=1, steps=steps)
    for _ in range(steps):
        loop.step()
    return policy


def accuracy(policy: LanguagePolicy, split: str = "test") -> float:
    """pass@1 on 100 problems of `compose`, each answered four times."""
    return float(evaluate_split(policy, resolve_task("compose"), split, problems=100, samples=4).correct.mean())


@pytest.fixture(scope="module")
def start() -> float:
    return accuracy(LanguagePolicy.load("tiny", device="cpu"))


@pytest.fixture(scope="module")
def scorer() -> LanguagePolicy:
    return train(get_method("reward-model").replace(problems=16), "preferences", 40, 4e-4)


@pytest.mark.parametrize(
    ("name", "task", "steps", "gain"),
    [
        ("reinforce", "compose", 6, 0.2),
        ("grpo", "compose", 6, 0.2),
        ("ppo", "compose", 8, 0.2),
        ("sft", "compose", 8, 0.25),
        ("dpo", "preferences", 15, 0.12),
    ],
)
def test_accuracy_rises(start: float, name: str, task: str, steps: int, gain: float) -> None:
    method = get_method(name)
    few = isinstance(method.experience, Groups)
    assert accuracy(train(method.replace(problems=16) if few else method, task, steps)) > start + gain


def test_a_reward_model_prefers_right_answers_to_new_problems(scorer: LanguagePolicy) -> None:
    task = resolve_task("preferences")
    problems = [task.problems("test")[i] for i in range(200)]
    scores = torch.tensor(values(scorer, Pairs().collect(problems, Context(task, scorer, Stream(0)))))
    chosen, rejected = scores.view(-1, 2).T
    assert (chosen > rejected).float().mean() > 0.7


def test_a_learned_reward_teaches_what_nobody_checked(start: float, scorer: LanguagePolicy, tmp_path: Path) -> None:
    scorer.save(tmp_path)
    method = get_method("ppo-rlhf")
    rewards = tuple(p.replace(model=str(tmp_path)) if p.name == "reward-model" else p for p in method.rewards)
    assert accuracy(train(method.replace(rewards=rewards, problems=8), "preferences", 6, 5e-4)) > start + 0.15
