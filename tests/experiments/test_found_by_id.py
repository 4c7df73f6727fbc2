"""The experiment of a claim is found by the method's id."""

from __future__ import annotations

from pathlib import Path

import pytest

import etude.experiments
from etude.core.registry import family, files, get_method
from etude.experiments import experiment_file, experiment_of

FOLDER = Path(etude.experiments.__file__).parent
SHARED = {"chain_model", "path_models", "recorded_games"}
"""Models that the experiments of several methods train, and games that several learn from."""


def test_every_experiment_belongs_to_a_claim() -> None:
    found = [p for p in FOLDER.glob("*/*.py") if p.stem != "__init__" and p.stem not in SHARED]
    assert len(found) > 25
    for path in found:
        name = path.stem.replace("_", "-")
        assert name in files("methods"), f"{path} is no method's"
        assert path.parent.name == family("methods", name)
        assert experiment_file(name) == path
        assert get_method(name).claim is not None


@pytest.mark.parametrize("name", ["gae", "reinforce", "reward-model", "ppo-rlhf", "hpt"])
def test_it_can_be_called(name: str) -> None:
    own = experiment_of(name)
    assert callable(own)
    assert own.__module__ == f"etude.experiments.{family('methods', name)}.{name.replace('-', '_')}"


@pytest.mark.parametrize("name", ["dapo", "no-such-method", "mine.py:hpt"])
def test_other_claims_compare_runs(name: str) -> None:
    assert experiment_of(name) is None
