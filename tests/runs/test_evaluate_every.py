"""Evaluating in the middle of training: where it is written, and that it changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from etude.core.errors import ConfigError
from etude.runtime.jsonl import JsonLines

CONTROL = {
    "experience.environments": 2, "experience.steps": 16, "epochs": 1, "policy.network.hidden": "8",
    "critic.network.hidden": "8",
}  # fmt: skip
RUNS: dict[str, tuple[str, str, dict[str, Any], int, int, list[int]]] = {
    # method, task, options, steps, evaluate_every, training steps after which there is a look
    "language": (
        "grpo", "compose",
        {"set": {"problems": 2, "experience.size": 4, "optimizer.lr": 0.01}, "evaluate": 8, "evaluate_samples": 4},
        4, 2, [2, 4],
    ),
    "control": ("ppo", "cartpole", {"set": CONTROL, "seeds": 2, "evaluate": 2}, 96, 32, [1, 2, 3]),
    "enumerable": ("grpo", "enumerable", {"seeds": 2}, 3, 1, [1, 2, 3]),
}  # fmt: skip


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    """A log without its clock."""
    return [{k: v for k, v in line.items() if "second" not in k} for line in JsonLines.read(folder / name)]


@pytest.mark.slow
@pytest.mark.parametrize("world", RUNS)
def test_looking_changes_nothing_and_ends_where_the_run_does(world: str, tmp_path: Path) -> None:
    method, task, options, steps, every, looks = RUNS[world]
    plain, looked = tmp_path / "plain", tmp_path / "looked"
    etude.train(method, task, out=plain, steps=steps, quiet=True, **options)
    etude.train(method, task, out=looked, steps=steps, evaluate_every=every, quiet=True, **options)
    assert lines(plain, "metrics.jsonl") == lines(looked, "metrics.jsonl")
    assert not (plain / "evaluations.jsonl").exists()
    found = lines(looked, "evaluations.jsonl")
    assert [line["step"] for line in found] == looks
    (split,) = set(found[-1]) - {"step"}
    sides = json.loads((looked / "evaluation.json").read_text())
    before, after = (
        {k: np.mean(sides[when][split][k].get("members", sides[when][split][k]["value"])) for k in found[-1][split]}
        for when in ("before", "after")
    )
    assert {k: np.mean(v) for k, v in found[-1][split].items()} == pytest.approx(after)
    assert before != pytest.approx(after), "what is looked at must be the policy of that step"


@pytest.mark.slow
def test_a_run_that_goes_on_has_each_look_once(tmp_path: Path) -> None:
    method, task, options, steps, every, _ = RUNS["enumerable"]
    options = {**options, "evaluate_every": every, "quiet": True}
    whole = etude.train(method, task, out=tmp_path / "whole", steps=steps, **options).folder
    parts = etude.train(method, task, out=tmp_path / "parts", steps=2, **options).folder
    etude.resume(parts, steps=steps, quiet=True)
    assert lines(parts, "evaluations.jsonl") == lines(whole, "evaluations.jsonl")


def test_what_would_evaluate_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="evaluate=0 that nothing is evaluated"):
        etude.train("grpo", evaluate=0, evaluate_every=2, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="reward-model trains what does not act, so --evaluate-every"):
        etude.train("reward-model", "preferences", evaluate_every=2, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="--evaluate-samples means nothing for cartpole"):
        etude.train("ppo", "cartpole", evaluate_samples=2, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
