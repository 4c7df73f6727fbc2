"""Populations on another device than their environments: one that is pretended here, and a GPU where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import etude
from control_toys import PoisonedTask
from etude.core import kernels
from etude.core.errors import ConfigError
from etude.core.population import Member
from etude.core.registry import get_method
from etude.evaluation.control import play
from etude.loops import on_policy
from etude.loops.on_policy import OnPolicyLoop
from etude.policies.control.memory import GRU
from etude.policies.control.networks import MLP
from etude.policies.control.observations import NormalizeObservations
from etude.regularizers.target_kl import TargetKL
from etude.rewards.running import NormalizeRewards
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum
from two_devices import TwoDevices, mark

torch.set_num_threads(1)
STEPS, META = 16, torch.device("meta")
KINDS = ["ppo", "halting", "settings", "recurrent", "a2c", "gae", "trpo", "npg", "v-mpo", "pendulum", "poisoned"]


def made(kind: str, device: torch.device = on_policy.CPU, steps: int = 3) -> OnPolicyLoop:
    """A small run of a kind."""
    found: Any = get_method(kind if kind in ("a2c", "gae", "trpo", "npg", "v-mpo") else "ppo", "control")
    found = found.replace(
        policy=found.policy.replace(network=MLP(hidden=(8,)), observations=(NormalizeObservations(),)),
        experience=found.experience.replace(environments=4, steps=STEPS),
        rewards=(NormalizeRewards(),),
    )
    members = [Member(s, {"optimizer.lr": lr} if kind == "settings" else {}) for s, lr in ((0, 1e-3), (1, 1e-2))]
    if kind == "halting":
        found = found.replace(regularizers=(*found.regularizers, TargetKL(target=1e-4)))
    if kind == "recurrent":
        memory = found.policy.replace(memory=GRU(width=8))
        found = found.replace(policy=memory, critic=found.critic.replace(shared=True), minibatches=2)
    task = {"pendulum": pendulum, "poisoned": PoisonedTask(poison=100.0)}.get(kind, cartpole)
    return OnPolicyLoop(found, task, members, steps, device)


def state(loop: OnPolicyLoop) -> dict[str, torch.Tensor]:
    return {**loop.policy_tensors(), **loop.updater.tensors()}


@pytest.fixture(autouse=True)
def torchs_tanh(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on a device has torch's tanh, and the pretended one's tensors say that they are the CPU's."""
    monkeypatch.setattr(kernels, "numpy_tanh", lambda: False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_step_mixes_devices(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps, a checkpoint, an evaluation and another step, with the numbers of the CPU, bit for bit."""
    plain, loop = made(kind), made(kind)
    plain.step(), plain.step()
    load = on_policy.load_tensors
    monkeypatch.setattr(on_policy, "load_tensors", lambda path: {k: mark(v) for k, v in load(path).items()})
    with TwoDevices() as devices:
        loop.step(), loop.step()
        assert (devices.up, devices.down) == (2 * STEPS, 2 * STEPS), "one transfer each way and step"
        loop.save(tmp_path)
        loop.load(tmp_path)
        if kind != "poisoned":
            returns = play(loop, loop.task, 2, longest=20)
        loop.step()
    if kind != "poisoned":
        assert (play(plain, plain.task, 2, longest=20) == returns).all()
    plain.step()
    for name, value in state(plain).items():
        assert torch.equal(value, state(loop)[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_is_trained_is_made_there(kind: str) -> None:
    found = made(kind, META)
    there = [*state(found).values(), found.collector.player.memory, found.updater.parameters.gradient]
    assert {x.device for x in there} == {META}
    assert not isinstance(found.collector.observations, torch.Tensor)


def test_the_pretended_device_notices() -> None:
    with TwoDevices():
        there, here = torch.zeros(3, device="cpu"), torch.ones(3)
        for wrong in (lambda: there + here, lambda: torch.stack([there, here]), there.numpy, lambda: there.add_(here)):
            with pytest.raises(AssertionError, match=r"both devices|on the device"):
                wrong()
        assert (there + here.to(there.device)).cpu().numpy().tolist() == [1, 1, 1]
        assert (there + torch.tensor(2.0))[torch.tensor([0])].tolist() == [2]


def test_a_device_that_is_not_here_is_refused(tmp_path: Path) -> None:
    device = "cuda" if not torch.cuda.is_available() else "cuda:99"
    with pytest.raises(ConfigError, match=rf"device must be 'auto', 'cpu', .*got '{device}'"):
        etude.train("ppo", "CartPole-v1", steps=100, device=device, out=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"device must be 'cpu' or 'cuda' in control, .*; got 'mps'"):
        etude.train("ppo", "CartPole-v1", steps=100, device="mps", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_trains_what_the_cpu_trains(kind: str, tmp_path: Path) -> None:
    here, there = made(kind), made(kind, torch.device("cuda"))
    for loop in (here, there):
        loop.step()
    for name, value in state(here).items():
        torch.testing.assert_close(state(there)[name].cpu(), value, rtol=2e-2, atol=2e-3, msg=name)
    there.save(tmp_path)
    again = made(kind, torch.device("cuda"))
    again.load(tmp_path)
    assert {x.device.type for x in state(again).values()} == {"cuda"}
    there.step(), again.step()
    for name, value in state(there).items():
        torch.testing.assert_close(state(again)[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_run_on_a_gpu(tmp_path: Path) -> None:
    done = etude.train(
        "ppo", "CartPole-v1", seeds=2, steps=2048, evaluate=2, device="cuda", out=tmp_path / "run", quiet=True
    )
    assert done.evaluation["after"]["test"]["return"]["value"] > 0
    assert etude.evaluate(done.folder, episodes=2)["test"]["return"].value > 0
