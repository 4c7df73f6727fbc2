"""Adam's direction as a formula of its own is the one that torch's AdamW and the population's take."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from etude.core.errors import NonFiniteError
from etude.optimizers.adam import AdamW, direction, moments
from etude.optimizers.learner import descend, learner

BETAS, EPSILON, RATE, STEPS = (0.8, 0.95), 1e-3, 0.05, 5


def gradients() -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(7, generator=g, dtype=torch.float64) for _ in range(STEPS)]


def by_formula() -> Tensor:
    weight, first, second = torch.zeros(3, 7, dtype=torch.float64)
    for taken, gradient in enumerate(gradients()):
        weight = weight - RATE * direction(gradient, first, second, taken, *BETAS, EPSILON)
        first, second = moments(gradient, first, second, *BETAS)
    return weight


def test_it_is_the_step_of_torch() -> None:
    weight = nn.Parameter(torch.zeros(7, dtype=torch.float64))
    optimizer = AdamW(lr=RATE, beta1=BETAS[0], beta2=BETAS[1], epsilon=EPSILON).build([weight])
    for gradient in gradients():
        weight.grad = gradient
        optimizer.step()
    torch.testing.assert_close(by_formula(), weight.detach(), atol=1e-14, rtol=0)


def test_it_is_the_step_of_a_small_network() -> None:
    """`descend` goes through the population's Adam; a loss <g, w> has the gradient g."""
    state = learner({"w": torch.zeros(7, dtype=torch.float64)})
    adam = AdamW(lr=RATE, beta1=BETAS[0], beta2=BETAS[1], epsilon=EPSILON, clip_norm=None)
    for gradient in gradients():
        descend(state, lambda w, g=gradient: (w["w"] * g).sum(), adam)
    assert state["updates"] == STEPS
    torch.testing.assert_close(by_formula(), state["weights"]["w"], atol=1e-14, rtol=0)


def test_several_steps_at_once_are_as_many_single_ones() -> None:
    def loss(w: dict[str, Tensor]) -> Tensor:
        return ((w["a"] - 1) ** 2).sum() + (w["b"] ** 2).sum()

    once, often = (learner({"a": torch.zeros(2, 3), "b": torch.ones(4)}) for _ in range(2))
    descend(once, loss, AdamW(lr=0.1), 6)
    for _ in range(6):
        descend(often, loss, AdamW(lr=0.1))
    assert once["updates"] == often["updates"] == 6
    assert all(torch.equal(w, often["weights"][k]) for k, w in once["weights"].items())
    assert not torch.equal(once["weights"]["b"], torch.ones(4))


def test_where_the_gradient_is_zero_nothing_moves() -> None:
    state = learner({"a": torch.ones(3), "b": torch.ones(2)})
    descend(state, lambda w: (w["a"] ** 2).sum(), AdamW(lr=0.1), 3)
    assert torch.equal(state["weights"]["b"], torch.ones(2))
    assert not torch.equal(state["weights"]["a"], torch.ones(3))


@dataclass
class Shown:
    """What the loss was of."""

    numbers: Tensor


def test_a_network_whose_loss_is_not_finite_keeps_its_weights_and_stops_the_run() -> None:
    state = learner({"a": torch.ones(3)})
    with pytest.raises(NonFiniteError, match="3 optimizer steps in a row"):
        descend(state, lambda w: (w["a"] * torch.nan).sum(), AdamW(lr=0.1), 3, Shown(torch.ones(1, 2)))
    assert torch.equal(state["weights"]["a"], torch.ones(3))
