"""The verbs from Python: functions, methods and tasks that only live there."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

import etude
from etude.core.episodes import Problem
from etude.core.errors import CheckpointError, ConfigError, UnknownNameError
from etude.core.task import LanguageTask
from etude.objectives.policy_gradient import ClippedSurrogate

SMALL = {"problems": 2, "experience.size": 4}


class Echo(LanguageTask):
    """Say the letter back."""

    id: ClassVar[str] = "echo"
    max_tokens: ClassVar[int] = 4
    letters: str = "abc"

    def problems(self, split: str) -> Sequence[Problem]:
        return [Problem(f"{split}/{c}", f"{c}>", c) for c in self.letters]

    def score(self, problem: Problem, completion: str) -> float:
        return float(completion == problem.answer)


@pytest.mark.slow
def test_a_method_changed_by_replace_on_a_task_object(tmp_path: Path) -> None:
    method = etude.method("grpo").replace(id="wide", objective=ClippedSurrogate(low=0.3, high=0.4))
    result = etude.train(method, Echo(letters="xyz"), set=SMALL, steps=2, evaluate=2, out=tmp_path / "run", quiet=True)
    assert (result.method, result.task, result.steps) == ("wide", "echo", 2)
    assert [line["step"] for line in result.metrics] == [1, 2]
    assert 0 <= result.score() <= 1
    stored = json.loads((result.folder / "method.json").read_text())
    assert stored["objective"] == {"part": "clipped-surrogate", "low": 0.3, "high": 0.4}
    assert stored["parent"] == "grpo"
    config = json.loads((result.folder / "config.json").read_text())
    assert (config["task"], config["task_fields"]) == (f"{__name__}:Echo", ["task.letters=xyz"])
    assert etude.resume(result.folder, quiet=True).steps == 2


@pytest.mark.slow
def test_a_task_and_a_reward_that_have_no_name_are_given_again(tmp_path: Path) -> None:
    class Shout(Echo):
        """Louder."""

    def length(completions: list[str]) -> list[float]:
        return [float(len(c)) for c in completions]

    task, options = Shout(letters="xyz"), {"set": SMALL, "evaluate": 0, "quiet": True}
    stopped, whole = (
        etude.train("grpo", task, reward=length, steps=n, out=tmp_path / str(n), **options) for n in (1, 2)
    )
    with pytest.raises(CheckpointError, match=r"the task <.*Shout>, which only lived in Python"):
        etude.resume(stopped.folder, steps=2, reward=length)
    with pytest.raises(CheckpointError, match=r"the reward <.*length>, which only lived in Python"):
        etude.resume(stopped.folder, steps=2, task=task)
    with pytest.raises(CheckpointError, match=r"source of the task .* is not what"):
        etude.resume(stopped.folder, steps=2, task=Shout(letters="xy"), reward=length)
    done = etude.resume(stopped.folder, steps=2, task=task, reward=length, quiet=True)
    weights = [(r.checkpoint / "state.safetensors").read_bytes() for r in (done, whole)]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_a_function_of_this_process_as_the_reward(tmp_path: Path) -> None:
    seen: list[int] = []

    def length(completions: list[str]) -> list[float]:
        seen.append(len(completions))
        return [float(len(c)) for c in completions]

    result = etude.train("grpo", set=SMALL, reward=length, steps=2, evaluate=0, out=tmp_path / "run", quiet=True)
    assert seen.count(8) == 2
    for line in result.metrics:
        assert line["reward"] == pytest.approx(line["reward/callable-reward"])
    with pytest.raises(CheckpointError, match=r"the reward <.*length>, which only lived in Python"):
        etude.resume(result.folder, steps=3)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_and_evaluate_takes_its_task(tmp_path: Path) -> None:
    options = {"set": {**SMALL, "task.levels": (1, 2)}, "steps": 2, "evaluate": 0, "quiet": True}
    first, second = (etude.train("dr-grpo", out=tmp_path / name, **options) for name in "ab")
    weights = [r.checkpoint / "state.safetensors" for r in (first, second)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    other = etude.train("dr-grpo", out=tmp_path / "c", seed=1, **options)
    assert (other.checkpoint / "state.safetensors").read_bytes() != weights[0].read_bytes()
    config = json.loads((first.folder / "config.json").read_text())
    assert config["task_fields"] == ["task.levels=1,2"]
    found = etude.evaluate(first.folder, k=(1, 2), problems=2, split="test")
    assert set(found) == {"test"}
    assert set(found["test"]) == {"pass@1", "pass@2", "avg@2", "maj@2", "reward"}


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"stepz": 3}, UnknownNameError, "no option named 'stepz'. Did you mean 'steps'"),
        ({"steps": 0}, ConfigError, "steps must be a whole number of at least 1 or none, got 0"),
        ({"steps": 2.5}, ConfigError, "steps must be a whole number of at least 1 or none, got 2.5"),
        ({"set": {"optimizer.lrr": 1}}, UnknownNameError, "Did you mean 'lr'"),
        ({"set": "optimizer.lr=0"}, ConfigError, "AdamW.lr must be a number above 0 or none, got '0'"),
        ({"with_": "kl-to-referenc"}, UnknownNameError, "Did you mean 'kl-to-reference'"),
        ({"reward": 3}, ConfigError, "3"),
    ],
)
def test_refused_before_a_folder_is_made(
    tmp_path: Path, options: dict[str, object], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error) as caught:
        etude.train("grpo", out=tmp_path / "run", **options)  # type: ignore[arg-type]
    assert sentence in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_compare_refuses_one_name() -> None:
    with pytest.raises(ConfigError, match="at least two methods"):
        etude.compare("grpo")


def test_methods_and_tasks_are_verbs_whatever_was_imported() -> None:
    """Importing the folder `etude.methods` puts it in the place of the function of that name."""
    before = etude.methods(), etude.tasks()
    for folder in ("etude.methods.rlvr.grpo", "etude.tasks.language.compose"):
        importlib.import_module(folder)
    assert (etude.methods(), etude.tasks()) == before
    assert "grpo" in etude.methods()
    assert "compose" in etude.tasks()
    assert "grpo" not in etude.tasks()
    assert etude.methods.rlvr.grpo.grpo is etude.method("grpo")


def test_tasks_by_name() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'compose'"):
        etude.task("compos")
    assert isinstance(etude.task("compose"), LanguageTask)
