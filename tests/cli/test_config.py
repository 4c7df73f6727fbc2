"""A run as one file: it says what flags say, flags win, and every run writes the one that repeats it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import TINY, Cli

import etude
from etude.core.errors import ConfigError, UnknownNameError
from etude.runs.config import read_config, to_toml
from etude.runs.training import Options
from etude.runtime.jsonl import JsonLines

SAID = """
task = "compose"
steps = 2
evaluate = 0
gradient-checkpointing = true
sinks = "tensorboard"
with = ["kl-to-reference"]

[set]
problems = 2
"experience.size" = 4
"optimizer.lr" = 1e-3
"""


def metrics(folder: Path | str) -> list[dict[str, Any]]:
    """What a run logged, without its clock."""
    return [
        {k: v for k, v in line.items() if "second" not in k} for line in JsonLines.read(Path(folder) / "metrics.jsonl")
    ]


def written(folder: Path | str, name: str = "method.json") -> dict[str, Any]:
    return dict(json.loads((Path(folder) / name).read_text()))


@pytest.mark.slow
def test_what_a_run_wrote_gives_the_same_numbers(cli: Cli) -> None:
    assert cli("train", "grpo", *TINY, "--seed", 3, "--with", "kl-to-reference", "--out", "one").code == 0
    answer = cli("train", "--config", "one/run.toml", "--quiet", "--out", "two")
    assert answer.code == 0, answer.err
    assert metrics("one") == metrics("two")
    assert written("one") == written("two")
    assert (Path("one") / "run.toml").read_text() == (Path("two") / "run.toml").read_text()


@pytest.mark.slow
def test_a_file_says_what_flags_say_and_flags_win(cli: Cli) -> None:
    Path("a.toml").write_text(SAID)
    answer = cli(
        "train", "dr-grpo", "--config", "a.toml", "--steps", 1, "--set", "optimizer.lr=5e-3", "--quiet", "--out", "x"
    )
    assert answer.code == 0, answer.err
    method, config = written("x"), written("x", "config.json")
    assert method["id"] == "dr-grpo"
    assert "kl-to-reference" in json.dumps(method["regularizers"])
    assert (method["problems"], method["experience"]["size"], method["optimizer"]["lr"]) == (2, 4, 5e-3)
    assert (config["steps"], config["gradient_checkpointing"], config["sinks"]) == (1, True, ["tensorboard"])


@pytest.mark.slow
def test_a_flag_wins_with_its_default_too(cli: Cli) -> None:
    Path("a.toml").write_text('seed = 5\nsteps = 1\nevaluate = 0\n[set]\nproblems = 2\n"experience.size" = 4\n')
    assert cli("train", "--config", "a.toml", "--seed", 0, "--quiet", "--out", "x").code == 0
    assert written("x", "config.json")["seed"] == 0


@pytest.mark.slow
def test_python_reads_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "method: dr-grpo\nsteps: 2\nevaluate: 0\nset:\n  problems: 2\n  experience.size: 4\n"
    )
    run = etude.train(config=tmp_path / "a.yaml", out=tmp_path / "x", steps=1, set={"experience.size": 2}, quiet=True)
    assert (run.method, run.steps) == ("dr-grpo", 1)
    assert (written(run.folder)["problems"], written(run.folder)["experience"]["size"]) == (2, 2)


@pytest.mark.slow
def test_a_method_made_in_python_is_repeated_from_what_the_run_wrote(tmp_path: Path) -> None:
    mine = etude.method("grpo").replace(id="mine", problems=2)
    first = etude.train(mine, steps=1, evaluate=0, set={"experience.size": 4}, out=tmp_path / "one", quiet=True)
    again = etude.train(config=first.folder / "run.toml", out=tmp_path / "two", quiet=True)
    assert written(first.folder) == written(again.folder)
    assert metrics(first.folder) == metrics(again.folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('metod = "grpo"', "no key of .*a.toml named 'metod'. Did you mean 'method'"),
        ("steps = ", "a.toml is no TOML"),
        ("method = 3", "a.toml: method must be a name, got 3"),
        ('reward = "<score>"', "the reward was <score>, which only lived in Python"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path / "a.toml")


def test_a_value_that_does_not_fit_is_refused_as_a_flag_is(cli: Cli) -> None:
    Path("a.toml").write_text("steps = -1\n")
    assert "steps" in cli("train", "--config", "a.toml").err
    with pytest.raises(UnknownNameError, match="grpo"):
        Path("b.toml").write_text('method = "grpoo"\n')
        etude.train(config="b.toml")


def test_a_folder_is_answered_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("steps = 1\n")
    with pytest.raises(ConfigError, match=r"Did you mean .*run.toml"):
        read_config(tmp_path)
    (tmp_path / "a.yml").write_text("- 1\n")
    with pytest.raises(ConfigError, match="names and values"):
        read_config(tmp_path / "a.yml")


def test_a_config_is_not_for_going_on(cli: Cli) -> None:
    Path("a.toml").write_text("steps = 1\n")
    assert "--config" in cli("train", "--resume", "x", "--config", "a.toml").sentence


def test_all_that_was_told_is_read_back(tmp_path: Path) -> None:
    told = Options(steps=7, seed=2, evaluate=3, population=("optimizer.lr=1e-3,1e-4",), adapter="lora", autocast=True)
    sets = ["optimizer=adamw", "optimizer.lr=3e-4", "task.levels=2,3", "aggregation=token-mean"]
    (tmp_path / "a.toml").write_text(to_toml("grpo", "compose", sets, ["clip-cov"], "r.py:score", told))
    assert read_config(tmp_path / "a.toml") == {
        "method": "grpo", "task": "compose", "with": ["clip-cov"], "reward": "r.py:score", "seed": 2, "steps": 7,
        "population": ["optimizer.lr=1e-3,1e-4"], "evaluate": 3, "adapter": "lora", "autocast": True,
        "set": ["optimizer=adamw", "optimizer.lr=0.0003", "task.levels=2,3", "aggregation=token-mean"],
    }  # fmt: skip
    twice = ["optimizer.lr=3e-4", "optimizer=adamw", "optimizer.lr=1e-4"]
    (tmp_path / "b.toml").write_text(to_toml("grpo", "compose", twice, [], None, Options(steps=1)))
    assert read_config(tmp_path / "b.toml")["set"] == twice, "the order matters"
