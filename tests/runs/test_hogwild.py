"""`--on hogwild:W`: one worker is the run without any, several share all numbers and a count; nobody is left."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import etude
import processes
from etude.core.errors import CheckpointError, ConfigError, WorkerError
from etude.core.registry import get_method
from etude.loops.hogwild import HogwildLoop, segments_of
from etude.runs.hogwild import seed_of
from etude.runs.kinds import run_of
from etude.runs.samplers import check as check_samplers
from etude.runs.training import Options, compose_method
from etude.runtime.common import MEMORY, PREFIX, Common, Count
from etude.tasks import resolve_task
from replay_toys import REPLAY

pytestmark = [pytest.mark.usefixtures("one_thread", "forked_roles")]
CLOCK = ("seconds", "steps_per_second", "seconds/experience", "seconds/update")


def train(name: str, out: Path, on: str, steps: int = 750, **more: Any) -> Path:
    etude.train(
        name, "cartpole", out=out, on=on, steps=steps, seeds=1, evaluate=0, quiet=True, checkpoint_every=2, **more
    )  # fmt: skip
    return out


def metrics(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in CLOCK} for row in rows]


def tensors(run: Path, step: int = 3) -> dict[str, torch.Tensor]:
    place = run / f"checkpoints/step-{step}"
    return {f"{f}/{k}": v for f in ("policy", "state") for k, v in load_file(place / f"{f}.safetensors").items()}


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        found += [pid] if state != "Z" else []
    return found


def loop_of(name: str, workers: int, steps: int = 1_000) -> HogwildLoop:
    task = resolve_task("cartpole")
    method: Any = get_method(name, task.world)
    options = Options(steps=steps, seeds=1, on=f"hogwild:{workers}")
    run_of(method).prepare(method, task, options)
    built: Any = run_of(method).build(method, task, options)
    assert isinstance(built, HogwildLoop)
    return built


# What they have in common


@pytest.mark.slow
def test_what_one_process_writes_the_other_reads(tmp_path: Path) -> None:
    sizes = {"a": 2, "b": 3}
    path = Common.create(sizes)
    code = (
        "import sys, torch; from etude.runtime.common import Common, Count; "
        "c = Common(sys.argv[1], {'a': 2, 'b': 3}); c['b'].add_(1.5); "
        "print(c['a'].tolist(), Count(sys.argv[1]).take(9), file=sys.stderr)"
    )
    here, count = Common(path, sizes), Count(path)
    here["a"].copy_(torch.tensor([4.0, 5.0]))
    count.set(6)
    ended, said = processes.python(tmp_path, code, path).end()
    assert (ended, said.split("\n")[0]) == (0, "[4.0, 5.0] 6")
    assert here["b"].tolist() == [1.5] * 3 and count.take(9) == 7
    count.close()
    Common.remove(path)
    assert not Path(path).exists() and here["a"].tolist() == [4.0, 5.0]  # mapped as long as somebody looks


@pytest.mark.slow
def test_no_number_is_taken_twice(tmp_path: Path) -> None:
    path, begin = Common.create({}), tmp_path / "begin"
    code = (
        "import sys, time; from pathlib import Path; from etude.runtime.common import Count; c = Count(sys.argv[1])\n"
        "while not Path(sys.argv[2]).exists(): time.sleep(0.001)\n"
        "print(*iter(lambda: c.take(20_000), None), file=sys.stderr)"
    )
    both = [processes.python(tmp_path, code, path, str(begin)) for _ in range(2)]
    time.sleep(0.1)
    begin.touch()
    taken = [int(n) for one in both for n in one.end()[1].split()]
    Common.remove(path)
    assert sorted(taken) == list(range(20_000))


# One worker


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a3c", "one-step-q", "one-step-sarsa", "n-step-q"])
def test_one_worker_is_the_run_without_any(name: str, tmp_path: Path) -> None:
    alone, worker = train(name, tmp_path / "alone", "local"), train(name, tmp_path / "worker", "hogwild")
    assert metrics(worker) == metrics(alone)
    wanted, found = tensors(alone), tensors(worker)
    assert wanted.keys() == found.keys() and all(torch.equal(found[k], v) for k, v in wanted.items())
    states = [(run / "checkpoints/step-3/state.json").read_text() for run in (alone, worker)]
    assert states[0] == states[1]
    assert "repeats" not in (worker / "environment.json").read_text()


# Two


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a3c", "n-step-q"])
def test_two_workers_train_the_same_numbers_and_go_on_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    loop = loop_of(name, 2)
    try:
        start = {k: v.clone() for k, v in loop.policy_tensors().items()}
        workers = [worker.process.pid for worker in loop.workers.pool.workers]  # type: ignore[attr-defined]
        for step in (1, 2):
            told = loop.step().metrics
            assert told["environment_steps"] == 250 * step and loop.count.taken == 50 * step
            assert told["segments/0"] + told["segments/1"] == 50 * step
        assert all(told[f"segments/{k}"] > 5 for k in range(2))
        assert any(not torch.equal(start[k], v) for k, v in loop.policy_tensors().items())
        (tmp_path / "saved").mkdir()
        loop.save(tmp_path / "saved")
        kept = {k: v.clone() for k, v in loop.policy_tensors().items()}
        states = [load_file(p / "policy.safetensors") for p in (tmp_path / "saved", tmp_path / "saved/workers/1")]
        assert all(torch.equal(a, states[1][k]) and torch.equal(a, kept[k]) for k, a in states[0].items())
        last = loop.step().metrics
        loop.load(tmp_path / "saved")
        assert loop.finished == 2 and loop.count.taken == 100
        assert all(torch.equal(kept[k], v) for k, v in loop.policy_tensors().items())
        again = loop.step().metrics
        assert again["environment_steps"] == last["environment_steps"] == 750
        assert again["segments/0"] + again["segments/1"] == 150
        assert not Path(loop.path).exists()
    finally:
        loop.close()
    assert not alive(workers)


@pytest.mark.slow
def test_a_run_of_two_is_resumed_and_says_that_it_does_not_repeat(tmp_path: Path) -> None:
    run = train("a3c", tmp_path / "run", "hogwild:2")
    etude.resume(run, steps=1_000, quiet=True)
    rows = metrics(run)
    assert [row["step"] for row in rows] == [1, 2, 3, 4] and rows[-1]["environment_steps"] == 1_000
    assert "several workers write without locks" in (run / "environment.json").read_text()
    assert rows[-1]["segments/0"] + rows[-1]["segments/1"] == 200


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_run_in_a_sentence() -> None:
    loop = loop_of("a3c", 2)
    try:
        loop.step()
        pids = [worker.process.pid for worker in loop.workers.pool.workers]  # type: ignore[attr-defined]
        os.kill(pids[1], signal.SIGKILL)
        time.sleep(0.2)
        with pytest.raises(WorkerError, match="Worker 2 of 2 failed 1 times"):
            loop.step()
    finally:
        loop.close()
    assert not alive(pids)


SCRIPT = """
import sys, etude
etude.train("a3c", "cartpole", out=sys.argv[1], on="hogwild:2", steps=10_000_000, seeds=1, evaluate=0, quiet=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_every_process_ends_with_the_run(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C: checkpoint first. Killed: the workers notice. No process and no shared memory is left."""
    run = tmp_path / "run"
    process = processes.python(tmp_path, SCRIPT, str(run), forks=number != signal.SIGKILL)
    pids: list[int] = []
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until and not ((run / "metrics.jsonl").is_file() and len(metrics(run)) > 2):
            time.sleep(0.1)
        pids = [int(p) for p in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        assert len(pids) == 2
        process.signal(number)
        process.end(60)
        until = time.monotonic() + 10
        while time.monotonic() < until and alive(pids):
            time.sleep(0.1)
        assert not alive(pids)
    finally:
        process.kill()
        process.end()
    assert not list(MEMORY.glob(f"{PREFIX}{process.pid}-*"))
    if number == signal.SIGINT:
        steps = [int(p.name.removeprefix("step-")) for p in (run / "checkpoints").iterdir()]
        assert max(steps) == metrics(run)[-1]["step"]


@pytest.mark.slow
def test_a_checkpoint_of_other_workers_is_refused(tmp_path: Path) -> None:
    loop = loop_of("a3c", 1)
    try:
        (tmp_path / "one").mkdir()
        loop.save(tmp_path / "one")
        with pytest.raises(CheckpointError, match="saved by one process: resume it without --on hogwild"):
            loop.load(tmp_path)
        record = json.loads((tmp_path / "one/hogwild.json").read_text())
        (tmp_path / "one/hogwild.json").write_text(json.dumps({**record, "taken": [1, 1]}))
        with pytest.raises(CheckpointError, match="saved by 2 workers: resume it with --on hogwild:2"):
            loop.load(tmp_path / "one")
    finally:
        loop.close()


def test_workers_have_seeds_of_their_own() -> None:
    seeds = [seed_of(seed, rank) for seed in range(20) for rank in range(4)]
    assert len(set(seeds)) == len(seeds) and seeds[::4] == list(range(20)) and max(seeds) < 1 << 31


def test_a_segment_is_what_an_update_learns_from() -> None:
    loop: Any = run_of(REPLAY["n-step-q"]).build(
        REPLAY["n-step-q"], resolve_task("cartpole"), Options(steps=500, seeds=1)
    )
    assert segments_of(loop) == (50, 5)


# Refusals


@pytest.mark.parametrize(
    "name, told, changes, sentence",
    [
        ("a3c", {"seeds": 3}, {}, "one member together, and there are 3: set --seeds 1"),
        ("a3c", {"seeds": 1, "device": "cuda"}, {}, "leave --device out"),
        ("ppo", {"seeds": 1}, {}, "AdamW steps alone on its numbers: set optimizer=rmsprop"),
        ("dqn", {"seeds": 1}, {}, "learns from a replay"),
        ("stream-x", {"seeds": 1}, {}, "ObGD steps alone on its numbers"),
        ("trpo", {"seeds": 1}, {}, "learners that take steps of their own"),
        ("a3c", {"seeds": 1}, {"policy.observations": "normalize-observations"}, "leave it out of observations"),
        ("a3c", {"seeds": 1, "on": "processes:2"}, {}, "run --on hogwild:2"),
        ("a3c", {"seeds": 1, "on": "local:2"}, {}, "for methods that sample tokens"),
    ],
)
def test_what_cannot_be_trained_so_is_refused(
    name: str, told: dict[str, Any], changes: dict[str, Any], sentence: str
) -> None:
    task = resolve_task("cartpole")
    method = compose_method(name, [f"{k}={v}" for k, v in changes.items()], world=task.world)
    with pytest.raises(ConfigError, match=sentence):
        run_of(method).prepare(method, task, Options(**{"steps": 5_000, "on": "hogwild:2", **told}))


def test_token_methods_are_refused() -> None:
    task: Any = resolve_task("compose")
    with pytest.raises(ConfigError, match="for methods of control that learn from each segment once"):
        check_samplers(get_method("grpo"), task, Options(on="hogwild:2"))
