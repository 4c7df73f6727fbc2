"""Learning from a replay on another device than the environments: a pretended one, and a GPU where there is one."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from etude.core.edit import set_value
from etude.core.population import CPU, Member
from etude.experience.augment import RandomShift
from etude.experience.images import ImageStore
from etude.experience.sampling import UniformRows
from etude.experience.store import Store
from etude.loops import off_policy
from etude.loops.off_policy import OffPolicyLoop
from etude.runtime import checkpoints
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY, acts_in_boxes, small
from spot_toys import SpotTask, encoded, seeing
from two_devices import TwoDevices, mark

torch.set_num_threads(1)
META = torch.device("meta")
KINDS = ["dqn", "rainbow", "td3", "sac", "mrq", "avg", "images", "encoder"]


def made(kind: str, device: torch.device = CPU) -> OffPolicyLoop:
    """A small run of a method, or of one that sees images."""
    task: Any = SpotTask(boxes=kind == "encoder")
    if kind == "images":
        method = seeing(2)
    elif kind == "encoder":
        method = encoded("sac", ("policy", "temperature"))
    else:
        method, task = small(REPLAY[kind]), pendulum if acts_in_boxes(REPLAY[kind]) else cartpole
    if isinstance(task, SpotTask):
        method = method.replace(sampling=UniformRows(batch=6, augment=RandomShift(1)))
    if kind == "td3":
        method = set_value(method, "exploration=ornstein-uhlenbeck")
    return OffPolicyLoop(method, task, [Member(3), Member(4, {"rate": 0.5})], 4, 18, device)


def everything(loop: OffPolicyLoop) -> dict[str, torch.Tensor]:
    store = loop.collector.store
    return {**loop.policy_tensors(), **loop.updater.tensors(), "rows": store.grid[:, : store.size]}


@pytest.mark.first
@pytest.mark.parametrize("kind", KINDS)
def test_no_step_mixes_devices(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block, a checkpoint, and another block from that, with the numbers of the CPU, bit for bit."""
    plain, loop = made(kind), made(kind)
    plain.step()
    load, stored = off_policy.load_tensors, checkpoints.load_tensors
    monkeypatch.setattr(off_policy, "load_tensors", lambda path: {k: mark(v) for k, v in load(path).items()})
    monkeypatch.setattr(checkpoints, "load_tensors", lambda path: {k: mark(v) for k, v in stored(path).items()})
    if isinstance(store := loop.collector.store, ImageStore):
        mark(store.before)
    mark(loop.watched.largest)
    with TwoDevices() as devices:
        loop.step()
        assert loop.updater.updates > 2
        assert devices.up < 4 * loop.collector.taken + 40, "what is stored goes up once a step, random numbers seldom"
        loop.save(tmp_path)
        loop.load(tmp_path)
        loop.step()
    plain.step()
    for name, value in everything(plain).items():
        assert torch.equal(value, everything(loop)[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_learns_and_is_stored_is_made_there(kind: str) -> None:
    found = made(kind, META)
    assert {x.device for x in everything(found).values()} == {META}
    assert not isinstance(found.collector.observations, torch.Tensor)


class Asking(TorchDispatchMode):
    """Counts what makes a program wait for the device: numbers and places that are asked of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(word in str(func) for word in ("_local_scalar_dense", "nonzero", "equal.default", "masked_select")):
            self.asked.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.first
@pytest.mark.parametrize("kind", KINDS)
def test_an_update_on_a_device_asks_it_for_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the numbers of an update on the CPU, where asking costs nothing and saves work."""
    here, there = made(kind), made(kind)
    for trainer in there.updater.trainers.values():
        monkeypatch.setattr(trainer.stepper.failures, "here", False)
    for loop in (here, there):
        for _ in range(18):
            loop.collector.step()
        loop.updater.run(loop.collector.store, loop.updater.rates(0, 1))
    with Asking() as mode:
        bool(torch.ones(1))
        assert len(mode.asked) == 1
        for _ in range(3):
            there.updater.run(there.collector.store, there.updater.rates(0, 1))
    assert mode.asked[1:] == []
    for _ in range(3):
        here.updater.run(here.collector.store, here.updater.rates(0, 1))
    for name, value in everything(here).items():
        assert torch.equal(value, everything(there)[name]), name


def test_what_is_in_a_file_is_not_on_the_device() -> None:
    assert Store(1, 1, 10, (2,), 1, on_disk=True, device=META).device == CPU


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize("kind", ["dqn", "sac", "images", "encoder"])
def test_a_gpu_learns_what_the_cpu_learns(kind: str, tmp_path: Path) -> None:
    here, there = made(kind), made(kind, torch.device("cuda"))
    for loop in (here, there):
        for _ in range(18):
            loop.collector.step()
    there.collector.store.rows.copy_(here.collector.store.rows)
    assert there.collector.store.device.type == "cuda"
    for loop in (here, there):
        loop.updater.run(loop.collector.store, loop.updater.rates(0, 1))
    for name, value in here.policy_tensors().items():
        torch.testing.assert_close(there.policy_tensors()[name].cpu(), value, rtol=2e-2, atol=5e-3, msg=name)
    there.updater.run(there.collector.store, there.updater.rates(0, 1))
    try:
        with warnings.catch_warnings(action="ignore"):  # that this does not find everything
            torch.cuda.set_sync_debug_mode("error")  # an update waits for nothing that it computed
        there.updater.run(there.collector.store, there.updater.rates(0, 1))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    there.save(tmp_path)
    again = made(kind, torch.device("cuda"))
    again.load(tmp_path)
    assert {x.device.type for x in everything(again).values()} == {"cuda"}
    for name, value in everything(there).items():
        assert torch.equal(everything(again)[name], value), name


@needs_gpu
def test_what_the_gpu_has_no_room_for_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 100))
    loop = made("sac", torch.device("cuda"))
    loop.step()
    assert loop.collector.store.device == CPU and loop.updater.updates > 2
