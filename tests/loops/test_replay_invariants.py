"""Invariants of learning from a replay: each fault is planted, and the run stops with a sentence."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from etude.core.edit import set_values
from etude.core.errors import InvariantError, NonFiniteError
from etude.core.population import Member
from etude.experience.sampling import NStep, OneStep
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.replay_reading import StoredReading
from etude.loops.replay_update import ReplayUpdater
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY, acts_in_boxes, fill, small

torch.set_num_threads(1)


def loop_of(name: str, block: int = 16, **changes: Any) -> OffPolicyLoop:
    method = set_values(small(REPLAY[name], every=1), changes)
    task: Any = pendulum if acts_in_boxes(REPLAY[name]) else cartpole
    return OffPolicyLoop(method, task, [Member(0), Member(1)], 10, block)


# Planted faults


def test_a_slow_copy_that_moves_before_its_turn_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = loop_of("dqn", **{"critic.learning.target.every": 1000})
    monkeypatch.setattr(ReplayUpdater, "_follow", lambda self, *_: self.trainers["critic"].slow.values[1].mul_(0.99))
    with pytest.raises(InvariantError, match=r"slow copy of the critic of member 1 moved, .* every 1000 updates"):
        loop.step()


@pytest.mark.parametrize("name", ["dqn", "rainbow"])
def test_a_row_that_is_not_stored_yet_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring has 16 rows of 40, and what draws takes others."""
    loop = loop_of(name)
    loop.collector.store.rows.zero_()
    for horizon in (OneStep, NStep):
        read = horizon.read
        monkeypatch.setattr(horizon, "read", lambda self, store, index, read=read: read(self, store, index + 20))
    with pytest.raises(InvariantError, match=r"critic learned from a row that is not stored yet: .* 16 rows of each"):
        loop.step()


def test_targets_that_are_not_finite_stop_the_run() -> None:
    """At the third step in a row; the other member has moved, the one without a target has not."""
    loop = loop_of("td3", block=20)
    trainer = loop.updater.trainers["critic"]
    before = trainer.parameters.values.clone()
    with torch.no_grad():
        cast(Any, trainer.target).head.bias[2:].fill_(torch.inf)  # both critics of member 1
    with pytest.raises(NonFiniteError, match="gradient of member 1 was not finite in 3 optimizer steps in a row"):
        loop.step()
    moved = (trainer.parameters.values != before).any(1)
    assert moved.tolist() == [True, False]


# Gradients do not depend on how a batch is split, nor on the order of its rows


@pytest.mark.parametrize("name", ["dqn", "c51", "qr-dqn", "rainbow", "ddpg", "redq"])
def test_the_gradient_of_a_batch_is_the_mean_of_its_parts(name: str) -> None:
    loop = loop_of(name)
    fill(loop.collector.store)
    updater, store = loop.updater, loop.collector.store
    if not acts_in_boxes(loop.method):
        d = store.widths[0]
        store.rows[:, d] = (store.rows[:, d] > 0).float()
    updater.updates = 1
    whole = updater._drawn("critic", 0, store)
    index = whole.batch.index
    assert index is not None and index.shape == (2, 6)

    def gradient(learner: str, places: torch.Tensor) -> torch.Tensor:
        """Of the rows at these places of the batch, with the numbers that were drawn for each of them."""
        batch = loop.method.sampling.horizon.read(store, index[:, places])
        batch.offers.update({k: v[:, places] for k, v in whole.batch.offers.items()})

        def draw(purpose: str, of: Any) -> torch.Tensor:
            numbers = whole.draw(purpose, lambda g, n: of(g, n))
            return numbers[:, places] if numbers.shape[1:2] == (6,) else numbers

        read = StoredReading(updater, loop.method.sampling, batch, cast(Any, draw), store)
        updater._differentiate(learner, read, again=False)
        return updater.trainers[learner].parameters.gradient.clone()

    for learner in ("critic", "policy") if "policy" in updater.trainers else ("critic",):
        once, shuffled = gradient(learner, torch.arange(6)), gradient(learner, torch.tensor([3, 0, 5, 1, 4, 2]))
        parts = [gradient(learner, torch.tensor(places)) for places in ([0, 1], [2, 3], [4, 5])]
        size = once.abs().amax(1, keepdim=True)
        assert float(size.min()) > 0
        for other in (torch.stack(parts).mean(0), shuffled):
            assert float(((other - once) / size).abs().max()) < 1e-4
