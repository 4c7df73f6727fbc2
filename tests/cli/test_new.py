"""`etude new`: starts that pass `etude check`, and train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Cli

from etude.runs.new import KINDS

CHECKED = {
    "task": "its_own.py",
    "reward": "its_own.py:its_own",
    "method": "its_own.py",
    "environment": "its_own.py:ItsOwn",
    "config": "its-own.toml",
}


@pytest.mark.parametrize("kind", CHECKED)
def test_a_start_has_no_faults_and_no_warnings(cli: Cli, kind: str) -> None:
    answer = cli("new", kind, "its-own")
    assert answer.code == 0 and answer.out.startswith(f"{CHECKED[kind].partition(':')[0]} is there. Next:"), answer.err
    assert f"  etude check {CHECKED[kind]}\n" in answer.out
    checked = cli("check", CHECKED[kind], "--json", *(["--steps", 500] if kind == "environment" else []))
    found = json.loads(checked.out)
    assert checked.code == 0
    assert {f["level"] for f in found} == {"fact"}, found


@pytest.mark.slow
def test_the_starts_train_together(cli: Cli) -> None:
    for kind in KINDS:
        assert cli("new", kind, "my-own-" + kind).code == 0
    small = ["--set", "problems=2", "--evaluate", 0, "--quiet", "--out"]
    answer = cli("train", "my_own_method.py", "--task", "my_own_task.py", "--steps", 1, *small, "task")
    assert answer.code == 0, answer.err
    answer = cli("train", "grpo", "--reward", "my_own_reward.py:my_own_reward", "--steps", 1, *small, "reward")
    assert answer.code == 0, answer.err
    assert {"reward/my_own_reward/right", "reward/my_own_reward/length"} <= {
        *json.loads(Path("reward/metrics.jsonl").read_text())
    }
    answer = cli(
        "train", "ppo", "--task", "my_own_environment.py:MyOwnEnvironment", "--steps", 64, "--seeds", 1,
        "--set", "experience.steps=8", "--evaluate", 0, "--quiet", "--out", "control",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    told = ["--steps", 1, "--set", "problems=2", "--evaluate", 2, "--evaluate-every", 1, "--quiet"]
    answer = cli("train", "--config", "my-own-config.toml", *told, "--out", "config")
    assert answer.code == 0, answer.err
    assert '"optimizer.lr" = 0.0003' in Path("config/run.toml").read_text()


@pytest.mark.parametrize(
    ("kind", "name", "sentence"),
    [
        ("tusk", "mine", "There is no kind of start named 'tusk'. Did you mean 'task'?"),
        ("task", "3x", "begins with a letter, as in my-task; got '3x'"),
        ("task", "../x", "got '../x'"),
        ("task", "json", "json.py would take the place of Python's own module json"),
    ],
)
def test_a_name_that_cannot_be(cli: Cli, kind: str, name: str, sentence: str) -> None:
    assert sentence in cli("new", kind, name).sentence
    assert not list(Path().glob("*.py"))


def test_nothing_is_written_over(cli: Cli) -> None:
    Path("mine.py").write_text("x = 1\n")
    assert "There is a mine.py already, which is left as it is" in cli("new", "task", "mine").sentence
    assert Path("mine.py").read_text() == "x = 1\n"


# What `etude check` says of methods and reward functions


def test_a_method_is_checked_with_its_own_parts(cli: Cli) -> None:
    cli("new", "method", "mine")
    text = Path("mine.py").read_text()
    Path("mine.py").write_text(text.replace("return batch.action_mask.sum(-1)", "return batch.action_mask"))
    answer = cli("check", "mine.py")
    assert answer.code == 1
    assert "ShorterFirst.weigh(batch) must return [B]" in answer.out
    found = json.loads(cli("check", "dapo", "--json").out)
    assert [f["level"] for f in found] == ["fact"]
    assert "against grpo it changes rewards.overlong-penalty" in found[0]["sentence"]


def test_a_file_of_a_run_is_checked_as_train_would_and_nothing_is_written(cli: Cli) -> None:
    cli("new", "config", "mine")
    text = Path("mine.toml").read_text()
    before = {*Path().iterdir()}
    right = cli("check", "mine.toml")
    assert right.code == 0 and "grpo on compose: 150 steps, seed 0." in right.out, right.err
    assert "etude train --config mine.toml" in right.out
    wrong = {
        ("steps = 150", "stepz = 150"): "Did you mean 'steps'?",
        ('"optimizer.lr"', '"optimizer.rate"'): "There is no field of AdamW named 'rate'",
        ('"compose"', '"CartPole-v1"'): "grpo",
        ("evaluate_every = 50", 'stop_when = "test/pass@1 > 0.9"'): "--evaluate-every",
    }
    for (was, becomes), sentence in wrong.items():
        assert was in text
        Path("mine.toml").write_text(text.replace(was, becomes))
        answer = cli("check", "mine.toml")
        assert answer.code == 1 and sentence in " ".join(answer.out.split()), answer.out + answer.err
    Path("mine.toml").unlink()
    assert "There is no file mine.toml" in cli("check", "mine.toml").out
    assert {*Path().iterdir()} == before - {Path("mine.toml")}


@pytest.mark.slow
def test_a_reward_function_is_called_as_a_run_would(cli: Cli) -> None:
    Path("bad.py").write_text("def bad(completions):\n    return [1.0]\n")
    answer = cli("check", "bad.py:bad")
    assert answer.code == 1, answer.out
    assert "bad" in answer.out and "6" in answer.out
