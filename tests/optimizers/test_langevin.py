"""Optimizers with noise: their limits, whose numbers they draw, and that a resumed run goes on with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from etude.core.errors import ConfigError
from etude.core.population import FlatParameters, PerMember
from etude.core.streams import Stream
from etude.methods.value.lmc_lsvi.langevin import AdaptiveSGLD, LangevinAdam

P, D = 3, 7


class Weights(nn.Module):
    def __init__(self, members: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(numbers(0)[:members].clone())


class Given:
    """A minibatch whose gradient [P, D] is given."""

    batch = None

    def __init__(self, parameters: FlatParameters, found: Tensor) -> None:
        self.parameters, self.found = parameters, found

    def gradient(self) -> dict[str, Tensor]:
        self.parameters.gradient.copy_(self.found)
        return {}


def numbers(seed: int) -> Tensor:
    return torch.randn(P, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stepped(part: Any, steps: int, seeds: tuple[int, ...] = (0, 1, 2), resumed_at: int | None = None) -> Tensor:
    """[P, D] after steps on gradients that members with these seeds meet."""
    parameters = FlatParameters({"critic": Weights(len(seeds))}, streams=[Stream(s) for s in seeds])
    parameters.values.copy_(numbers(0)[list(seeds)])
    stepper = part.population(parameters)
    for step in range(steps):
        if step == resumed_at:
            kept = {k: v.clone() for k, v in stepper.tensors().items()}
            stepper = part.population(parameters)
            stepper.load(kept)
        stepper.step(Given(parameters, numbers(step + 1)[list(seeds)]), 1.0)
    return parameters.values.clone()


def test_without_noise_and_drift_it_is_plain_descent() -> None:
    expected = numbers(0)
    for step in range(5):
        expected = expected - 0.1 * numbers(step + 1)
    assert torch.allclose(stepped(AdaptiveSGLD(lr=0.1, a=0.0, sigma=0.0), 5), expected, atol=1e-12)


def test_a_large_drift_is_adams_without_correction_and_the_plain_gradient() -> None:
    w, m, v, a, lr = numbers(0), torch.zeros(P, D).double(), torch.zeros(P, D).double(), 1e4, 1e-6
    adam = numbers(0)
    for step in range(6):
        g = numbers(step + 1)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        w = w - lr * (g + a * m / (v.sqrt() + 1e-8))
        adam = adam - lr * a * m / (v.sqrt() + 1e-8)
    found = stepped(AdaptiveSGLD(lr=lr, a=a, sigma=0.0), 6)
    assert torch.allclose(found, w, atol=1e-12)
    assert float((found - adam).abs().max()) < 1e-3 * float((adam - numbers(0)).abs().max())


def test_langevin_adam_without_noise_is_torchs_adam() -> None:
    weight = nn.Parameter(numbers(0).clone())
    optimizer = torch.optim.Adam([weight], 0.05)
    for step in range(6):
        weight.grad = numbers(step + 1)
        optimizer.step()
    assert torch.allclose(stepped(LangevinAdam(lr=0.05, sigma=0.0), 6), weight.detach(), atol=1e-10)


@pytest.mark.parametrize("part", [AdaptiveSGLD(lr=0.02, sigma=0.3), LangevinAdam(lr=0.02, sigma=0.3)], ids=str)
def test_noise_has_this_size_and_is_each_members_own(part: Any) -> None:
    quiet = part.replace(sigma=0.0)
    noise = torch.stack([stepped(part, n + 1) - stepped(quiet, n + 1) for n in range(12)])
    each = noise.diff(dim=0, prepend=torch.zeros_like(noise[:1]))
    expected = 0.3 * (2 * 0.02) ** 0.5
    assert float(each.std()) == pytest.approx(expected, rel=4 / (2 * each.numel()) ** 0.5)
    assert not torch.equal(each[:, 0], each[:, 1])
    assert torch.equal(stepped(part, 9)[2:], stepped(part, 9, seeds=(2,)))


@pytest.mark.parametrize("part", [AdaptiveSGLD(sigma=0.3), LangevinAdam(sigma=0.3)], ids=str)
def test_a_resumed_run_draws_what_it_would_have_drawn(part: Any) -> None:
    assert torch.equal(stepped(part, 8, resumed_at=3), stepped(part, 8))
    assert not torch.equal(stepped(part, 8), stepped(part.replace(sigma=0.2), 8))


def test_size_and_drift_may_differ_between_members() -> None:
    part = AdaptiveSGLD(lr=0.02).bind()
    part.settle("sigma", PerMember([0.0, 0.1, 0.3]))
    part.settle("a", PerMember([0.0, 1.0, 0.5]))
    found = stepped(part, 4)
    for k, (sigma, a) in enumerate([(0.0, 0.0), (0.1, 1.0), (0.3, 0.5)]):
        assert torch.equal(found[k], stepped(AdaptiveSGLD(lr=0.02, sigma=sigma, a=a), 4)[k])


def test_a_member_without_a_finite_gradient_stays_and_its_numbers_wait() -> None:
    part = AdaptiveSGLD(sigma=0.3)
    parameters = FlatParameters({"critic": Weights(P)}, streams=[Stream(s) for s in range(P)])
    stepper, broken = part.population(parameters), numbers(1)
    broken[1, 2] = torch.inf
    before = parameters.values.clone()
    stepper.step(Given(parameters, broken), 1.0)
    assert torch.equal(parameters.values[1], before[1]) and not torch.equal(parameters.values[0], before[0])
    stepper.step(Given(parameters, numbers(1)), 1.0)
    assert torch.equal(parameters.values[1], stepped(part, 1)[1])


def test_without_streams_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="AdaptiveSGLD draws random numbers of every member's own"):
        AdaptiveSGLD().population(FlatParameters({"critic": Weights(P)}))
