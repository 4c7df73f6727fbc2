"""Runs that are killed, stopped, damaged, or aimed at one folder; secrets, hostile text, sinks that fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from command import Cli, tiny

import processes

pytestmark = pytest.mark.slow
CLOCK = ("seconds", "tokens_per_second", "seconds/experience", "seconds/update")
SIZES = {"problems": 2, "experience.size": 4}
SET = tuple(word for name, size in SIZES.items() for word in ("--set", f"{name}={size}"))
LONG = ("--evaluate", "0", "--checkpoint-every", "2", *SET, "--out", "run")


def start(folder: Path, *args: str) -> processes.Process:
    """`etude train ARGS` in a process of its own."""
    return processes.etude(folder, "train", "grpo", *LONG, *args)


def wait_for_steps(process: processes.Process, folder: Path, count: int) -> None:
    """Wait until the run has logged this many steps."""
    log, deadline = folder / "run/metrics.jsonl", time.monotonic() + 300
    while not log.exists() or log.read_bytes().count(b"\n") < count:
        assert process.running, process.end()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def numbers(folder: Path) -> list[dict[str, Any]]:
    """The metrics without what a clock measured."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in CLOCK} for line in lines]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing happened to."""
    import etude

    folder = tmp_path_factory.mktemp("whole") / "run"
    etude.train("grpo", steps=10, evaluate=0, checkpoint_every=2, set=SIZES, out=folder, quiet=True)
    return folder


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_any_moment_and_resumed_equals_never_stopped(
    cli: Cli, tmp_path: Path, uninterrupted: Path, seed: int
) -> None:
    moment = Random(seed)
    process = start(tmp_path, "--steps", "10", "--quiet")
    wait_for_steps(process, tmp_path, moment.randint(1, 6))
    time.sleep(moment.uniform(0, 0.05))
    process.kill()
    code, err = process.end()
    assert code == -signal.SIGKILL, err
    assert not (tmp_path / "run/FINISHED").exists(), "killed in the middle"
    answer = cli("train", "--resume", "run", "--quiet")
    assert answer.code == 0, answer.err
    assert numbers(tmp_path / "run") == numbers(uninterrupted)
    for name in ("state.safetensors", "model/model.safetensors"):
        ours, theirs = (f / "checkpoints/step-10" / name for f in (tmp_path / "run", uninterrupted))
        assert ours.read_bytes() == theirs.read_bytes(), name
    episodes = [(f / "episodes.jsonl").read_bytes() for f in (tmp_path / "run", uninterrupted)]
    assert episodes[0] == episodes[1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(cli: Cli, tmp_path: Path, number: signal.Signals, code: int) -> None:
    process = start(tmp_path, "--steps", "5000")
    wait_for_steps(process, tmp_path, 1)
    if number is signal.SIGINT:  # while it runs, nobody else gets the folder
        for second in (("train", "grpo", *LONG), ("train", "--resume", "run")):
            refused = cli(*second)
            assert refused.code == 2
            assert f"run is in use by process {process.pid} on " in refused.sentence
    process.signal(number)
    ended, err = process.end()
    assert ended == code
    assert "Traceback" not in err
    last = err.strip().splitlines()[-1]
    assert last.startswith(f"etude: Stopped by {number.name} after step ")
    assert last.endswith("; go on with: etude train --resume run")
    done = len(numbers(tmp_path / "run"))
    assert (tmp_path / f"run/checkpoints/step-{done}/COMPLETE").exists()
    command = last.rpartition(": etude ")[2].split()
    assert cli(*command, "--steps", str(done + 1), "--quiet").code == 0
    assert [line["step"] for line in numbers(tmp_path / "run")] == list(range(1, done + 2))


def test_ctrl_c_before_the_first_step_leaves_nothing(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("etude.runs.session._evaluate", interrupted)
    answer = cli("train", "grpo", *tiny(), "--out", "run")
    assert answer.code == 130
    assert answer.sentence == "etude: Stopped by Ctrl-C."
    assert not (tmp_path / "run").exists()


def test_ctrl_c_while_sampling_afterwards_loses_nothing(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from etude.runs.session import _evaluate as evaluate

    def interrupted(folder: Any, loop: Any, task: Any, options: Any, when: str, *known: Any) -> Any:
        if when == "after":
            raise KeyboardInterrupt
        return evaluate(folder, loop, task, options, when, *known)

    monkeypatch.setattr("etude.runs.session._evaluate", interrupted)
    answer = cli("train", "grpo", *tiny(), "--out", "run")
    assert answer.code == 130
    assert (
        "The 2 steps are done (run/checkpoints/step-2); sample again with: etude train --resume run" in answer.sentence
    )
    monkeypatch.setattr("etude.runs.session._evaluate", evaluate)
    assert cli("train", "--resume", "run", "--quiet").code == 0
    assert "after" in json.loads((tmp_path / "run/evaluation.json").read_text())


def test_a_folder_of_something_else_is_never_touched(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.tex").write_text("years of work")
    answer = cli("train", "grpo", *tiny(), "--out", "thesis")
    assert answer.code == 2
    assert "is not empty and is not a run" in answer.sentence
    assert [p.name for p in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]


def test_a_folder_of_ones_own_stays_when_the_run_cannot_start(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert cli("train", "grpo", *tiny(), "--device", "gpu", "--out", "mine").code == 2
    assert (tmp_path / "mine").is_dir()
    assert cli("train", "grpo", *tiny(evaluate=0), "--out", "mine").code == 0, "and can still be used"


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(cli: Cli, tmp_path: Path, damage: str) -> None:
    cli("train", "grpo", *tiny(steps=3, evaluate=0), "--checkpoint-every", "1", "--out", "run")
    before = numbers(tmp_path / "run")
    state = tmp_path / "run/checkpoints/step-3/state.safetensors"
    whole = state.read_bytes()
    if damage == "gone":
        state.unlink()
    else:
        state.write_bytes(whole[:-100] if damage == "cut" else whole[:-1] + bytes([whole[-1] ^ 1]))
    answer = cli("train", "--resume", "run", "--quiet")
    assert answer.code == 0, answer.err
    assert "step-3" in answer.sentence and "step-2" in answer.sentence, "it is said, also with --quiet"
    assert "state.safetensors" in answer.sentence
    assert numbers(tmp_path / "run") == before
    assert (tmp_path / "run/checkpoints/step-3/state.safetensors").read_bytes() == whole


def test_no_secret_of_the_environment_is_written_down(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {"WANDB_API_KEY": "k-5e0c3t-1", "HF_TOKEN": "hf_5e0c3t_2", "MY_PASSWORD": "pass-5e0c3t-3"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    assert cli("train", "grpo", *tiny(), "--out", "run").code == 0
    for path in (p for p in (tmp_path / "run").rglob("*") if p.is_file()):
        assert not any(value.encode() in path.read_bytes() for value in secrets.values()), path


HOSTILE = "\x1b[31mred\x1b[0m \x00 \x1b]0;title\x07 <script>alert(1)</script> [bold]b[/bold] \u202egnp"


def test_hostile_text_is_only_shown(cli: Cli, tmp_path: Path) -> None:
    rows = [{"prompt": f"{HOSTILE} {i}>", "answer": "x"} for i in range(8)]
    (tmp_path / "evil.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    flags = (*(f for f in tiny() if f != "--quiet"), "--set", "task.max_tokens=8")
    shown = cli("train", "grpo", "--task", "evil.jsonl", *flags, "--out", "run")
    assert shown.code == 0, shown.err
    for kind in ("evaluation.json", "episodes.jsonl"):  # what a policy might have said
        path = tmp_path / "run" / kind
        texts = path.read_text()
        for key in ("completion", "text"):
            texts = texts.replace(f'"{key}": "', f'"{key}": {json.dumps(HOSTILE)[:-1]}')
        path.write_text(texts)
        assert json.dumps(HOSTILE)[1:-1] in texts
    again = cli("train", "--resume", "run")
    listed = cli("tasks", "show", "evil.jsonl")
    for answer in (shown, again, listed):
        assert "script" in answer.out
        assert not {"\x1b", "\x00", "\x07", "\u202e"} & {*answer.out, *answer.err}
        assert "[bold]b" in answer.out.replace("\n", ""), "markup is text"
    page = (tmp_path / "run/report.html").read_text()
    assert "&lt;script&gt;alert" in page
    assert "<script>alert" not in page
    assert not {"\x1b", "\x00"} & {*page}


def test_a_sink_never_stops_a_run(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise OSError("the network is down")

    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    monkeypatch.setattr("etude.runtime.sinks.TensorBoardSink.__init__", broken)
    monkeypatch.setattr("etude.runtime.sinks.TrackioSink.__init__", lambda *args: None)
    monkeypatch.setattr("etude.runtime.sinks.TrackioSink.log", broken)
    monkeypatch.setattr("etude.runtime.sinks.TrackioSink.close", broken)
    sinks = [x for name in ("wandb", "tensorboard", "trackio") for x in ("--sink", name)]
    answer = cli("train", "grpo", *tiny(evaluate=0), *sinks, "--out", "run")
    assert answer.code == 0
    assert len(numbers(tmp_path / "run")) == 2
    said = [line for line in answer.err.splitlines() if line]
    assert len(said) == 3
    assert "W&B needs an optional dependency; install it with: pip install 'etude[sinks]'" in said[0]
    assert all("the network is down" in line and "metrics.jsonl has them all" in line for line in said[1:])


def test_a_reader_that_has_gone_is_no_traceback() -> None:
    """`etude tasks | head -1`, when nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "etude", "tasks"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.stderr == ""
