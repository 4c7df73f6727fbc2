"""Runs that learn from a replay: who only acts builds no ring and reads none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import etude
from etude.core.errors import ConfigError
from etude.runtime import checkpoints

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {
    "experience.capacity": 300, "experience.random": 50, "experience.warmup": 200, "experience.every": 50,
    "experience.updates": 0.02, "sampling.batch": 8, "critic.network.hidden": "8",
    "critic.learning.target.every": 1,
}  # fmt: skip


@pytest.mark.slow
def test_acting_needs_nothing_of_what_was_stored(tmp_path: Path) -> None:
    """Its files are gone, and its ring would not fit any machine."""
    run = tmp_path / "run"
    etude.train("dqn", "cartpole", out=run, set=SMALL, steps=250, seeds=2, evaluate=0, quiet=True)
    before = etude.evaluate(run, episodes=2)["test"]["return"].members
    for stored in (run / "checkpoints").glob("step-*/replay"):
        shutil.rmtree(stored)
    method = json.loads((run / "method.json").read_text())
    absurd = json.dumps(method).replace('"capacity": 300', f'"capacity": {10**15}')
    assert str(10**15) in absurd
    (run / "method.json").write_text(absurd)
    assert etude.evaluate(run, episodes=2)["test"]["return"].members == before
    assert etude.policy(run)([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert Path(etude.export(run, tmp_path / "policy.pt2")).is_file()
    back, said = checkpoints.newest(run / "checkpoints")  # from which the run would go on
    assert back.name == "step-0" and "step-1 is damaged: replay/000000.safetensors is missing" in said[0]


@pytest.mark.slow
def test_a_run_that_ends_before_its_first_update_is_refused(tmp_path: Path) -> None:
    """250 steps, the length of a block, with updates from the 300th on; 251 are two blocks."""
    late = {**SMALL, "experience.warmup": 300}
    with pytest.raises(
        ConfigError, match=r"dqn would make no update in 250 environment steps: lower experience\.warmup"
    ):
        etude.train("dqn", "cartpole", out=tmp_path / "run", set=late, steps=250, seeds=2, evaluate=0, quiet=True)
    assert not (tmp_path / "run").exists()
    done = etude.train("dqn", "cartpole", out=tmp_path / "run", set=late, steps=251, seeds=1, evaluate=0, quiet=True)
    assert done.metrics[-1]["updates"] == 4
