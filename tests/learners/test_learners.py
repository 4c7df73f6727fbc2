"""Learners with steps of their own: when they learn, what they read, what they offer, and who may hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from control_toys import control_loop
from etude.core.errors import ConfigError
from etude.core.learners import Learning, Reading, StateCritic, StepLearner, Target
from etude.core.method import Method
from etude.core.part import part_from_json
from etude.core.population import Population
from etude.core.registry import get_method
from etude.core.step_slots import StepReward
from etude.core.transitions import Transitions
from etude.learners.fitted import FittedValue
from etude.methods.onpolicy.gae import GaussNewton, TrustRegionValue
from etude.optimizers.adam import AdamW
from etude.optimizers.schedules import Linear
from etude.optimizers.trust_region import NaturalGradient
from etude.policies.control.networks import MLP
from solo_runs import alike

SGD_LIKE = AdamW(lr=0.01, clip_norm=None)


class Mean(nn.Module):
    """One number for each member."""

    def __init__(self, members: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(members, 1))

    def forward(self, seen: Tensor) -> Tensor:
        return self.weight.expand(seen.shape[:2])


class CountingMean(StepLearner):
    """Learns the mean of 3; counts how often it is asked, and at which weights the policy then is."""

    asked: ClassVar[list[Tensor]] = []
    learning: Learning = Learning(optimizer=SGD_LIKE)

    def build(self, shape: tuple[int, ...], actions: Any, population: Population) -> nn.Module:
        return Mean(population.size)

    def loss(self, read: Reading) -> Tensor:
        self.asked.append(next(read.actor.parameters()).detach().clone())  # type: ignore[attr-defined]
        return read.batch.mean((read.says - 3) ** 2)

    def offers(self, read: Reading) -> dict[str, Tensor]:
        return {"mean": read.says + 1}


class Chasing(CountingMean):
    """Learns one more than its slow copy says."""

    reads_target: ClassVar[bool] = True
    learning: Learning = Learning(optimizer=SGD_LIKE, target=Target(rate=1.0, every=2))

    def loss(self, read: Reading) -> Tensor:
        return read.batch.mean((read.says - read.target(read.seen) - 1) ** 2)


class PaidByMean(StepReward):
    """Pays what the learner said."""

    def shape(self, batch: Transitions) -> Tensor:
        return batch.offers["mean"]


@pytest.fixture(autouse=True)
def _from_nothing() -> None:
    CountingMean.asked.clear()


def method(*learners: StepLearner, **changes: Any) -> Method:
    found: Any = get_method("ppo", "control")
    small = found.experience.replace(environments=2, steps=8)
    return found.replace(experience=small, learners=learners, **changes)


def learning(**changes: Any) -> CountingMean:
    return CountingMean(learning=Learning(optimizer=SGD_LIKE, **changes))


@pytest.mark.first
@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        ({}, [1, 1, 1, 1, 1, 1]),
        ({"every": 3}, [1, 0, 0, 1, 0, 0]),
        ({"warmup": 2, "every": 2}, [0, 0, 1, 0, 1, 0]),
        ({"epochs": 2, "minibatches": 4}, [8, 8, 8, 8, 8, 8]),
    ],
)
def test_it_learns_when_and_as_often_as_its_learning_says(settings: dict[str, int], counts: list[int]) -> None:
    loop, found = control_loop(method(learning(**settings)), [0]), []
    for _ in counts:
        before = len(CountingMean.asked)
        metrics = loop.step().metrics
        found.append(len(CountingMean.asked) - before)
        assert ("counting_mean_loss" in metrics) == bool(found[-1])
    assert found == counts


@pytest.mark.parametrize("order", ["before", "after"])
def test_it_learns_before_or_after_the_policy(order: str) -> None:
    loop = control_loop(method(learning(order=order)), [0])
    before = next(loop.actor.parameters()).detach().clone()
    loop.step()
    after = next(loop.actor.parameters()).detach()
    assert not torch.equal(before, after)
    assert torch.equal(CountingMean.asked[0], before if order == "before" else after)


@pytest.mark.slow
def test_its_optimizer_and_schedule_are_its_own() -> None:
    """Adam's steps on a gradient of one sign are the rate each; a linear schedule falls to 0 over the run."""
    adam = AdamW(lr=0.1, clip_norm=None, schedule=Linear())
    loop = control_loop(method(CountingMean(learning=Learning(optimizer=adam))), [0, 1])
    total, expected = loop.steps, 0.0
    for step in range(3):
        loop.step()
        expected += 0.1 * (1 - step / total)
    found = loop.updater.learners.networks["counting-mean"].weight.detach()
    torch.testing.assert_close(found, torch.full((2, 1), expected), rtol=1e-2, atol=0)


@pytest.mark.slow
def test_a_slow_copy_is_made_anew_every_second_time() -> None:
    loop = control_loop(method(Chasing()), [0])
    trainer, found = loop.updater.learners.trainers["chasing"], []
    for _ in range(4):
        loop.step()
        found.append((float(trainer.parameters.values), float(trainer.slow.values)))
    assert [slow for _, slow in found] == [0.0, found[1][0], found[1][0], found[3][0]]
    assert len({fast for fast, _ in found}) == 4


def test_a_slow_copy_follows_by_its_rate() -> None:
    loop = control_loop(method(Chasing(learning=Learning(optimizer=SGD_LIKE, target=Target(rate=0.25)))), [0])
    trainer, slow = loop.updater.learners.trainers["chasing"], 0.0
    for _ in range(3):
        loop.step()
        slow += 0.25 * (float(trainer.parameters.values) - slow)
        assert float(trainer.slow.values) == pytest.approx(slow, rel=1e-6)


@pytest.mark.slow
def test_rewards_find_what_it_offers() -> None:
    loop, seen = control_loop(method(learning(), rewards=(PaidByMean(),)), [0, 1]), []
    run = loop.updater.run
    loop.updater.run = lambda batch, *rest: (seen.append(batch.rewards.clone()), run(batch, *rest))[1]
    for _ in range(2):
        says = loop.updater.learners.networks["counting-mean"].weight.detach().clone()
        loop.step()
        assert torch.equal(seen[-1], (says + 1).expand_as(seen[-1]))


@pytest.mark.kernels
@pytest.mark.slow
def test_each_member_learns_alone() -> None:
    parts = (Chasing(), learning(minibatches=3))
    together, alone = control_loop(method(*parts), [0, 1]), control_loop(method(*parts), [1])
    for _ in range(3):
        together.step(), alone.step()
    for (name, mine), (_, own) in zip(together.updater.learners.named(), alone.updater.learners.named()):
        assert alike(mine[1], own[0]), name


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_its_learners(tmp_path: Path) -> None:
    parts = (Chasing(learning=Learning(optimizer=SGD_LIKE, target=Target(rate=0.25))), learning())
    whole, first, second = (control_loop(method(*parts), [0, 1]) for _ in range(3))
    for _ in range(4):
        whole.step()
    first.step(), first.step()
    first.save(tmp_path)
    second.load(tmp_path)
    second.step(), second.step()
    mine, theirs = ({**x.policy_tensors(), **x.updater.tensors()} for x in (whole, second))
    assert mine.keys() == theirs.keys()
    assert {"learners.chasing.target", "learners.counting-mean.first"} <= mine.keys()
    assert all(torch.equal(v, theirs[k]) for k, v in mine.items())


@pytest.mark.parametrize(
    ("learners", "sentence"),
    [
        ((CountingMean(learning=Learning(optimizer=NaturalGradient())),), "no divergence"),
        ((learning(target=Target()),), "reads no slow copy: leave out learning.target"),
        ((Chasing(learning=Learning(optimizer=SGD_LIKE)),), "reads a slow copy of its network: set learning.target"),
        ((learning(minibatches=17),), "a rollout of 16 steps into 17 minibatches"),
        ((learning(), learning(every=2)), "two networks are called counting-mean"),
    ],
)
def test_what_cannot_be_trained_is_refused(learners: tuple[StepLearner, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        method(*learners).check()


class Untrained(StateCritic):
    """A critic that says neither how the policy's step trains it nor how steps of its own do."""


def test_a_critic_that_nothing_would_train_is_refused() -> None:
    with pytest.raises(ConfigError, match="Untrained is neither Joint nor a StepLearner"):
        method().replace(critic=Untrained()).check()


def test_a_step_for_values_cannot_be_the_policys() -> None:
    with pytest.raises(ConfigError, match="is for learners of values"):
        get_method("npg").replace(optimizer=GaussNewton()).check()
    with pytest.raises(ConfigError, match="has no learning rate"):
        GaussNewton(lr=0.1)


# What older runs wrote

PLAIN_MLP = MLP(hidden=(16,)).to_json()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (
            {"part": "fitted-value", "network": PLAIN_MLP, "epochs": 3, "minibatches": 2, "lr": 0.01, "epsilon": 1e-6,
             "clip_norm": None},
            FittedValue(
                network=MLP(hidden=(16,)),
                learning=Learning(
                    optimizer=AdamW(lr=0.01, epsilon=1e-6, clip_norm=None), epochs=3, minibatches=2
                ),
            ),
        ),
        (
            {"part": "trust-region-value", "network": PLAIN_MLP, "epsilon": 0.2, "damping": 0.3, "iterations": 4,
             "tolerance": 1e-8},
            TrustRegionValue(
                network=MLP(hidden=(16,)),
                learning=Learning(optimizer=GaussNewton(epsilon=0.2, damping=0.3, iterations=4, tolerance=1e-8)),
            ),
        ),
    ],
)  # fmt: skip
def test_critics_of_older_runs_load(written: dict[str, Any], meant: FittedValue) -> None:
    assert part_from_json(written) == meant
    assert part_from_json(json.loads(json.dumps(meant.to_json()))) == meant
