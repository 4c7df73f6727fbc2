"""AsyncFlow: rows that are a step old, and what the schedules of its claim take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import etude
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.experiments.systems import asyncflow as experiment

SMALL: dict[str, Any] = {
    "steps": 3, "evaluate": 0, "quiet": True, "threads": 1, "set": ["problems=2", "experience.size=3"]
}  # fmt: skip


def outcome(run: Any) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Metrics without times, and the files of the last checkpoint's model."""
    metrics = [{k: v for k, v in m.items() if "second" not in k} for m in run.metrics]
    newest = sorted((run.folder / "checkpoints").glob("step-*"))[-1]
    return metrics, {f.name: f.read_bytes() for f in newest.rglob("*.safetensors") if f.name != "ahead.safetensors"}


@pytest.mark.slow
def test_without_a_bound_it_is_grpo_and_with_one_it_is_grpo_a_step_ahead(tmp_path: Path) -> None:
    def trained(name: str, method: str, **given: Any) -> Any:
        return outcome(etude.train(method, "compose", out=str(tmp_path / name), **{**SMALL, **given}))

    plain, ahead = trained("plain", "grpo"), trained("ahead", "grpo", bound=1)
    own = trained("own", "asyncflow")
    assert own == ahead
    assert own[1] != plain[1]
    assert [m["lag"] for m in own[0]] == [0, 1, 1]
    assert trained("here", "asyncflow", bound=0)[1] == plain[1]
    assert trained("set", "asyncflow", set=[*SMALL["set"], "bound=0"])[1] == plain[1]


def test_it_changes_how_old_rows_are_and_nothing_else() -> None:
    assert get_method("asyncflow").diff(get_method("grpo")) == {"bound": (0, 1)}


def test_an_objective_that_needs_fresh_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="PolicyGradient is right on rows of the present policy only"):
        etude.train("asyncflow", "compose", out=str(tmp_path / "x"), **{**SMALL, "set": ["objective=policy-gradient"]})
    with pytest.raises(ConfigError, match="has no use for the slot bound"):
        etude.train("asyncflow", "enumerable", out=str(tmp_path / "y"), **SMALL)


@pytest.mark.slow
@pytest.mark.parametrize(("sampled", "learned"), [(3.0, 1.0), (1.0, 3.0), (2.0, 2.0)])
def test_a_step_takes_the_sum_and_a_step_ahead_the_larger(
    sampled: float, learned: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third identity of the row, in the steady state: g + u, and max(g, u)."""
    drawn = experiment.laws(0)
    fixed = replace(drawn, sample=lambda order: sampled, score=lambda order: 0.0, learn=lambda order: learned, load=0.0)
    monkeypatch.setattr(experiment, "laws", lambda seed: fixed)
    monkeypatch.setattr(experiment, "SLOTS", experiment.GROUPS * experiment.SIZE)
    rows = experiment.GROUPS * experiment.SIZE

    def of_a_step(**flow: Any) -> float:
        """The steady state: what more steps take more, beyond the first and the last."""
        taken = []
        for steps in (10, 20):
            monkeypatch.setattr(experiment, "SIMULATED", steps)
            taken.append(steps * rows / experiment.rows_per_second(0, **flow))
        return (taken[1] - taken[0]) / 10

    assert of_a_step(streaming=False) == pytest.approx(sampled + learned)
    assert of_a_step(bound=1) == pytest.approx(max(sampled, learned))


def test_answers_are_the_same_for_all_schedules_of_a_seed() -> None:
    lengths = torch.tensor([float(experiment.length(seed, row)) for seed in (1, 2) for row in range(400)])
    assert lengths.min() >= 8 and lengths.max() == 256
    assert 40 <= lengths.median() <= 56
    assert experiment.length(1, 5) == experiment.length(1, 5) != experiment.length(2, 5)
