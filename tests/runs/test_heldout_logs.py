"""Runs that learn from logs without an environment, and are judged by others: the headline, its faults, its resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.cli import shows
from etude.core.errors import ConfigError, DataError
from etude.evaluation.off_policy import judge
from etude.evaluation.off_policy.fqe import FQE
from etude.runs.train import resume
from etude.runs.training import Result
from log_toys import cartpole_columns, pendulum_columns, written

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
SMALL = {"policy.network.hidden": "4,4", "critic.network.hidden": "4,4", "sampling.batch": 4}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return written(tmp_path / "july.npz", pendulum_columns(episodes=3))


@pytest.fixture
def later(tmp_path: Path) -> Path:
    return written(tmp_path / "august.npz", pendulum_columns(episodes=6, seed=5))


@pytest.fixture
def short_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "FQE", lambda: FQE(resamples=3, updates=20, batch=16))


def trained(logs: Path, later: Path, out: Path, **options: Any) -> Result:
    told = {"steps": 500, "seeds": 2, "quiet": True, "set": SMALL, **options}
    return etude.train("td3-bc", data=logs, heldout=later, out=out, **told)


@pytest.mark.usefixtures("short_fits")
def test_the_headline_is_an_estimate_from_other_logs(tmp_path: Path, logs: Path, later: Path) -> None:
    done = trained(logs, later, tmp_path / "run")
    assert "before" not in done.evaluation and set(done.evaluation["after"]) == {"logs"}
    found = done.evaluation["after"]["logs"]
    asked = etude.evaluate(str(tmp_path / "run"), data=str(later))["logs"]
    assert {k: v["value"] for k, v in found.items()} == {k: v.value for k, v in asked.items()}
    assert done.score("fqe", "logs") == found["fqe"]["value"] and found["fqe"]["low"] < found["fqe"]["high"]
    assert not (tmp_path / "run" / "evaluations.jsonl").exists()
    assert "fqe" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.usefixtures("short_fits")
def test_resumed_it_says_the_same(tmp_path: Path, logs: Path, later: Path) -> None:
    whole = trained(logs, later, tmp_path / "whole").evaluation["after"]
    trained(logs, later, tmp_path / "halves", until=250)
    resume(tmp_path / "halves", quiet=True)
    assert json.loads((tmp_path / "halves" / "evaluation.json").read_text())["after"] == whole


def test_what_cannot_judge_is_refused(tmp_path: Path, logs: Path, later: Path) -> None:
    with pytest.raises(DataError, match=r"july\.npz holds what is learned from: judge by logs"):
        trained(logs, logs, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"returns are played in pendulum: .* `etude evaluate RUN --data .*august"):
        etude.train("td3-bc", "pendulum", data=logs, heldout=later, out=tmp_path / "run", quiet=True)
    with pytest.raises(ConfigError, match=r"evaluate_every says when returns are played\. There is no environment"):
        trained(logs, later, tmp_path / "run", evaluate_every=250)
    few = written(tmp_path / "few.npz", pendulum_columns(episodes=4, seed=5))
    with pytest.raises(DataError, match=r"few\.npz has 4 episodes, and an estimate needs at least 5"):
        trained(logs, few, tmp_path / "run")
    pole = written(tmp_path / "pole.npz", cartpole_columns())
    with pytest.raises(DataError, match=r"pole\.npz has other observations or actions than .*july"):
        trained(logs, pole, tmp_path / "run", set={**SMALL, "task.allow": "constant-rewards"})
    with pytest.raises(DataError, match=r"nothing at .*september\.npz"):
        trained(logs, tmp_path / "september.npz", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_nothing_is_judged_where_that_was_said(tmp_path: Path, logs: Path, later: Path) -> None:
    assert trained(logs, later, tmp_path / "run", evaluate=0).evaluation == {}


@pytest.mark.usefixtures("short_fits")
def test_the_terminal_says_and_shows_it(
    tmp_path: Path, logs: Path, later: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = trained(logs, later, tmp_path / "run", quiet=False)
    said = capsys.readouterr().err
    assert f"in the end member 0 is judged from {later}" in said and "Estimated is the return of" in said
    shows.result(done)
    table, _, rest = capsys.readouterr().out.partition("What to try next:")
    assert "Returns with 95% intervals" in table and "fqe" in table and "logged" in table
    assert "etude evaluate" in rest
