"""`--bound`: asynchronous runs come to the same numbers again, whoever samples, is killed, or is gone on with."""

from __future__ import annotations

import copy
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from test_on_processes import ONCE, STAT, TASKS, loop_of, outcome, sampling, small, task_of, tiny
from test_on_ray import EVERY

import etude
import processes
from etude.core.errors import ConfigError, WorkerError
from etude.core.registry import get_method
from etude.curricula.uniform import Uniform
from etude.experience.samplers import Sampler, Samplers
from etude.loops.update import Updater
from etude.objectives.decoupled import DecoupledSurrogate
from etude.policies.snapshots import PREFIX
from etude.runs.samplers import check, older_rows, renewed_rows
from etude.runs.training import Options
from etude.runtime.executors.local import Local
from etude.runtime.executors.processes import Processes
from etude.tasks import resolve_task
from slow_worlds import Slow

pytestmark = [pytest.mark.usefixtures("one_thread", "forked_roles"), pytest.mark.slow]
SMALL: dict[str, Any] = {
    "steps": 4, "evaluate": 0, "quiet": True, "preset": False, "threads": 1,
    "set": ["problems=3", "experience.size=4", "objective=decoupled-surrogate"],
}  # fmt: skip


def files_of_weights(owner: int) -> set[Path]:
    """Those of a process: others test beside this one."""
    return {path for room in ("/dev/shm", "/tmp") for path in Path(room).glob(f"{PREFIX}{owner}-*")}


# The same numbers again


def test_samplers_beside_the_learner_are_the_run_of_one_process_with_old_weights(tmp_path: Path) -> None:
    here, there = (
        etude.train("grpo", "compose", on=f"{on}:2", bound=2, out=str(tmp_path / on), **SMALL)
        for on in ("local", "processes")
    )  # fmt: skip
    assert outcome(there) == outcome(here)
    assert [m["lag"] for m in there.metrics] == [0, 1, 2, 2]
    assert all(m["too_old"] == 0 and m["logp_gap"] <= m["logp_gap_bound"] for m in there.metrics)
    assert json.loads((there.folder / "config.json").read_text())["bound"] == 2
    assert not files_of_weights(os.getpid())
    again = etude.train(config=str(here.folder / "run.toml"), out=str(tmp_path / "again"), quiet=True)
    assert outcome(again) == outcome(there)


def test_completions_that_change_weights_on_their_way_do_so_alike_wherever_they_are_sampled(tmp_path: Path) -> None:
    given = {**SMALL, "set": [*SMALL["set"], "renew_after=3"]}
    here = etude.train("grpo", "compose", on="local:2", bound=2, out=str(tmp_path / "here"), **given)
    etude.train("grpo", "compose", on="processes:2", bound=2, until=2, out=str(tmp_path / "there"), **given)
    assert outcome(etude.resume(tmp_path / "there", quiet=True)) == outcome(here)
    assert [0 < m["renewed"] < 1 for m in here.metrics] == [False, False, True, True]
    assert all(m["too_old"] == 0 and m["logp_gap"] <= m["logp_gap_bound"] for m in here.metrics)
    plain = etude.train("grpo", "compose", on="local:2", bound=2, out=str(tmp_path / "plain"), **SMALL)
    assert outcome(plain)[1] != outcome(here)[1]


def test_with_a_bound_of_0_nothing_changes_and_with_1_rows_are_older(tmp_path: Path) -> None:
    plain, waiting, ahead = (
        etude.train("grpo", "compose", out=str(tmp_path / name), **SMALL, **given)
        for name, given in (("plain", {}), ("waiting", {"on": "processes", "bound": 0}),
                            ("ahead", {"bound": 1}))
    )  # fmt: skip
    assert outcome(waiting) == outcome(plain)
    assert ahead.metrics[0]["reward"] == plain.metrics[0]["reward"]
    assert outcome(ahead)[1] != outcome(plain)[1]


def test_an_asynchronous_run_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    """Rows that were in the air are asked for again, of the weights that they were begun with."""
    whole = etude.train("grpo", "compose", bound=2, out=str(tmp_path / "whole"), **SMALL)
    etude.train("grpo", "compose", on="processes", bound=2, until=2, out=str(tmp_path / "parts"), **SMALL)
    assert outcome(etude.resume(tmp_path / "parts", quiet=True)) == outcome(whole)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*no two completions")
@pytest.mark.parametrize("method", EVERY.values(), ids=list(EVERY))
def test_every_method_that_may_learn_from_older_rows_does(method: Any) -> None:
    """Where its task has one turn, also from completions that changed weights on their way."""
    method, task = small(method), task_of(TASKS.get(method.id, "compose"))
    if [*older_rows(method)]:
        pytest.skip("it may not")
    renewed: Any = method.replace(renew_after=3)
    method = method if [*renewed_rows(renewed, task, 2)] else renewed
    apart = Local(Sampler(task, copy.deepcopy(tiny())), apart=True)
    loop = loop_of(method, task, apart, bound=2, steps=8)
    found = [loop.step().metrics for _ in range(5)]
    loop.ahead.close()
    assert [m["lag"] for m in found] == [0, 1, 2, 2, 2]
    assert all(m.get("logp_gap", 0) <= m.get("logp_gap_bound", 0) for m in found)


# It is asynchronous


def test_samplers_work_while_the_learner_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update that only begins once the next step's rows are there ends, without a look at the samplers."""
    waited: list[bool] = []
    run, begin, begun = Updater.run_together, Samplers.begin, []

    def kept(self: Samplers, *args: Any) -> Any:
        begun.append(begin(self, *args))
        return begun[-1]

    def patient(self: Updater, *args: Any, **how: Any) -> Any:
        due, following = time.monotonic() + 120, begun[len(waited) + 1 : len(waited) + 2]
        while following and not following[0].there and time.monotonic() < due:
            time.sleep(0.01)
        waited.extend(answer.there for answer in following)
        return run(self, *args, **how)

    monkeypatch.setattr(Samplers, "begin", kept)
    monkeypatch.setattr(Updater, "run_together", patient)
    etude.train("grpo", "compose", on="processes", bound=1, out=str(tmp_path / "run"), **SMALL)
    assert waited == [True] * 3


# Faults


def test_a_sampler_that_is_killed_changes_no_number_of_an_asynchronous_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "here" / "once").touch()
    runs = {}
    for name, on in (("here", "local"), ("there", "processes")):
        task = Slow(folder=str(tmp_path / name), **ONCE)
        runs[name] = etude.train("grpo", task, on=on, bound=1, out=str(tmp_path / f"run-{name}"), **SMALL)
    assert (tmp_path / "there" / "once").exists()
    assert "lost its process, which ended with exit code 3" in caplog.text
    assert outcome(runs["there"]) == outcome(runs["here"])


def test_after_too_many_restarts_an_asynchronous_run_stops_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: dict[str, Any] = {"on": "processes", "bound": 1}
    whole, finish = etude.train("grpo", "compose", bound=1, out=str(tmp_path / "whole"), **SMALL), Samplers.finish

    def deadly(self: Any, answer: Any, *args: Any) -> Any:
        """Kills the sampler whenever a step's rows are there, while it is at the next ones or waits for some."""
        episodes, worker = finish(self, answer, *args), self.executor.pool.workers[0]
        worker.process.kill()
        return episodes

    monkeypatch.setattr(Samplers, "finish", deadly)
    monkeypatch.setattr(Processes, "start", lambda self: setattr(self, "restarts", 1))
    with pytest.raises(WorkerError, match=r"failed 2 times.* The run is safe at step [12] "):
        etude.train("grpo", "compose", out=str(tmp_path / "parts"), **where, **SMALL)
    monkeypatch.setattr(Samplers, "finish", finish)
    assert outcome(etude.resume(tmp_path / "parts", quiet=True)) == outcome(whole)


@pytest.mark.skipif(not STAT.exists(), reason="counts processes in /proc")
def test_an_asynchronous_run_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    run = sampling(tmp_path, "--on", "processes", "--bound", "1", forks=True)
    samplers = processes.children(run.pid)
    assert len(samplers) == 1, run.said.read_text()
    run.signal(signal.SIGINT)
    assert run.end()[0] == 130
    assert not any(Path(f"/proc/{pid}").exists() for pid in samplers)
    assert not files_of_weights(run.pid)
    assert any((tmp_path / "run" / "checkpoints").glob("step-*"))


# What is refused


class Blind(Uniform):
    """Says nothing of choosing ahead."""

    chooses_ahead = False


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (get_method("reinforce"), "PolicyGradient is right on rows of the present policy only.*decoupled-surrogate"),
        (get_method("kimi-k1-5"), "goes on in a step with what it kept of the one before"),
        (get_method("t-ppo"), "goes on in a step with what it kept of the one before"),
        (get_method("grpo").replace(curriculum=Blind()), "Blind does not say .chooses_ahead."),
        (get_method("g2rl"), "need the states that rows were sampled from"),
        (get_method("hgpo"), "BothModes asks the policy how likely tokens are that were said for it"),
        (get_method("sasr"), "ByChance chooses the next step by what the last one came to"),
    ],
    ids=["fresh rows", "kept rows", "paused rows", "curriculum", "states", "asked policy", "choosers"],
)
def test_what_cannot_learn_from_older_rows_is_refused(method: Any, sentence: str) -> None:
    task = resolve_task("compose")
    check(method, task, Options(on="local:2"))
    for on in ("local", "processes"):
        with pytest.raises(ConfigError, match=rf"--bound 2 lets rows be older than the policy.*{sentence}"):
            check(method, task, Options(on=on, bound=2))


def test_what_can_is_not(tmp_path: Path) -> None:
    task = resolve_task("compose")
    for method in (get_method("grpo"), get_method("dapo"), get_method("ppo"), get_method("reinforce").replace(
        objective=DecoupledSurrogate()
    )):  # fmt: skip
        check(method, task, Options(on="processes", bound=1))
    with pytest.raises(ConfigError, match="--bound 1 is for methods that sample, and sft learns from data"):
        check(get_method("sft"), task, Options(bound=1))
    with pytest.raises(ConfigError, match="bound must be"):
        Options(bound=-1)
    for name, elsewhere in (("ppo", "CartPole-v1"), ("grpo", "enumerable")):
        with pytest.raises(ConfigError, match="--bound means nothing for"):
            etude.train(name, elsewhere, bound=1, out=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
