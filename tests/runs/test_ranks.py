"""`--ranks`: the run of one process, whoever takes its updates, and whatever becomes of them."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import etude
import processes
import rank_toys
from etude.core.errors import ConfigError, WorkerError
from etude.core.registry import get_method
from etude.loops import update
from etude.loops.team import Team
from etude.policies.adapters import NAMED
from etude.rewards.function import CallableReward
from etude.runs.ranks import check
from etude.runs.training import Options
from etude.tasks import resolve_task
from rank_toys import GRPO, assert_alike, killed

pytestmark = pytest.mark.usefixtures("one_thread", "forked_roles")
CHANGES = {"grpo": GRPO, "dpo": ("problems=4",), "ppo": ("problems=4", "critic=value-model")}


def trained(method: str, out: Path, **options: Any) -> etude.Result:
    return rank_toys.trained(method, out, CHANGES[method], **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[etude.Result]:
    """What one process comes to."""
    return trained("grpo", tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ppo", "dpo"])
def test_two_ranks_come_to_the_checkpoint_of_one_process(method: str, tmp_path: Path) -> None:
    one, two = (trained(method, tmp_path / str(ranks), ranks=ranks) for ranks in (1, 2))
    assert_alike(one, two)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(whole: etude.Result, tmp_path: Path) -> None:
    trained("grpo", tmp_path / "run", ranks=2, until=1)
    etude.resume(tmp_path / "run", ranks=3, until=2, quiet=True)
    assert_alike(whole, etude.resume(tmp_path / "run", ranks=1, quiet=True))


@pytest.mark.slow
def test_a_rank_that_is_killed_stops_the_run_which_goes_on(
    whole: etude.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First between two steps, then in the middle of one."""
    lead, teams = Team.lead, list[Team]()

    def first(self: Team, model: Any, lesson: Any, step: int, learn: Any) -> Any:
        teams.append(self)
        if step == 1:
            killed(self)
        return lead(self, model, lesson, step, learn)

    def second(ranks: Any, parameters: Any) -> None:
        killed(teams[-1])
        add(ranks, parameters)

    monkeypatch.setattr(Team, "lead", first)
    with pytest.raises(WorkerError, match=r"Other rank 1 of 1 .*lost its process.* The run is safe at step 1 "):
        trained("grpo", tmp_path / "run", ranks=2)
    add = update.add_gradients
    monkeypatch.setattr(Team, "lead", lambda self, *told: (teams.append(self), lead(self, *told))[1])
    monkeypatch.setattr(update, "add_gradients", second)
    with pytest.raises(WorkerError, match=r"Other rank 1 of 1 .*lost its process.* The run is safe at step 1 "):
        etude.resume(tmp_path / "run", quiet=True)
    monkeypatch.undo()
    assert_alike(whole, etude.resume(tmp_path / "run", ranks=1, quiet=True))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="counts processes in /proc")
@pytest.mark.parametrize(
    ("number", "code", "flags"),
    [(signal.SIGINT, 130, ()), (signal.SIGKILL, -9, ("--shard",))],
)
def test_however_it_is_stopped_no_rank_is_left(
    number: signal.Signals, code: int, flags: tuple[str, ...], tmp_path: Path
) -> None:
    run = processes.etude(
        tmp_path, "train", "sft", "--steps", "5000", "--evaluate", "0", "--out", "run", "--set", "problems=2",
        "--no-preset", "--ranks", "2", *flags, forks=number != signal.SIGKILL,
    )  # fmt: skip
    log, due = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 120
    while not (log.is_file() and log.stat().st_size) and run.running and time.monotonic() < due:
        time.sleep(0.05)
    others = processes.children(run.pid)
    assert len(others) == 1, run.said.read_text()
    run.signal(number)
    assert run.end()[0] == code
    due = time.monotonic() + (10 if number == signal.SIGKILL else 0)
    while (left := [pid for pid in others if Path(f"/proc/{pid}").exists()]) and time.monotonic() < due:
        time.sleep(0.05)
    assert not left


def test_who_cannot_be_several_ranks_is_told_so() -> None:
    grpo, task = get_method("grpo"), resolve_task("compose")
    check(grpo, task, Options(ranks=2))
    dropping = NAMED["lora"].replace(dropout=0.1)
    with pytest.raises(ConfigError, match="each rank has others: leave --ranks out"):
        check(get_method("sft"), task, Options(ranks=2, adapter=dropping))
    here = grpo.replace(rewards=(CallableReward(function=lambda completions, answers: [0.0], weight=1.0),))
    check(here, task, Options())
    with pytest.raises(ConfigError, match="put its functions into a file"):
        check(here, task, Options(ranks=2))
    with pytest.raises(ConfigError, match="--ranks means nothing for"):
        etude.train("ppo", "CartPole-v1", ranks=2)
