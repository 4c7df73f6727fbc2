"""Runs that learn from logs without an environment, and are judged by others: the headline, its faults, its resume."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from etude.cli import shows
from etude.cli.app import app
from etude.core.errors import ConfigError, DataError, UnknownNameError
from etude.evaluation.intervals import welch_interval, widened
from etude.evaluation.off_policy import judge, members
from etude.evaluation.off_policy.fqe import FQE
from etude.runs import search
from etude.runs.data_convert import data_convert
from etude.runs.jobs import Job
from etude.runs.train import resume
from etude.runs.training import Result
from etude.tasks.control.logged import LoggedTask
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
    for module in (judge, members):
        monkeypatch.setattr(module, "FQE", lambda: FQE(resamples=3, updates=20, batch=16))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of several methods or settings are trained in this process, where fits are short."""

    def train(jobs: Sequence[Job], *_: object) -> dict[Job, str]:
        for job in jobs:
            if not job.finished:
                app(job.command(), result_action="return_value")
        return {}

    monkeypatch.setattr("etude.runs.comparing.run_jobs", train)
    monkeypatch.setattr("etude.runs.search.run_each", train)


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


COMPARED = {"steps": 250, "seeds": 2, "workers": 1, "quiet": True, "set": SMALL}


@pytest.mark.usefixtures("short_fits", "here")
def test_methods_are_compared_by_other_logs(
    tmp_path: Path, logs: Path, later: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By what is exported, of every member; intervals hold the spread of the first one's resamples."""
    told = {**COMPARED, "out": tmp_path / "runs", "data": logs, "heldout": later}
    done = etude.compare(["td3-bc", "bc"], **told).comparison
    assert done.metric == "fqe/deterministic (logs)" and done.notes[0].startswith("Scores are estimates from logs;")
    entries = {}
    for path in (tmp_path / "runs").glob("*/seeds-0-to-1/evaluation.json"):
        entries[path.parts[-3].split("-logs")[0]] = json.loads(path.read_text())["after"]["logs"]
    assert set(entries) == {"td3-bc", "bc"} and "fqe/deterministic" in entries["td3-bc"]
    for arm in done.arms:
        own = entries[arm.name]["fqe/deterministic"]
        assert arm.scores[:, 0].tolist() == own["members"] and own["members"][0] == own["value"]
        assert len(set(own["members"])) == 2 and len(own["resamples"]) == 3
    td3_bc, bc = done.arms
    assert bc.difference is not None
    draws = [np.array(entries[name]["fqe/deterministic"]["resamples"]) for name in ("bc", "td3-bc")]
    alone = welch_interval(bc.scores, td3_bc.scores)
    assert bc.difference == widened(alone, draws[0] - draws[1]) and bc.difference.high > alone.high
    assert not (done.panels() or td3_bc.curves), "nothing was evaluated on the way"
    capsys.readouterr()
    sampled = etude.compare(["td3-bc", "bc"], metric="fqe", **{**told, "quiet": False}).comparison
    assert "judged from the held-out logs once its steps are done; the bar waits" in capsys.readouterr().err
    assert sampled.arms[1].scores[:, 0].tolist() == entries["bc"]["fqe"]["members"]
    for name in ("evaluate", "evaluate_every"):
        with pytest.raises(ConfigError, match=f"{name} says .* played"):
            etude.compare(["td3-bc", "bc"], **{**told, name: 5})
    with pytest.raises(UnknownNameError, match="There are: fqe/deterministic, fqe"):
        etude.compare(["td3-bc", "bc"], metric="return", **told)


@pytest.mark.usefixtures("short_fits", "here")
def test_other_discounts_are_other_returns(tmp_path: Path, logs: Path, later: Path) -> None:
    told = {"data": logs, "heldout": later, "steps": 250, "quiet": True, "workers": 1}
    over = {"over": "sampling.horizon.gamma=0.9,0.5", "seeds": 1, "out": tmp_path / "search"}
    with pytest.raises(ConfigError, match=r"They learn with discounts of 0\.5, 0\.9, .*--set task\.gamma=0\.9\."):
        etude.tune("td3-bc", set=SMALL, **told, **over)
    assert not (tmp_path / "search").exists()
    found = etude.tune("td3-bc", set={**SMALL, "task.gamma": 0.5}, **told, **over)
    assert found.metric == "logs/fqe/deterministic" and '"task.gamma" = 0.5' in found.config.read_text()
    best = tmp_path / "search" / f"setting-{found.best:02}"
    asked = etude.evaluate(str(best), data=str(later), gamma=0.5)["logs"]["fqe/deterministic"].value
    assert found.score == asked and asked != etude.evaluate(str(best), data=str(later))["logs"]["fqe"].value
    own = {**SMALL, "sampling.horizon.gamma": 0.5}
    etude.compare(["td3-bc", "bc"], set=own, seeds=1, out=tmp_path / "runs", **told)
    for path in (tmp_path / "runs").glob("*/seeds-0-to-0/config.json"):
        assert "task.gamma=0.5" in json.loads(path.read_text())["task_fields"]
    with pytest.raises(ConfigError, match=r"gamma is the discount of what is estimated from heldout logs"):
        etude.train("td3-bc", data=logs, set={"task.gamma": 0.5}, out=tmp_path / "run", quiet=True)


@pytest.mark.usefixtures("short_fits", "here")
def test_a_setting_whose_number_means_nothing_is_not_the_best(
    tmp_path: Path, logs: Path, later: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large it is; and where that is so of all that are left, there is no best."""
    told = {**COMPARED, "seeds": 1, "data": logs, "heldout": later, "over": "optimizer.lr=1e-4,1e-2"}
    found = etude.tune("td3-bc", out=tmp_path / "search", **told)
    doubted = [f"setting-{found.best:02}"]

    def doubting(jobs: Sequence[Job], *_: object) -> dict[Job, str]:
        for job in jobs:
            shutil.copytree(found.folder / job.folder.name, job.folder)
            path = job.folder / "evaluation.json"
            evaluation = json.loads(path.read_text())
            if job.folder.name in doubted:
                evaluation["after"]["logs"]["fqe/deterministic"] |= {"reason": "Q fed on itself", "members": [1e6]}
            path.write_text(json.dumps(evaluation))
        return {}

    monkeypatch.setattr(search, "run_each", doubting)
    again = etude.tune("td3-bc", out=tmp_path / "again", **told)
    assert again.best == 1 - found.best and again.doubted == [found.best] and again.failed == {}
    assert "1 of them came to a number that means nothing" in again.sentence()
    doubted += [f"setting-{again.best:02}"]
    with pytest.raises(ConfigError, match="means nothing for all settings that were left: Q fed on itself"):
        etude.tune("td3-bc", out=tmp_path / "never", **told)


def test_what_cannot_judge_is_refused(tmp_path: Path, logs: Path, later: Path) -> None:
    with pytest.raises(DataError, match=r"july\.npz holds what is learned from: judge by logs"):
        trained(logs, logs, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"returns are played in pendulum: .* `etude evaluate RUN --data .*august"):
        etude.train("td3-bc", "pendulum", data=logs, heldout=later, out=tmp_path / "run", quiet=True)
    with pytest.raises(ConfigError, match=r"evaluate_every says when returns are played\. There is no environment"):
        trained(logs, later, tmp_path / "run", evaluate_every=250)
    with pytest.raises(ConfigError, match=r"evaluate says how many episodes are played\. There is no environment"):
        trained(logs, later, tmp_path / "run", evaluate=5)
    few = written(tmp_path / "few.npz", pendulum_columns(episodes=4, seed=5))
    with pytest.raises(DataError, match=r"needs at least 5 episodes, and .*few\.npz gives it 4"):
        trained(logs, few, tmp_path / "run")
    pole = written(tmp_path / "pole.npz", cartpole_columns())
    with pytest.raises(DataError, match=r"pole\.npz has other observations or actions than .*july"):
        trained(logs, pole, tmp_path / "run", set={**SMALL, "task.allow": "constant-rewards"})
    with pytest.raises(DataError, match=r"nothing at .*september\.npz"):
        trained(logs, tmp_path / "september.npz", tmp_path / "run")
    told = {"over": "optimizer.lr=1e-4,1e-3", "set": SMALL, "out": tmp_path / "run", "quiet": True}
    with pytest.raises(DataError, match=r"july\.npz holds what is learned from: judge by logs"):
        etude.tune("td3-bc", data=logs, heldout=logs, **told)
    with pytest.raises(ConfigError, match=r"evaluate says how many episodes are played"):
        etude.tune("td3-bc", data=logs, heldout=later, evaluate=5, **told)
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("short_fits")
def test_a_share_of_the_episodes_judges_what_the_others_teach(tmp_path: Path, later: Path) -> None:
    """Each episode is on one side, whole, the same ones in every run; and they can be asked again."""
    many = written(tmp_path / "many.npz", pendulum_columns(episodes=12, length=30))
    task = LoggedTask(data=str(many), heldout="0.5")
    rest, held, whole = task.logs(), task.judging().logs(), LoggedTask(data=str(many)).logs()
    assert (rest.episodes, held.episodes) == (6, 6) and rest.rows + held.rows == whole.rows
    assert sorted([*rest.returns, *held.returns]) == pytest.approx(sorted(whole.returns)) and len(set(rest.ends)) == 6
    assert {*map(bytes, rest.observations)} | {*map(bytes, held.observations)} == {*map(bytes, whole.observations)}
    assert "174 rows left out, of 6 episodes that are held out" in rest.sentence()
    assert "of 6 episodes that are learned from" in held.sentence()
    assert task.logs().fingerprint == rest.fingerprint != held.fingerprint
    given = {"steps": 250, "seeds": 1, "quiet": True, "set": SMALL}
    done = etude.train("td3-bc", data=many, heldout=0.5, out=tmp_path / "run", **given)
    found = done.evaluation["after"]["logs"]["fqe"]["value"]
    assert found == etude.evaluate(str(done.folder), data=str(many), set="task.only=0.5")["logs"]["fqe"].value
    asked = etude.evaluate(str(done.folder), data=str(later))["logs"]["logged"].value
    other = etude.evaluate(str(trained(many, later, tmp_path / "other").folder), data=str(later))
    assert asked == other["logs"]["logged"].value, "nothing of other logs is held out"
    with pytest.raises(ConfigError, match=r"a share of these, more than 0 and less than 1, got 1\.5"):
        etude.train("td3-bc", data=many, heldout=1.5, out=tmp_path / "no", **given)
    with pytest.raises(DataError, match=r"many\.npz has 12 episodes, of which a share of 0\.01 is 0"):
        etude.train("td3-bc", data=many, heldout=0.01, out=tmp_path / "no", **given)
    with pytest.raises(DataError, match=r"needs at least 5 episodes, and .*many\.npz gives it 4"):
        etude.train("td3-bc", data=many, heldout=0.3, out=tmp_path / "no", **given)
    with pytest.raises(ConfigError, match=r"returns are played in pendulum: leave it out\.$"):
        etude.train("td3-bc", "pendulum", data=many, heldout=0.3, out=tmp_path / "no", **given)
    with pytest.raises(ConfigError, match=r"Of what only reads nothing can be held out"):
        LoggedTask(data=str(many), heldout="0.3", only=0.3)
    list(data_convert([many], tmp_path / "mapped"))
    with pytest.raises(DataError, match=r"mapped is read from the disk as it is needed: convert what is held out"):
        LoggedTask(data=str(tmp_path / "mapped"), heldout="0.5").logs()
    assert not (tmp_path / "no").exists()


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
