"""`etude compare`: what is trained once is found again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import Cli

from etude.core.registry import get_method
from etude.core.worlds import World
from etude.runs import jobs
from etude.runs.comparing import _every, _fields_of, compare
from etude.runs.jobs import Job, jobs_for
from etude.runs.kinds import run_of
from etude.runs.training import Options
from etude.runtime.interrupts import Interrupted
from etude.tasks.control.logged import LoggedTask
from etude.tasks.control.pendulum import pendulum
from log_toys import pendulum_columns, written

MINE = """
from etude.methods.rlvr.grpo import grpo

mine = grpo.replace(id="mine", problems=2)
"""
FIELDS = ("--set", "experience.size=2", "--set", "problems=2", "--evaluate", "4")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The runs that were started, in order."""
    begun: list[Job] = []
    start = jobs.Workers.start

    def counted(pool: jobs.Workers, job: Job) -> None:
        begun.append(job)
        start(pool, job)

    monkeypatch.setattr(jobs.Workers, "start", counted)
    return begun


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_each_run_is_trained_once(cli: Cli, tmp_path: Path, started: list[Job], forget: Callable[[str], None]) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    flags = ("--seeds", "2", "--steps", "2", *FIELDS)
    first = cli("compare", "mine.py:mine", "grpo", *flags)
    assert first.code == 0, first.err
    assert "0 of 4 runs are there already" in first.err
    assert sorted((j.arm, j.seed) for j in started) == [
        ("grpo", 0),
        ("grpo", 1),
        ("mine.py:mine", 0),
        ("mine.py:mine", 1),
    ]
    assert "IQM" in first.out
    found = json.loads((tmp_path / "runs/compare-mine.py-mine-vs-grpo-compose/comparison.json").read_text())
    assert set(found["arms"]) == {"mine.py:mine", "grpo"}
    assert json.loads((started[0].folder / "config.json").read_text())["evaluate"] == 4

    started.clear()
    second = cli("compare", "mine.py:mine", "grpo", *flags)
    assert second.code == 0
    assert started == []
    assert "4 of 4 runs are there already" in second.err
    assert second.out == first.out


@pytest.mark.slow
def test_a_run_that_fails_says_why(cli: Cli, tmp_path: Path, started: list[Job]) -> None:
    (tmp_path / "bad.py").write_text("def score(completions):\n    raise ValueError('no answer key')\n")
    flags = ("--reward", "bad.py:score", "--seeds", "1", "--steps", "2", *FIELDS, "--workers", "1")
    answer = cli("compare", "grpo", "dr-grpo", *flags)
    assert answer.code == 1
    assert len(started) == 1, "the others were not begun"
    assert "The run of grpo with seed 0 failed" in answer.sentence
    assert "no answer key" in answer.sentence
    assert "Traceback" not in answer.sentence.split("failed")[0]


def test_a_run_that_was_killed_early_starts_again_and_a_later_one_goes_on(tmp_path: Path) -> None:
    job = jobs_for("grpo+kl-to-reference", "compose", "tiny", 1, 5, ["problems=2"], tmp_path)[0]
    words = job.command()
    assert words[:3] == ["train", "grpo", "--task"]
    assert words[-7:] == ["--with", "kl-to-reference", "--set", "problems=2", "--model", "tiny", "--no-preset"]
    (job.folder / "checkpoints/tmp-0").mkdir(parents=True)
    assert "--resume" not in job.command()
    (job.folder / "checkpoints/step-0").mkdir()
    assert job.command() == ["train", "--resume", str(job.folder), "--quiet"]


def test_folders_are_named_by_all_that_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("x = 1\n")
    (tmp_path / "data.jsonl").write_text("{}\n")

    def name(arm: str = "own.py:x", task: str = "data.jsonl", steps: int = 5, fields: tuple[str, ...] = ()) -> str:
        return jobs_for(arm, task, "tiny", 1, steps, fields, tmp_path)[0].folder.parent.name

    first = name()
    assert first == name()
    others = {name(arm="grpo"), name(steps=6), name(fields=("problems=2",)), name(task="compose")}
    (tmp_path / "own.py").write_text("x = 2\n")
    changed = name()
    (tmp_path / "data.jsonl").write_text("{} \n")
    assert len({first, *others, changed, name()}) == 7


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_runs_of_one_worker_equal_runs_of_their_own(tmp_path: Path) -> None:
    """Nothing of a run is left for the next one in its process; one that fails does not end it."""
    fields = ("experience.size=2", "problems=2")
    alone = [jobs_for("grpo", "compose", "tiny", 2, 2, fields, tmp_path / "alone", flags=("--evaluate", "0"))[1]]
    both = jobs_for("grpo", "compose", "tiny", 2, 2, fields, tmp_path / "both", flags=("--evaluate", "0"))
    bad = jobs_for("grpo", "no-such-task", "tiny", 1, 2, fields, tmp_path / "bad")
    jobs.run_jobs(alone, quiet=True)
    with jobs.Workers(1) as pool:
        statuses = []
        for job in (both[0], bad[0], both[1]):
            pool.start(job)
            while not (done := pool.done()):
                pass
            statuses += [status for _, status in done]
            assert len(pool.idle) == 1, "one process did it all"
    assert statuses == [0, 2, 0]
    weights = [
        max((job.folder / "checkpoints").glob("step-*")) / "model/model.safetensors" for job in (alone[0], both[1])
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert "no-such-task" in (bad[0].folder.parent / f"{bad[0].folder.name}.log").read_text()


def test_a_signal_stops_the_workers_too() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(Interrupted, match="Stopped by SIGTERM; runs that have begun are saved"),
        jobs.Workers(1) as pool,
    ):
        pool.idle.append(process := jobs.worker())
        os.kill(os.getpid(), signal.SIGTERM)
    assert process.returncode is not None, "it was waited for"
    assert signal.getsignal(signal.SIGTERM) is before


def test_fields_of_a_part_that_only_some_have_are_set_in_these(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    arms = {name: get_method(name, World.CONTROL) for name in ("td3-bc", "a2pr", "bc")}
    shared, critics, vae = (f"{part}.network.hidden=8" for part in ("policy", "critic", "learners.action-vae"))
    found = _fields_of(arms, ["optimizer.lr=1e-3", shared, critics, vae])
    base = ["optimizer.lr=1e-3", shared]
    assert found == {"td3-bc": [*base, critics], "a2pr": [*base, critics, vae], "bc": base}
    assert capsys.readouterr().err.splitlines() == [
        f"bc has no critic.network: {critics} is not set there.",
        f"td3-bc has no learners.action-vae.network: {vae} is not set there.",
        f"bc has no learners.action-vae.network: {vae} is not set there.",
    ]
    assert _fields_of({"bc": arms["bc"]}, [critics]) == {"bc": [critics]}  # and is refused with its sentence
    set_first = ["critic=q-functions", critics]
    assert _fields_of(arms, set_first) == dict.fromkeys(arms, set_first)
    refused = cli("compare", "bc", "bc+standardize-observations", "--task", "pendulum", "--set", critics)
    assert refused.code == 2 and "critic is empty" in refused.err


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_methods_on_logs_are_compared_along_their_updates(cli: Cli, tmp_path: Path, started: list[Job]) -> None:
    written(tmp_path / "swings.npz", pendulum_columns())
    small = ["policy.network.hidden=8", "critic.network.hidden=8", "sampling.batch=6"]
    flags = [x for field in small for x in ("--set", field)]
    asked = ("--task", "pendulum", "--data", "swings.npz", "--seeds", 2, "--steps", 1000, "--evaluate", 5)
    answer = cli("compare", "bc", "td3-bc", *asked, *flags)
    assert answer.code == 0, answer.err
    found = json.loads((tmp_path / "runs/compare-bc-vs-td3-bc-pendulum/comparison.json").read_text())
    assert found["axis"] == "updates of each member"
    assert {json.loads((job.folder / "config.json").read_text())["evaluate_every"] for job in started} == {100}
    for arm in found["arms"].values():
        assert arm["curves"] == {}
        assert arm["evaluated"]["pendulum"]["x"] == [100.0 * k for k in range(11)]
        assert arm["evaluated"]["pendulum"]["value"][-1] == arm["iqm"]["value"]


def test_what_steps_count_and_when_policies_are_evaluated(tmp_path: Path) -> None:
    written(tmp_path / "swings.npz", pendulum_columns())
    task = LoggedTask(data=str(tmp_path / "swings.npz"), environment=pendulum)
    arms: dict[str, Any] = {name: get_method(name, World.CONTROL) for name in ("bc", "wsrl", "td3")}
    usual = "environment steps of each member"
    counted = {name: run_of(method).counts(method, usual) for name, method in arms.items()}
    assert counted == {"bc": "updates of each member", "wsrl": f"updates, then {usual}", "td3": usual}
    assert _every(arms, task, Options(steps=25)) == 2
    assert _every({"td3": arms["td3"], "bc": arms["bc"]}, task, Options(steps=25)) == 2, "what acts is too"
    assert _every({"td3": arms["td3"]}, task, Options(steps=25)) is None
    assert _every(arms, task, Options(steps=25, evaluate_every=10)) == 10


@pytest.mark.slow
def test_what_acts_is_evaluated_as_often_as_what_it_is_compared_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its curve would be a line from the first evaluation to the last."""
    begun: list[Job] = []

    def stop(those: list[Job], *_: object) -> None:
        begun.extend(those)
        raise InterruptedError

    monkeypatch.setattr("etude.runs.comparing.run_jobs", stop)
    path = written(tmp_path / "swings.npz", pendulum_columns())
    with pytest.raises(InterruptedError):
        compare(["rlpd", "bc"], "pendulum", data=str(path), seeds=2, steps=20_000, out=tmp_path)
    assert [(job.arm, job.flags) for job in begun] == [
        ("rlpd", ("--evaluate-every", "2000")),
        ("bc", ("--evaluate-every", "2000")),
    ]
