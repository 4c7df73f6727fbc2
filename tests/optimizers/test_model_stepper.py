"""A model's stepper is torch's AdamW after clipping, skips what is not finite, and goes on where it was saved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from etude.core.errors import NonFiniteError
from etude.core.optimizer_slots import TokenOptimizer
from etude.methods.rlvr.oblr_po.snr import SNRAdamW
from etude.optimizers.adam import AdamW
from etude.optimizers.model import Halves, ModelStepper
from etude.optimizers.population import MAX_FAILURES, Metrics
from etude.optimizers.restarting import RestartingAdamW

PART = AdamW(lr=0.1, clip_norm=0.5, weight_decay=0.1)


@dataclass
class Shown:
    """What a gradient was of."""

    numbers: Tensor


@dataclass
class Given:
    """A minibatch whose gradient is known."""

    weights: Sequence[nn.Parameter]
    gradients: Sequence[Tensor | None]
    of_halves: Halves | None = None
    batch: Any = field(default_factory=lambda: Shown(torch.ones(2)))

    def gradient(self) -> Metrics:
        for weight, gradient in zip(self.weights, self.gradients):
            weight.grad = None if gradient is None else gradient.clone()
        return {"loss": torch.ones(1)}

    def halves(self) -> Halves | None:
        return self.of_halves


def gradients(seed: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random, dtype=torch.float64) for shape in ((3, 2), (4,))]


def made(part: TokenOptimizer = PART, **options: Any) -> tuple[ModelStepper, list[nn.Parameter]]:
    weights = [nn.Parameter(torch.ones_like(g)) for g in gradients(0)]
    return ModelStepper(part, weights, **options), weights


def test_its_steps_are_torchs_after_clipping() -> None:
    stepper, mine = made()
    theirs = [nn.Parameter(torch.ones_like(w)) for w in mine]
    optimizer = torch.optim.AdamW(theirs, 0.1, (0.9, 0.999), 1e-8, 0.1)
    for seed, rate in ((1, 1.0), (2, 0.5), (3, 0.25)):
        found = stepper.step(Given(mine, gradients(seed)), rate)
        for weight, gradient in zip(theirs, gradients(seed)):
            weight.grad = gradient
        norm = nn.utils.clip_grad_norm_(theirs, 0.5)
        optimizer.param_groups[0]["lr"] = 0.1 * rate
        optimizer.step()
        assert {k: float(v) for k, v in found.items()} == pytest.approx(
            {"loss": 1.0, "gradient_norm": float(norm), "skipped_steps": 0.0, "learning_rate": 0.1 * rate}
        )
    for weight, other in zip(mine, theirs):
        torch.testing.assert_close(weight, other, atol=1e-14, rtol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_skipped_and_the_third_in_a_row_ends_the_run(bad: float) -> None:
    stepper, weights = made()
    stepper.begin(7, "7")
    stepper.step(Given(weights, gradients(1)), 1.0)
    kept, moments = [w.detach().clone() for w in weights], {k: v.clone() for k, v in stepper.tensors().items()}
    worse = gradients(2)
    worse[0][1, 1] = bad
    for number in range(1, MAX_FAILURES):
        assert float(stepper.step(Given(weights, worse), 1.0)["skipped_steps"]) == 1
        assert stepper.failures == number
    assert all(torch.equal(a, b) for a, b in zip(kept, weights))
    assert all(torch.equal(v, moments[k]) for k, v in stepper.tensors().items() if k != "failures")
    with pytest.raises(NonFiniteError, match=r"3 optimizer steps in a row \(step 7\)") as caught:
        stepper.step(Given(weights, worse), 1.0)
    assert torch.equal(caught.value.batch["numbers"], torch.ones(2))


def test_a_good_step_forgives_the_skipped_ones_before() -> None:
    stepper, weights = made()
    for _ in range(2 * MAX_FAILURES):
        stepper.step(Given(weights, [g * math.nan for g in gradients(1)]), 1.0)
        stepper.step(Given(weights, gradients(1)), 1.0)
    assert stepper.failures == 0


def test_where_nothing_has_a_gradient_nothing_is_done() -> None:
    calls: list[int] = []
    stepper, weights = made(moved=lambda: calls.append(1))
    stepper.step(Given(weights, gradients(1)), 1.0)
    kept = [w.detach().clone() for w in weights]
    assert stepper.step(Given(weights, [None, None]), 1.0).keys() == {"loss"}
    assert all(torch.equal(a, b) for a, b in zip(kept, weights))
    assert calls == [1]


def test_it_goes_on_where_it_was_saved() -> None:
    straight, mine = made()
    for seed in range(4):
        straight.step(Given(mine, gradients(seed)), 1.0)
    first, weights = made()
    for seed in range(2):
        first.step(Given(weights, gradients(seed)), 1.0)
    second = ModelStepper(PART, weights)
    second.load({k: v.clone() for k, v in first.tensors().items()})
    for seed in (2, 3):
        second.step(Given(weights, gradients(seed)), 1.0)
    assert all(torch.equal(a, b) for a, b in zip(mine, weights))


def test_halves_set_the_pace() -> None:
    """Two halves that are opposite have no signal: the least rate is taken."""
    stepper, weights = made(SNRAdamW(lr=0.1, memory=0.0, floor=0.25).bind())
    one = gradients(1)
    found = stepper.step(Given(weights, one, of_halves=(one, [-g for g in one], 0.5)), 1.0)
    assert float(found["learning_rate"]) == pytest.approx(0.1 * 0.25)
    found = stepper.step(Given(weights, one, of_halves=(one, one, 0.5)), 1.0)
    assert float(found["learning_rate"]) == pytest.approx(0.1)


def test_an_optimizer_that_restarts_forgets_its_moments_when_a_training_step_begins() -> None:
    stepper, weights = made(RestartingAdamW(lr=0.1, every=2))
    taken = []
    for number in range(4):
        stepper.begin(number, str(number))
        stepper.step(Given(weights, gradients(number)), 1.0)
        taken.append(int(stepper.moments()[0]["step"]))
    assert taken == [1, 2, 1, 2]
