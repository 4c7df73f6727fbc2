"""Runs that learn from logs, from the command line and Python: what is recorded, played, resumed, exported, refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
import processes
from etude.cli import shows
from etude.cli.app import app
from etude.core.errors import CheckpointError, ConfigError, DataError
from etude.core.registry import get_method
from etude.policies.control import replay
from etude.runs.actions_of_logs import check_takes
from etude.runs.kinds import run_of
from etude.runs.train import resume
from etude.runs.training import Options, Result, compose_task
from etude.tasks.control.logged import LoggedTask
from log_toys import cartpole_columns, pendulum_columns, written

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
SMALL = {"policy.network.hidden": "4,4", "critic.network.hidden": "4,4", "sampling.batch": 4}
OWN: dict[str, Any] = {"seeds": 2, "quiet": True, "evaluate": 5}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return written(tmp_path / "swing.npz", pendulum_columns(episodes=3))


def trained(logs: Path, out: Path, **options: Any) -> Result:
    return etude.train("td3-bc", "pendulum", data=logs, set=SMALL, out=out, **{"steps": 750, **OWN, **options})


def weights(folder: Path) -> dict[str, bytes]:
    newest = max((folder / "checkpoints").glob("step-*"), key=lambda p: int(p.name[5:]))
    return {name: (newest / name).read_bytes() for name in ("policy.safetensors", "state.safetensors")}


def test_what_a_run_records_and_plays(tmp_path: Path, logs: Path) -> None:
    done = trained(logs, tmp_path / "run")
    about = json.loads((tmp_path / "run" / "environment.json").read_text())["data"]
    task = compose_task("pendulum", [f"task.data={logs}"])
    assert isinstance(task, LoggedTask)
    assert about["fingerprint"] == task.logs().fingerprint and about["path"] == str(logs.resolve())
    assert (about["rows"], about["episodes"], list(about["left_out"].values())) == (597, 3, [3])
    assert about["transforms"][0].startswith("597 rows -> 597: every observation has mean 0")
    inputs = json.loads((tmp_path / "run" / "inputs.json").read_text())
    assert inputs["names"][str(logs)]["files"][""]
    looks = [json.loads(line) for line in (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()]
    assert [look["step"] for look in looks] == [1, 2, 3]  # a tenth of 750 updates is less than a block
    assert done.score("return/deterministic") < 0
    assert all("environment_steps" not in line and line["updates"] % 250 == 0 for line in done.metrics)
    assert (tmp_path / "run" / "report.html").is_file()


def test_kill_and_resume_are_exact(tmp_path: Path, logs: Path) -> None:
    trained(logs, tmp_path / "whole")
    trained(logs, tmp_path / "halves", until=250)
    resume(tmp_path / "halves", quiet=True, data=logs)
    assert weights(tmp_path / "whole") == weights(tmp_path / "halves")


@pytest.mark.usefixtures("forked_workers")
def test_methods_are_compared_on_the_same_logs(tmp_path: Path, logs: Path) -> None:
    small = {k: v for k, v in SMALL.items() if not k.startswith("critic")}
    found = etude.compare(["bc", "td3-bc"], "pendulum", data=str(logs), set=small, seeds=2, steps=250, evaluate=2,
                          out=tmp_path, quiet=True)  # fmt: skip
    runs = [json.loads(path.read_text())["data"]["path"] for path in tmp_path.rglob("environment.json")]
    assert runs == [str(logs.resolve())] * 2 and found.comparison.table()
    with pytest.raises(ConfigError, match="ppo"):
        etude.compare(["bc", "ppo"], "pendulum", data=str(logs), steps=250, out=tmp_path, quiet=True)


def test_other_data_is_refused_naming_both(tmp_path: Path, logs: Path) -> None:
    trained(logs, tmp_path / "run", until=250)
    other = written(tmp_path / "other.npz", pendulum_columns(episodes=3, seed=5))
    with pytest.raises(
        CheckpointError, match=r"learned from .*swing\.npz \(fingerprint \w{12}\), and --data is .*other"
    ):
        resume(tmp_path / "run", quiet=True, data=other)
    copied = tmp_path / "copied.npz"
    shutil.copy(logs, copied)
    np.savez(logs, **pendulum_columns(episodes=3, seed=5))
    with pytest.raises(CheckpointError, match=r"swing\.npz changed"):
        resume(tmp_path / "run", quiet=True)
    shutil.copy(copied, logs)
    resume(tmp_path / "run", quiet=True)


def test_without_an_environment(tmp_path: Path, logs: Path) -> None:
    done = etude.train("td3-bc", data=logs, set=SMALL, steps=500, out=tmp_path / "run", seeds=2, quiet=True)
    assert done.task == "swing" and done.evaluation == {} and len(done.metrics) == 2
    resume(tmp_path / "run", quiet=True, steps=750)
    from etude.runs.export import export

    export(str(tmp_path / "run"), str(tmp_path / "policy.pt2"))
    assert (tmp_path / "policy.pt2").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["compare", "td3-bc", "bc", "--data"],
        ["compare", "td3-bc", "bc", "--task", "logs", "--data"],
        ["tune", "td3-bc", "--task", "logs", "--over", "optimizer.lr=1e-4,1e-3", "--set", "task.data={}"],
        ["tune", "td3-bc", "--over", "optimizer.lr=1e-4,1e-3", "--data"],
    ],
)
def test_without_an_environment_runs_cannot_be_told_apart(
    logs: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etude.runs.jobs.worker", lambda *_, **__: pytest.fail("something was trained"))
    words = [word.format(logs) for word in command]
    with pytest.raises(
        ConfigError, match=r"nothing says it here\. There is no environment to play in: give --task, or --heldout"
    ):
        app([*words, *([str(logs)] if words[-1] == "--data" else [])])
    with pytest.raises(ConfigError, match="nothing says it here"):
        etude.compare(["td3-bc", "bc"], data=logs)


def test_what_was_not_judged_is_to_be(tmp_path: Path, logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = etude.train("td3-bc", data=logs, set=SMALL, steps=250, out=tmp_path / "run", seeds=1, quiet=True)
    shows.result(done)
    assert f"etude evaluate {tmp_path / 'run'} --data LOGS" in capsys.readouterr().out


def test_a_run_says_where_imitation_is_optimal(tmp_path: Path, logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = pendulum_columns(episodes=3)
    alike = written(tmp_path / "alike.npz", {**columns, "rewards": np.tile(columns["rewards"][:200], 3)})
    for path, said in ((alike, True), (logs, False)):
        etude.train("td3-bc", data=path, set=SMALL, steps=250, seeds=1, out=tmp_path / path.stem)
        assert ("All episodes earn the same: imitation is as good" in capsys.readouterr().err) == said


def test_bad_logs_train_nothing_and_exit_with_2(tmp_path: Path) -> None:
    columns = pendulum_columns(episodes=3)
    columns["rewards"][7] = np.nan
    columns["actions"][250] = 9.0
    written(tmp_path / "bad.npz", columns)
    code, said = processes.etude(
        tmp_path, "train", "td3-bc", "--task", "pendulum", "--data", "bad.npz", "--out", "run"
    ).end()
    assert code == 2 and not (tmp_path / "run").exists()
    assert "row 7 (episode 0)" in said and "in row 250 (episode 1)" in said
    assert "Traceback" not in said


def test_who_acts_reads_no_logs(tmp_path: Path, logs: Path) -> None:
    alone = ", or say --set experience=logged exploration=none"
    for method, also in {"td3": alone, "ppo": ""}.items():
        said = rf"{method} acts, and would not read the logs in .*leave --data out{also}, or take"
        with pytest.raises(ConfigError, match=said):
            etude.train(method, "pendulum", data=logs, out=tmp_path / "run", quiet=True)
    with pytest.raises(
        ConfigError, match=r"--data for compose takes .* dialogues .*logs of steps are for tasks of control"
    ):
        etude.train("grpo", "compose", data=logs, out=tmp_path / "run", quiet=True)
    with pytest.raises(ConfigError, match="give --data PATH"):
        etude.train("bc", "pendulum", out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


SIBLINGS = {"bc-discrete": "bc", "cql-discrete": "cql", "discrete-bcq": "bcq", "bear-discrete": "bear"}


def test_actions_of_another_kind_are_refused_with_a_sibling(tmp_path: Path, logs: Path) -> None:
    pole = written(tmp_path / "pole.npz", cartpole_columns())
    task = [compose_task(name, [f"task.data={path}", "task.allow=constant-rewards"])
            for name, path in (("pendulum", logs), ("cartpole", pole))]  # fmt: skip
    swing, poles = (each.logs() for each in task)  # type: ignore[attr-defined]
    for discrete, sibling in SIBLINGS.items():
        for method, there, other in ((discrete, swing, sibling), (sibling, poles, discrete)):
            with pytest.raises(ConfigError) as refused:
                check_takes(get_method(method), there)
            before, _, others = str(refused.value).partition("): ")
            assert before.startswith(f"{method} does not take the actions of {there.where}, ")
            named = others.partition(", and ")[0].removesuffix(" does").removesuffix(" do").split(" and ")
            assert other in named
    with pytest.raises(ConfigError, match=r": bc and td3-bc do, and \d+ more"):
        check_takes(get_method("dqn"), swing)  # which shares no word with any
    with pytest.raises(ConfigError, match=r"bc-discrete does not take the actions of .*Box.*: .*bc.* do"):
        etude.train("bc-discrete", "pendulum", data=logs, out=tmp_path / "run", quiet=True, steps=250)
    assert not (tmp_path / "run").exists()


def test_what_is_wrong_with_a_policy_whatever_actions_are_is_said_as_it_is(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = replay.acting

    def acting(method: Any, *rest: Any) -> Any:
        if method.id == "iql":
            raise ConfigError("There is no such network.")
        return made(method, *rest)

    monkeypatch.setattr(replay, "acting", acting)
    with pytest.raises(ConfigError, match=r"^There is no such network\.$"):
        check_takes(get_method("iql"), LoggedTask(data=str(logs)).logs())


def test_fields_of_the_task_reach_logs_and_environment(logs: Path) -> None:
    task = compose_task(
        "CartPole-v1", [f"task.data={logs}", "task.skip_bad_rows=true", "task.arguments.render_mode=null"]
    )
    assert isinstance(task, LoggedTask) and task.skip_bad_rows and task.environment is not None
    assert task.environment.fields()["arguments"] == {"render_mode": None}
    with pytest.raises(DataError, match="logs of another environment"):
        compose_task("cartpole", [f"task.data={logs}"]).logs()  # type: ignore[attr-defined]


def test_returns_are_played_after_every_tenth(logs: Path) -> None:
    task, run = compose_task("pendulum", [f"task.data={logs}"]), run_of(get_method("td3-bc"))
    timed = run.timed(get_method("td3-bc"), task, Options(steps=50_000))
    assert timed.evaluate_every == 5_000
    for options in (Options(steps=50_000, evaluate=0), Options(steps=50_000, evaluate_every=7)):
        assert run.timed(get_method("td3-bc"), task, options) == options
    assert run.timed(get_method("td3"), task, Options(steps=50_000)).evaluate_every is None
    alone = LoggedTask(data=str(logs))
    assert run.timed(get_method("td3-bc"), alone, Options(steps=50_000)).evaluate_every is None
