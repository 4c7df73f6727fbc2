"""`etude doctor`: what there is, and what is missing."""

from __future__ import annotations

import json
from importlib import metadata

import pytest
import torch
from command import Cli

from etude.cli.doctor import _show
from etude.runs import doctor, speeds


@pytest.mark.slow
def test_it_says_what_there_is(cli: Cli) -> None:
    answer = cli("doctor")
    assert answer.code == 0, answer.out
    possible = ("All is well.", "last digits", "GB are free", "with another BLAS")
    assert any(words in answer.out for words in possible)
    found = json.loads(cli("doctor", "--json").out)
    assert found["here"]["versions"]["torch"] in answer.out.replace("\n", "")
    assert {e["name"] for e in found["extras"]} == {
        *(metadata.metadata("etude").get_all("Provides-Extra") or ())
    } - {"dev"}  # fmt: skip
    assert all(e["name"] in doctor.FOR for e in found["extras"]), "every extra says what it is for"
    assert all(p["fits"] for p in found["packages"])


@pytest.mark.slow
def test_what_is_missing_or_too_old_is_a_sentence(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    there = doctor.version
    planted = {"transformers": "4.1", "scipy": None, "peft": None}
    monkeypatch.setattr(doctor, "version", lambda name: planted[name] if name in planted else there(name))
    monkeypatch.setattr(doctor, "members_equal_their_own_runs", lambda: False)
    answer = cli("doctor")
    assert answer.code == 1
    assert "transformers 4.1 is installed, and etude needs transformers>=4.56: pip install 'trans" in answer.out
    assert "scipy is not installed, and etude needs scipy>=1.11" in answer.out
    assert "pip install 'etude[peft]'" in answer.out and "(lacks peft)" in " ".join(answer.out.split())
    assert "Members of a population are not bit for bit their own runs" in answer.out


def test_little_room_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10**9}))
    monkeypatch.setattr(doctor, "members_equal_their_own_runs", lambda: True)
    monkeypatch.setattr(speeds, "MUCH", float("inf"))
    assert doctor.examine().sentences == ["1.0 GB are free here: checkpoints may not find room."]


@pytest.mark.slow
def test_gpus_are_devices_and_an_apple_gpu_is_said_not_to_be_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "members_equal_their_own_runs", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"NVIDIA H{i}00")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    health = doctor.examine()
    assert health.here["devices"] == ["NVIDIA H000", "NVIDIA H100", doctor.MPS] and "not used" in doctor.MPS
    _show(health)
    assert "NVIDIA H000, NVIDIA H100, mps (not used: it has no float64)" in " ".join(capsys.readouterr().out.split())


def test_what_float32_reaches_by_each_library_is_a_line() -> None:
    found = speeds.measure()
    assert all(0 < rate < 1e5 for rate in found.products.values()) and "NumPy's BLAS" in found.products
    assert found.advice() is None or "another BLAS" in str(found.advice())
    even = speeds.Speeds({"MKL": 100.0, "oneDNN": 139.0, "NumPy's BLAS": 90.0}, {"torch": 2.7, "NumPy": 0.39}, "NumPy")
    assert str(even) == (
        "products 100 (MKL), 139 (oneDNN), 90 (NumPy's BLAS) GFLOP/s a core; tanh 2.7 (torch), 0.4 (NumPy) ns a "
        "number, control takes NumPy's"
    )
    assert even.advice() is None
    slow = speeds.Speeds({"MKL": 100.0, "oneDNN": 230.0}, {}, "torch")
    assert "reach 100 GFLOP/s a core by MKL, which torch takes, and 230 by oneDNN" in str(slow.advice())
    assert speeds.Speeds({"MKL": 100.0}, {}, "torch").advice() is None
