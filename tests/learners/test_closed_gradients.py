"""What critics say of their gradient in closed form is what autograd finds, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.critic_slots import Error
from etude.core.edit import set_values
from etude.core.population import Member
from etude.core.replay_slots import Differentiated, ReplayLearner, ReplayReading
from etude.learners.heads import CrossEntropy, Huber, Squared
from etude.learners.q import QFunctions
from etude.loops.off_policy import OffPolicyLoop
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY, acts_in_boxes, small

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "choices": ("dqn", {}),
    "networks of choices": ("double-dqn", {"critic.count": 2}),
    "weighed rows": ("dqn", {"sampling": "prioritized-rows", "sampling.batch": 6}),
    "two networks of actions": ("td3", {}),
    "other bounds": ("ddpg", {"critic.error": "huber", "critic.error.delta": 0.1}),
    "more rows than a slice": ("dqn", {"sampling.batch": 1030}),
}


def read_of(name: str, changes: dict[str, Any]) -> tuple[OffPolicyLoop, Any]:
    """A loop of two members that learned a little, and rows for its critic."""
    task = pendulum if acts_in_boxes(REPLAY[name]) else cartpole
    loop = OffPolicyLoop(set_values(small(REPLAY[name]), changes), task, [Member(3), Member(4)], 4, block=16)
    loop.step()
    read = loop.updater._drawn("critic", 0, loop.collector.store)
    read.reader = "critic"
    return loop, read


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_it_is_what_autograd_finds_to_the_bit(case: str) -> None:
    loop, read = read_of(*CASES[case])
    part, parameters = loop.updater.parts["critic"], loop.updater.trainers["critic"].parameters
    found = part.differentiated(read)
    assert isinstance(found, Differentiated)
    parameters.put(found.gradients)
    closed, told = parameters.gradient.clone(), read.errors
    loss = part.loss(read)
    assert loss.grad_fn is not None and torch.equal(found.loss, loss.detach())
    parameters.differentiate(loss)
    assert torch.equal(closed, parameters.gradient) and closed.abs().amax(1).min() > 0
    assert (told is not None) == read.wants_errors and (told is None or torch.equal(told, read.errors))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["c51", "noisy-dqn", "dueling-dqn", "mrq"])
def test_where_only_autograd_knows_it_nothing_is_said(name: str) -> None:
    loop, read = read_of(name, {})
    assert loop.updater.parts["critic"].differentiated(read) is None


def test_penalties_are_left_to_autograd() -> None:
    loop, read = read_of("ddpg", {})
    critic: Any = loop.updater.parts["critic"]
    assert critic.differentiated(read) is not None
    object.__setattr__(critic, "penalties", (lambda read, said: said[:, 0, :, 0],))
    assert critic.differentiated(read) is None


@pytest.mark.parametrize("error", [Squared(), Huber(delta=0.5)])
def test_a_slope_is_the_gradient_of_its_error(error: Error) -> None:
    x, y = torch.tensor([-2.0, -0.5, -0.1, 0.0, 0.3, 0.6, 7.0], requires_grad=True), torch.full((7,), 0.1)
    (gradient,) = torch.autograd.grad(error(x, y).sum(), x)
    slope = error.slope(x.detach(), y)
    assert slope is not None and torch.equal(gradient, slope)


def test_what_has_another_formula_has_not_the_slope_of_its_parent() -> None:
    class HalfHuber(Huber, abstract=True):
        def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
            return 0.5 * super().__call__(prediction, target)

    class DoubleLoss(QFunctions, abstract=True):
        def loss(self, read: ReplayReading) -> Tensor:
            return 2.0 * super().loss(read)

    x = torch.zeros(1)
    assert HalfHuber().slope(x, x) is None and CrossEntropy().slope(x, x) is None
    assert DoubleLoss.differentiated is ReplayLearner.differentiated is not QFunctions.differentiated
