"""Ctrl-C and SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import toyloop
from toyloop import ToyLoop, go, outcome

import processes
from etude.runtime.folder import RunFolder
from etude.runtime.interrupts import Interrupted, Interrupts


def test_the_first_signal_is_a_flag_and_the_second_stops() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        assert interrupts.requested is None
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.requested == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_ignored_signals_stay_ignored_and_threads_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupts.requested is None
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    seen = []

    def inside() -> None:
        with Interrupts() as interrupts:
            seen.append(interrupts.requested)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [None]


class Pressed(ToyLoop):
    """Receives a signal `times` times during its third step."""

    def __init__(self, number: int, times: int = 1) -> None:
        super().__init__()
        self.number, self.times = number, times

    def step(self):
        if self.finished == 2:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)
        return super().step()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_saves_and_says_how_to_go_on(tmp_path: Path, still_clock: None, number: int, code: int) -> None:
    with pytest.raises(Interrupted) as raised:
        go(tmp_path / "run", 5, 100, Pressed(number))
    error = raised.value
    assert error.exit_code == code
    assert (error.result.status, error.result.step) == ("interrupted", 3)
    assert str(error) == (
        f"Stopped by {signal.Signals(number).name} after step 3 of 5. The run is safe at step 3 "
        f"({tmp_path}/run/checkpoints/step-3); go on with: etude train --resume {tmp_path}/run"
    )
    go(tmp_path / "run", 5, 100)
    go(tmp_path / "other", 5, 100)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "other")


def test_a_signal_in_the_last_step_lets_it_finish(tmp_path: Path) -> None:
    assert go(tmp_path / "run", 3, 100, Pressed(signal.SIGINT)).status == "finished"


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    with pytest.raises(
        Interrupted, match=r"Stopped by SIGINT at once, after step 2 of 5\. .* safe at step 2"
    ) as raised:
        go(tmp_path / "run", 5, 2, Pressed(signal.SIGINT, times=2))
    assert raised.value.exit_code == 130
    go(tmp_path / "run", 5, 2)


@pytest.mark.slow
def test_a_real_process_stopped_and_then_killed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    script = Path(toyloop.__file__).read_text()

    def start(until: int) -> processes.Process:
        process = processes.python(tmp_path, script, str(path), "100000", "1000", "0.01")
        deadline = time.monotonic() + 300
        while not (path / "metrics.jsonl").exists() or (path / "metrics.jsonl").read_bytes().count(b"\n") < until:
            assert time.monotonic() < deadline and process.running
            time.sleep(0.01)
        return process

    stopped = start(until=5)
    stopped.signal(signal.SIGINT)
    code, said = stopped.end()
    assert code == 130
    assert f"go on with: etude train --resume {path}\n" in said
    with RunFolder.resume(path) as folder:
        step = folder.step
        assert step >= 5
    killed = start(until=step + 5)
    killed.kill()
    assert killed.end()[0] == -signal.SIGKILL
    go(path, step + 10)  # from the checkpoint: the lines after it, whole and torn, are cut off
    go(tmp_path / "whole", step + 10)
    mine, whole = outcome(path), outcome(tmp_path / "whole")
    assert (
        mine[f"checkpoints/step-{step + 10}/state.safetensors"]
        == whole[f"checkpoints/step-{step + 10}/state.safetensors"]
    )
    assert mine[f"checkpoints/step-{step + 10}/state.json"] == whole[f"checkpoints/step-{step + 10}/state.json"]
    assert mine["episodes.jsonl"] == whole["episodes.jsonl"]
