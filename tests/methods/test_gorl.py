"""GORL: what it is with constant weights, and whose rows count more; updates are in `test_offline_updates.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.population import Member
from etude.core.registry import get_method
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.replay_reading import StoredReading
from etude.methods.offline.gorl import GuidingNetwork
from log_toys import logged_task, small_logged

torch.set_num_threads(1)


def loop_of(folder: Path, name: str = "gorl", changes: Any = ()) -> OffPolicyLoop:
    return OffPolicyLoop(set_values(small_logged(name), changes), logged_task(folder), [Member(3), Member(4)], 4, 4)


def reading(loop: OffPolicyLoop) -> StoredReading:
    draw, sampling, store = loop.updater.stretches.at(0), loop.method.sampling, loop.collector.store
    read = StoredReading(loop.updater, sampling, sampling.draw(store, draw), draw, store)
    read.reader = "guiding-network"
    return read


def guide_of(loop: OffPolicyLoop) -> GuidingNetwork:
    (found,) = loop.method.learners
    assert isinstance(found, GuidingNetwork)
    return found


@pytest.mark.slow
def test_with_weights_of_one_it_is_td3_bc(tmp_path: Path) -> None:
    """A guide that says 0 before its sigmoid and has not learned yet."""
    one = loop_of(tmp_path, changes={"learners.guiding-network.learning.warmup": 100})
    with torch.no_grad():
        for parameter in one.updater.networks["guiding-network"].head.parameters():  # type: ignore[union-attr]
            parameter.zero_()
    loops = {"gorl": one, "td3-bc": loop_of(tmp_path, "td3-bc")}
    for loop in loops.values():
        loop.step()
    for name in ("policy", "critic"):
        a, b = (loop.updater.trainers[name].parameters.values for loop in loops.values())
        assert torch.equal(a, b), name
    other = loop_of(tmp_path)
    other.step()
    assert not torch.equal(other.updater.trainers["policy"].parameters.values, a)


def looked_ahead(loop: OffPolicyLoop, read: StoredReading, weights: Tensor, alone: bool, rate: float) -> Tensor:
    """[P] how far the policy is from the expert after a step by these weights of the rows, with or without Q."""
    maximize = loop.method.actor[0]
    far = (read.policy().actions - read.batch.actions).square().mean(-1)
    total = weights * far + (0.0 if alone else maximize(read))
    seen, done = guide_of(loop).expert(read)
    return (read.after_step(total.mean(1), rate, seen) - done).square().mean((1, 2))


def slopes_of(loop: OffPolicyLoop, read: StoredReading, alone: bool, rate: float) -> Tensor:
    weights = torch.ones(2, 6, requires_grad=True)
    ahead = looked_ahead(loop, read, weights, alone, rate).sum()
    return torch.autograd.grad(ahead, weights)[0]


@pytest.fixture
def in_float64() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.slow
def test_the_slope_of_a_rows_weight_is_how_far_its_gradient_goes_the_experts_way(
    tmp_path: Path, in_float64: None
) -> None:
    """dL/db_i = -(rate / N) <grad L at the step, grad c_i>, by differences of weights too."""
    loop, rate = loop_of(tmp_path), 0.05
    read = reading(loop)
    found = slopes_of(loop, read, alone=False, rate=rate)
    module = loop.updater.networks["policy"]
    own = {k: p for k, p in module.named_parameters()}
    for k in range(2):
        maximize = loop.method.actor[0]
        far = (read.policy().actions - read.batch.actions).square().mean(-1)
        loss = (far + maximize(read)).mean(1).sum()
        steps = torch.autograd.grad(loss, list(own.values()), retain_graph=True)
        stepped = {n: (own[n] - rate * g).detach().requires_grad_() for n, g in zip(own, steps, strict=True)}
        seen, done = guide_of(loop).expert(read)
        ahead = torch.tanh(torch.func.functional_call(module, stepped, (seen,)))
        at_step = torch.autograd.grad((ahead - done).square().mean((1, 2))[k], list(stepped.values()))
        for i in range(6):
            row = torch.autograd.grad(far[k, i], list(own.values()), retain_graph=True)
            wanted = -(rate / 6) * sum(float((a * b).sum()) for a, b in zip(at_step, row, strict=True))
            assert found[k, i].item() == pytest.approx(wanted, abs=1e-9, rel=1e-6)
    moved = torch.ones(2, 6)
    moved[0, 3] += 1e-4
    other = torch.ones(2, 6)
    other[0, 3] -= 1e-4
    up, down = (looked_ahead(loop, read, w, False, rate)[0].item() for w in (moved, other))
    assert (up - down) / 2e-4 == pytest.approx(found[0, 3].item(), abs=1e-6)


@pytest.mark.slow
def test_rows_that_are_the_experts_count_more(tmp_path: Path, in_float64: None) -> None:
    """A batch of the expert's own rows and no Q: the sum of slopes is -rate |mean of gradients|^2, below 0."""
    loop = loop_of(tmp_path, changes={"learners.guiding-network.rows": 6})
    read = reading(loop)
    mark = loop.collector.store.beside["expert"].nonzero()[:6, 0]  # type: ignore[attr-defined]
    rows = loop.collector.store.read(mark[None].expand(2, -1))
    read.batch = read.batch.replace(observations=rows.observations, actions=rows.actions)
    found = slopes_of(loop, read, alone=True, rate=1e-6).sum(1)
    far = (read.policy().actions - read.batch.actions).square().mean(-1)
    own = list(loop.updater.networks["policy"].parameters())
    for k in range(2):
        mean = torch.autograd.grad(far[k].mean(), own, retain_graph=True)
        wanted = -1e-6 * sum(float(g.square().sum()) for g in mean)
        assert found[k].item() == pytest.approx(wanted, rel=1e-3) and wanted < 0


@pytest.mark.slow
def test_the_expert_is_the_best_episode_and_weights_are_said(tmp_path: Path) -> None:
    loop = loop_of(tmp_path)
    seen, done = guide_of(loop).expert(reading(loop))
    assert seen.shape == (2, 199, 3) and done.shape == (2, 199, 1)
    said = loop.step().members["guiding-network_intensity"]
    assert all(0 < x < 2 for x in said)


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("td3-bc", ["actor.clone.weight=guided"], "Guided asks a guiding network, and there is none"),
        ("gorl", ["actor.clone.weight=ones"], "GuidingNetwork weighs one clone: set actor.clone.weight=guided"),
        ("gorl", ["transforms=standardize-observations"], "learns from an expert's rows, .*: set transforms=mark-exp"),
    ],
)
def test_what_it_asks_for_is_said(name: str, changes: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(set_values(get_method(name), changes))
