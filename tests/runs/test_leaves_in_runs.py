"""Runs on environments that show several things: what they take, say and record, evaluate and export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import etude
from etude.core.errors import ConfigError
from etude.runs.export import export
from leaf_toys import GRID


@pytest.mark.slow
def test_a_run_takes_multi_input_and_says_and_records_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"experience.environments": 2, "experience.steps": 16, "policy.network.hidden": "8", "epochs": 1}
    done = etude.train("ppo", GRID, set=small, steps=64, seeds=2, evaluate=2, out=tmp_path / "run")
    method: Any = json.loads((tmp_path / "run" / "method.json").read_text())
    network = method["policy"]["network"]
    assert network["part"] == "multi-input" and network["joint"]["hidden"] == [8]
    assert [p["part"] for p in method["policy"]["observations"]] == ["normalize-observations"]
    said = capsys.readouterr().err
    assert "shows more than a vector: policy.network=multi-input, critic.network=multi-input (`etude check" in said
    again = etude.train(config=tmp_path / "run" / "run.toml", out=tmp_path / "again")
    for metric in ("loss", "entropy"):
        assert again.metrics[-1][metric] == done.metrics[-1][metric]
    program: Any = torch.export.load(export(tmp_path / "run", tmp_path / "grid.pt2")).module()
    shown = {
        "camera": torch.zeros(3, 7, 7, 3, dtype=torch.uint8), "depth": torch.zeros(3, 5, 5, 1),
        "direction": torch.tensor([1, 2, 3]), "plan": torch.zeros(3, 4, 4, 2, dtype=torch.bool),
        "speed": torch.zeros(3, 2, dtype=torch.float64),
    }  # fmt: skip
    assert program(shown).shape == (3,)


@pytest.mark.slow
def test_fields_of_the_network_that_the_task_asks_for(tmp_path: Path) -> None:
    """Set by their path, beside those of the perceptron that was there; what is nowhere is refused with the path."""
    small = {"experience.environments": 2, "experience.steps": 16, "epochs": 1, "policy.network.hidden": "8"}
    image = {f"network.image.{field}": value for field, value in
             {"channels": "4,4", "kernels": "2,2", "strides": "1,1", "hidden": "8"}.items()}  # fmt: skip
    options: Any = {"steps": 32, "seeds": 1, "evaluate": 0, "quiet": True}
    etude.train("ppo", GRID, set={**small, "network.image": "cnn", **image}, out=tmp_path / "run", **options)
    method: Any = json.loads((tmp_path / "run" / "method.json").read_text())
    assert [method[slot]["network"]["image"]["channels"] for slot in ("policy", "critic")] == [[4, 4], [4, 4]]
    assert method["policy"]["network"]["joint"]["hidden"] == [8]
    with pytest.raises(ConfigError, match=r"cnn has it: first set network=cnn, or network\.image=cnn\."):
        etude.train("ppo", GRID, set={**small, "network.channels": "4,4"}, **options)
    with pytest.raises(ConfigError, match=r"There is policy\.network\.image\.hidden and policy\.network\.vector\.hid"):
        etude.train("ppo", GRID, set={"network": "multi-input", "network.hidden": "8"}, **options)
    with pytest.raises(ConfigError, match=r"no field of MLP named 'channels'"):  # where a vector is shown
        etude.train("ppo", "cartpole", set={"network.channels": "4,4"}, **options)
