"""The probe says whether a member equals its own run here, and disturbs nothing."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import etude
from etude.core.control import ControlTask
from etude.core.edit import set_values
from etude.core.kernels import LATE, requested
from etude.core.method import Method
from etude.core.population import Member
from etude.core.registry import get_method
from etude.learners.state import StateValue
from etude.loops.on_policy import OnPolicyLoop
from etude.loops.probe import members_are_exact
from etude.policies.control import networks
from etude.policies.control.memory import GRU
from etude.policies.control.networks import MLP
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum
from image_toys import Dot
from solo_runs import exact_here

torch.set_num_threads(1)
FIVE = [Member(seed) for seed in range(5)]
PRODUCT = networks.affine
SETTINGS = {"experience.steps": 16, "experience.environments": 2, "epochs": 1}


def method(name: str = "ppo", **changes: Any) -> Method:
    found: Any = get_method(name, "control")
    return found.replace(policy=found.policy.replace(network=MLP(hidden=(16,))), **changes)


def remembering() -> Method:
    found: Any = method(critic=StateValue(shared=True))
    return found.replace(policy=found.policy.replace(memory=GRU(width=5)))


def seeing() -> Method:
    found: Any = method(critic=StateValue(shared=True))
    cnn = networks.CNN(channels=(4,), kernels=(4,), strides=(2,), hidden=(8,))
    return found.replace(policy=found.policy.replace(network=cnn))


RUNS: dict[str, tuple[Method, ControlTask]] = {
    "ppo": (method(), cartpole),
    "ppo-continuous": (set_values(get_method("ppo-continuous"), {"experience.steps": 256}), pendulum),
    "trpo": (method("trpo"), pendulum),
    "gae": (method("gae"), cartpole),
    "recurrent": (remembering(), cartpole),
    "images": (seeing(), Dot()),
}


def lonely(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A product that a lone member computes with other last bits."""
    found = PRODUCT(x, weight, bias)
    return found * (1 + 1e-6) if len(x) == 1 else found


@pytest.mark.first
@pytest.mark.parametrize("name", RUNS)
def test_a_product_that_depends_on_who_is_there_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = OnPolicyLoop(*RUNS[name], FIVE, 2)
    assert members_are_exact(loop) or not exact_here()
    monkeypatch.setattr(networks, "affine", lonely)
    assert not members_are_exact(loop)


def test_members_with_settings_of_their_own_are_tried_with_them() -> None:
    own = [Member(s, {"optimizer.lr": 10**-s, "advantages.lam": 0.3 * s}) for s in range(1, 4)]
    assert members_are_exact(OnPolicyLoop(method(), cartpole, own, 2)) or not exact_here()


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_probe_changes_no_number(name: str) -> None:
    plain, tried = (OnPolicyLoop(*RUNS[name], FIVE[:2], 2) for _ in range(2))
    members_are_exact(tried)
    assert plain.step().members == tried.step().members
    assert torch.equal(plain.parameters.values, tried.parameters.values)


@pytest.mark.kernels
@pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64") or requested() == LATE, reason="no reproducible kernels"
)
def test_reproducible_kernels_are_exact() -> None:
    """Where a mode of MKL was asked for, whichever it is: otherwise a fault of ours would pass as the machine's."""
    assert exact_here()


@pytest.mark.slow
def test_a_run_records_and_says_what_the_probe_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, count in enumerate((3, 1)):
        folder = tmp_path / str(number)
        etude.train("ppo", "cartpole", out=folder, set=SETTINGS, steps=32, seeds=count, evaluate=0)
        recorded, said = json.loads((folder / "environment.json").read_text()), capsys.readouterr().err
        assert recorded["kernels"] == requested()
        if count == 1:  # which is its own run
            assert "members" not in recorded and "its own run" not in said
            continue
        assert recorded["members"] == ("exact" if exact_here() else "to rounding")
        assert ("its own run here, bit for bit" if exact_here() else "to rounding") in said


def test_a_run_that_is_not_exact_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "affine", lonely)
    etude.train("ppo", "cartpole", out=tmp_path / "run", set=SETTINGS, steps=32, seeds=2, evaluate=0)
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["members"] == "to rounding"
    assert "Each member equals its own run here to rounding, not bit for bit." in capsys.readouterr().err
