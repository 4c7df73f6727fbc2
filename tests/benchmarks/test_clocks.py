"""What benchmarks put a clock on from outside is there, and is what a step goes through."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import limits  # noqa: E402
from check_costs import CHECKS, found  # noqa: E402


@pytest.mark.parametrize("place", CHECKS)
def test_a_check_whose_cost_is_measured_is_there(place: str) -> None:
    assert callable(found(place)[2])


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_step_is_its_sampling_its_update_and_little_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.Conversation, "sample", limits.Conversation.sample)  # is put back
    loop = limits.main_job()
    parts = limits.measure(loop, 1)
    assert 0 < parts["rest"] < parts["sampling"] + parts["update"] < parts["step"]
    assert parts["operations"] > 1e9
