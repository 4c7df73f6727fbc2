"""Runs of control: killed anywhere and resumed they end as if never stopped; populations; what is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import etude
import processes
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.registry import get_method
from etude.runs.training import Options
from etude.runs.worlds.members import members
from etude.runtime import disk
from solo_runs import alike

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {
    "experience.environments": 2, "experience.steps": 16, "epochs": 2, "policy.network.hidden": "8",
    "critic.network.hidden": "8", "policy.observations": "normalize-observations", "rewards": "normalize-rewards",
}  # fmt: skip
SIX = {"steps": 6 * 32, "seeds": 2, "evaluate": 1, "checkpoint_every": 2, "quiet": True}
OPERATIONS = ("write", "write_tensors", "rename", "make_folder", "cut", "remove")
ENDED = 7


def go(folder: Path, task: str, resume: bool = False) -> None:
    if resume and any((folder / "checkpoints").glob("step-*")):
        etude.resume(folder, quiet=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)
        etude.train("ppo", task, out=folder, set=SMALL, **SIX)


def in_a_child(folder: Path, task: str, at: int) -> bool:
    """Train in a child that dies at its `at`-th change to the disk; whether it came to the end before."""
    child = os.fork()
    if child == 0:
        count = 0
        for name in OPERATIONS:
            real = getattr(disk, name)

            def operation(*args: Any, real: Any = real) -> None:
                nonlocal count
                count += 1
                if count == at:
                    os._exit(9)
                real(*args)

            setattr(disk, name, operation)
        try:
            go(folder, task)
            os._exit(ENDED)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (9, ENDED)
    return code == ENDED


def outcome(folder: Path) -> dict[str, Any]:
    """All that a finished run says, times left out: metrics, the last checkpoint's bytes, the evaluation."""
    lines = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    last = max((folder / "checkpoints").glob("step-*"), key=lambda p: int(p.name[5:]))
    return {
        "metrics": [{k: v for k, v in x.items() if "seconds" not in k and "per_second" not in k} for x in lines],
        "tensors": {p.name: p.read_bytes() for p in last.glob("*.safetensors")},
        "state": (last / "state.json").read_text(),
        "evaluation": json.loads((folder / "evaluation.json").read_text()),
    }


@pytest.mark.slow
@pytest.mark.parametrize(("task", "first"), [("CartPole-v1", 5), ("CartPole-v1", 21), ("Pendulum-v1", 37)])
def test_killed_at_any_write_and_resumed_it_ends_the_same(task: str, first: int, tmp_path: Path) -> None:
    """Each at other changes to the disk: tasks of choices and of numbers, both with short episodes."""
    processes.lean(tmp_path, kill_and_resume, tmp_path, task, first)


def kill_and_resume(path: Path, task: str, first: int) -> None:
    """In a process without threads, which a fork would not take along."""
    torch.set_num_threads(1)
    go(path / "whole", task)
    whole = outcome(path / "whole")
    assert len(whole["metrics"]) == 6
    for at in range(first, 500, 80):
        folder = path / str(at)
        if in_a_child(folder, task, at):
            break
        go(folder, task, resume=True)
        assert outcome(folder) == whole, at
    else:
        raise AssertionError("no run came to its end")
    assert at > 50


@pytest.mark.slow
def test_a_sweep_is_a_population_and_reports_each_setting(tmp_path: Path) -> None:
    done = etude.train(
        "ppo", "cartpole", out=tmp_path / "run", set=SMALL, steps=64, seeds=2, population=["lr=1e-4,1e-2"], evaluate=2,
        quiet=True,
    )  # fmt: skip
    after = done.evaluation["after"]["test"]
    assert list(after) == [f"{m}/lr={lr}" for m in ("return", "return/deterministic") for lr in ("0.0001", "0.01")]
    assert all(len(entry["members"]) == 2 for entry in after.values())
    alone = etude.train(
        "ppo", "cartpole", out=tmp_path / "one", set={**SMALL, "optimizer.lr": 1e-2}, steps=64, seed=1, seeds=1,
        evaluate=2, quiet=True,
    )  # fmt: skip
    assert alike(after["return/lr=0.01"]["members"][1], alone.score("return"))
    assert alike(done.metrics[-1]["members"]["loss"][3], alone.metrics[-1]["members"]["loss"][0])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("epochs=2,3", "is no FIELD=VALUE,VALUE,... of this method"),
        ("experience.steps=16,32", "only real numbers inside formulas can"),
        ("lr", "is no FIELD=VALUE,VALUE,... of this method"),
        ("hidden=8", "fits several fields"),
        ("lr=1e-3,-1", "optimizer.lr must be a number above 0"),
        ("lr=fast", "optimizer.lr must be a number above 0"),
    ],
)
def test_what_cannot_differ_between_members_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        members(get_method("ppo", "control"), Options(population=(text,)))
    assert sentence in str(caught.value)


def test_members_are_every_setting_with_every_seed() -> None:
    found = members(get_method("ppo", "control"), Options(seed=3, seeds=2, population=("lr=1,2", "gamma=0.5,0.9")))
    assert [(m.seed, m.label) for m in found[:3]] == [
        (3, "lr=1, gamma=0.5"),
        (4, "lr=1, gamma=0.5"),
        (3, "lr=1, gamma=0.9"),
    ]
    assert len(found) == 8


@pytest.mark.parametrize(
    ("method", "task", "options", "sentence"),
    [
        (
            "grpo",
            "cartpole",
            {},
            "grpo learns in tasks of enumerable and language, and this is one of control. There fit: a2c",
        ),
        ("a2c", "compose", {}, "a2c"),
        (
            "ppo",
            "compose",
            {"population": ["lr=1,2"]},
            "--population means nothing for compose, a task of language",
        ),
        ("ppo", "cartpole", {"adapter": "lora"}, "--adapter means nothing for cartpole, a task of control"),
        ("ppo", "cartpole", {"set": {"minibatches": 9999}}, "cannot be divided into 9999 minibatches"),
        ("ppo", "cartpole", {"with_": "kl-to-reference"}, "must be a list of StepRegularizer parts, got KLToReference"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_folder_is_made(
    method: str, task: str, options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        etude.train(method, task, out=tmp_path / "run", **options)
    assert sentence in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_policy_is_evaluated_only_where_it_fits(tmp_path: Path) -> None:
    etude.train("ppo", "cartpole", out=tmp_path / "run", set=SMALL, steps=32, seeds=2, evaluate=0, quiet=True)
    found = etude.evaluate(tmp_path / "run", episodes=3)["test"]
    assert {"return", "return/deterministic"} == set(found)
    assert len(found["return"].members) == 2
    assert found["return"].low <= found["return"].value <= found["return"].high
    with pytest.raises(ConfigError, match="do not fit pendulum: its observations or actions"):
        etude.evaluate(tmp_path / "run", task="pendulum", episodes=1)
    with pytest.raises(UnknownNameError):
        etude.evaluate(tmp_path / "run", task="pendulm", episodes=1)
