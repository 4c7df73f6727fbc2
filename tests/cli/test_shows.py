"""What is said on the terminal when a run is over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etude.cli import shows
from etude.runs.training import Result
from etude.runs.worlds import control

SPREAD = {"low": 0.0, "high": 2.0}


def finished(folder: Path, reward: str | None, notes: list[str], pay: float = 0.0) -> Result:
    """A run of language whose accuracy was 0 before and after."""
    (folder / "config.json").write_text(json.dumps({"task": "compose", "reward": reward}))
    (folder / "method.json").write_text(json.dumps({"advantages": {"part": "group-advantage"}}))
    side = {"test": {"pass@1": {"value": 0.0, **SPREAD}, "reward": {"value": pay, **SPREAD}}}
    found: dict[str, Any] = {"before": side, "after": side, "samples": {"before": [], "after": []}}
    return Result(folder, "grpo", "compose", 2, 1.0, folder / "checkpoint", found, notes)


def test_that_nothing_was_learned_comes_before_what_to_try_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shows.result(finished(tmp_path, None, ["Nothing was learned: it was too hard."]))
    said = capsys.readouterr().out
    assert said.index("Nothing was learned: it was too hard.") < said.index("What to try next")
    assert "etude compare" not in said, "another method would learn as little"
    shows.result(finished(tmp_path, None, []))
    assert "etude compare" in capsys.readouterr().out
    shows.result(finished(tmp_path, None, ["Nothing was learned: it was too hard."]), quiet=True)
    quiet = capsys.readouterr()
    assert (quiet.out, quiet.err) == (f"{tmp_path}\n", "Nothing was learned: it was too hard.\n")


@pytest.mark.parametrize(
    ("method", "parent", "other"),
    [
        ("td3", "ddpg", "ddpg"),
        ("dqn", None, "a2c"),
        ("a2c", None, "ppo"),
        ("b", "a", "a2c"),
        ("td3+gaussian-noise", "ddpg", "td3"),
    ],
)
def test_a_run_of_control_is_to_be_compared_with_its_parent(
    tmp_path: Path, method: str, parent: str | None, other: str
) -> None:
    """Where it has one that is known."""
    (tmp_path / "method.json").write_text(json.dumps({"parent": parent}))
    done = Result(tmp_path, method, "pendulum", 2, 1.0, tmp_path / "checkpoint", {}, [])
    commands = [line for line, _ in control.suggestions(done, method, {"task": "pendulum"})]
    assert f"etude compare {other} {method} --task pendulum --seeds 10" in commands


def test_a_run_from_logs_is_to_be_judged_by_others_and_compared_with_imitation(tmp_path: Path) -> None:
    done = Result(tmp_path, "iql", "pendulum", 2, 1.0, tmp_path / "checkpoint", {}, [])
    logged = {"task": "pendulum", "task_fields": ["task.data=my logs.npz"]}
    judged, compared = (line for line, _ in control.suggestions(done, "iql", logged))
    assert judged == f"etude evaluate {tmp_path} --data LOGS"
    assert compared == "etude compare bc iql --task pendulum --data 'my logs.npz' --seeds 10"
    assert [line for line, _ in control.suggestions(done, "iql", {**logged, "task": "logs"})] == [judged]
    alone = {
        "task": "logs",
        "task_fields": [*logged["task_fields"], "task.heldout=b.csv", "task.columns=obs=x,y action=u"],
    }
    *_, (line, _) = control.suggestions(done, "iql", alone)
    assert line.startswith("etude compare bc iql --data ")
    assert line.endswith(" --heldout b.csv --columns 'obs=x,y action=u' --seeds 10") and "--task" not in line


def test_a_number_that_is_not_to_be_trusted_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = finished(tmp_path, None, [])
    done.evaluation["after"]["test"]["pass@1"]["reason"] = "nobody knows"
    shows.result(done)
    table, told, _ = capsys.readouterr().out.partition("pass@1: nobody knows.")
    assert told and "pass@1" in table


def test_the_reward_of_a_function_stands_beside_the_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for reward, pay, shown in (("mine.py:score", 2.0, True), ("mine.py:score", 0.0, True), (None, 0.0, False)):
        shows.result(finished(tmp_path, reward, [], pay))
        lines = capsys.readouterr().out.splitlines()
        assert any("reward" in line and f"{pay:.3f}" in line for line in lines) == shown
