"""Objectives where a chain of decisions makes one action: advantages [P, N] beside log-probabilities [P, N, C]."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from etude.core.step_slots import StepObjective
from etude.core.transitions import ActionLogProbs, Transitions, per_step
from etude.objectives.policy_gradient import ClippedSurrogate, PolicyGradient
from etude.objectives.surrogate import Surrogate

RATIO = torch.tensor([[[2.0, 1.0, 0.5], [1.1, 0.7, 1.0]]], dtype=torch.float64)
ADVANTAGES = torch.tensor([[1.0, -2.0]], dtype=torch.float64)


def batch(size: int = 2, weights: Tensor | None = None) -> Transitions:
    nothing = torch.zeros(1, size, dtype=torch.float64)
    off = nothing.bool()
    return Transitions(
        nothing, nothing, nothing, off, off, nothing, torch.zeros(1, size, 3, dtype=torch.float64), nothing, nothing,
        advantages=ADVANTAGES, weights=weights,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (Surrogate(), [[[-2.0, -1.0, -0.5], [2.2, 1.4, 2.0]]]),
        (ClippedSurrogate(low=0.2, high=0.2), [[[-1.2, -1.0, -0.5], [2.2, 1.6, 2.0]]]),
        (PolicyGradient(), [[[-math.log(2), 0.0, math.log(2)], [2 * math.log(1.1), 2 * math.log(0.7), 0.0]]]),
    ],
)
def test_each_link_has_the_steps_advantage(objective: StepObjective, expected: list[list[list[float]]]) -> None:
    """By hand, from ratios 2, 1, 1/2 with advantage 1 and 1.1, 0.7, 1 with advantage -2."""
    found = objective(batch(), ActionLogProbs(RATIO.log()))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)


def test_as_many_links_as_steps_are_not_mistaken_for_steps() -> None:
    """[P, N] beside [P, N, C] with N = C would broadcast over the wrong axis without a word."""
    ratio = torch.ones(1, 2, 2, dtype=torch.float64)
    found = Surrogate()(batch().replace(behaviour_logp=torch.zeros_like(ratio)), ActionLogProbs(ratio.log()))
    assert found.tolist() == [[[-1.0, -1.0], [2.0, 2.0]]]


def test_a_step_counts_as_the_mean_over_its_chain() -> None:
    loss = ClippedSurrogate(low=0.2, high=0.2)(batch(), ActionLogProbs(RATIO.log()))
    assert per_step(loss).tolist() == [[pytest.approx(-0.9), pytest.approx(5.8 / 3)]]
    assert batch().mean(loss).tolist() == [pytest.approx((5.8 / 3 - 0.9) / 2)]
    first = batch(weights=torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    assert first.mean(loss).tolist() == [pytest.approx(-0.9)]
    clipped = ClippedSurrogate().metrics(batch(), ActionLogProbs(RATIO.log()))["clip_fraction"]
    assert batch().mean(clipped).tolist() == [pytest.approx(2 / 6)]  # 2 above with A > 0, 0.7 below with A < 0
