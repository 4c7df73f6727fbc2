"""RMSProp: its steps by an independent computation and by torch's, every member by itself, numbers shared by two."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.core.errors import NonFiniteError
from etude.core.population import FlatParameters, Numbers, PerMember
from etude.core.transitions import Transitions
from etude.optimizers.population import MAX_FAILURES
from etude.optimizers.rmsprop import PopulationRMSProp, RMSProp, steps_in
from etude.optimizers.schedules import Linear

P, D = 3, 5


@dataclass
class Given:
    """A minibatch whose gradient [P, D] is given."""

    parameters: FlatParameters
    found: Tensor
    batch: Any = None

    def gradient(self) -> dict[str, Tensor]:
        self.parameters.gradient.copy_(self.found)
        return {}


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def flat(members: int = P) -> FlatParameters:
    start = numbers(0, D, P)[:, :members]
    return FlatParameters({"w": Numbers({f"w{i}": start[i].clone() for i in range(D)})})


def rows(count: int, weights: Tensor | None = None, members: int = P) -> Transitions:
    nothing = torch.zeros(members, count, dtype=torch.float64)
    off = nothing.bool()
    return Transitions(nothing, nothing, nothing, off, off, weights=weights)


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("count", [1, 5])
def test_steps_are_those_of_the_paper(clip: float | None, count: int) -> None:
    """By numpy: the gradient of the sum, epsilon inside of the root, the rate annealed to zero."""
    part = RMSProp(lr=0.05, decay=0.9, epsilon=0.01, clip_norm=clip, schedule=Linear())
    parameters = flat()
    stepper, theta, g = part.population(parameters), parameters.values.numpy().copy(), np.zeros((P, D))
    for t in range(10):
        found = numbers(t + 1, P, D) * 10.0 ** (t % 3 - 1)
        metrics = stepper.step(Given(parameters, found, rows(count)), part.rate(t, 10))
        d = found.numpy() * count
        norm = np.sqrt((d * d).sum(1, keepdims=True))
        if clip is not None:
            d = d * np.minimum(1, clip / (norm + 1e-6))
        g = 0.9 * g + 0.1 * d * d
        theta = theta - 0.05 * (1 - t / 10) * d / np.sqrt(g + 0.01)
        np.testing.assert_allclose(parameters.values.numpy(), theta, rtol=1e-12)
        np.testing.assert_allclose(stepper.square.numpy(), g, rtol=1e-12)
        np.testing.assert_allclose(metrics["gradient_norm"].numpy(), norm[:, 0], rtol=1e-12)


def torch_steps(gradients: list[Tensor], epsilon: float) -> Tensor:
    weight = torch.nn.Parameter(flat().values.clone())
    optimizer = torch.optim.RMSprop([weight], lr=0.01, alpha=0.99, eps=epsilon, centered=False)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach()


def test_they_are_torchs_but_for_where_epsilon_stands() -> None:
    gradients, ours = [numbers(s, P, D) for s in range(1, 9)], {}
    for epsilon in (1e-20, 1e-2):
        parameters = flat()
        stepper = RMSProp(lr=0.01, epsilon=epsilon).population(parameters)
        for gradient in gradients:
            stepper.step(Given(parameters, gradient), 1.0)
        ours[epsilon] = parameters.values
    torch.testing.assert_close(ours[1e-20], torch_steps(gradients, 1e-20), atol=1e-9, rtol=1e-9)
    apart = (ours[1e-2] - torch_steps(gradients, 1e-2)).abs().max()
    assert apart > 1e-3


def test_of_the_mean_a_smaller_epsilon_takes_the_same_steps() -> None:
    """d = n m, so g = n^2 of that of the mean: epsilon / n^2 is the same formula."""
    summed, mean = flat(), flat()
    one = RMSProp(lr=0.01, epsilon=0.25).population(summed)
    other = RMSProp(lr=0.01, epsilon=0.25 / 25, summed=False).population(mean)
    for seed in range(1, 5):
        one.step(Given(summed, numbers(seed, P, D), rows(5)), 1.0)
        other.step(Given(mean, numbers(seed, P, D), rows(5)), 1.0)
    torch.testing.assert_close(summed.values, mean.values, rtol=1e-13, atol=1e-13)


def test_steps_of_a_discarded_episode_do_not_count() -> None:
    weights = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    assert steps_in(rows(3, weights), torch.zeros(P, D)).flatten().tolist() == [2, 1, 3]
    assert steps_in(rows(4), torch.zeros(P, D)).item() == 4


def test_a_member_equals_itself_alone_with_settings_of_its_own() -> None:
    rates, epsilons = [0.1, 0.01, 0.003], [0.1, 0.01, 1.0]
    together = flat()
    own = [PerMember(x) for x in (rates, [0.9, 0.99, 0.5], epsilons, [0.5, 5.0, 0.1])]
    stepper = PopulationRMSProp(together, *own)
    for seed in range(1, 6):
        stepper.step(Given(together, numbers(seed, P, D), rows(2)), PerMember([0.7, 1.0, 0.2]))
    for k in range(P):
        alone = FlatParameters({"w": Numbers({f"w{i}": numbers(0, D, P)[i, k : k + 1].clone() for i in range(D)})})
        single = PopulationRMSProp(alone, *(x.numbers[k] for x in own))
        for seed in range(1, 6):
            gradient = numbers(seed, P, D)[k : k + 1]
            single.step(Given(alone, gradient, rows(2, members=1)), [0.7, 1.0, 0.2][k])
        assert torch.equal(alone.values[0], together.values[k])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_gradient_skips_the_step_of_its_member_only(bad: float) -> None:
    parameters, other = flat(), flat()
    stepper, untouched = (RMSProp(lr=0.1, clip_norm=0.5).population(x) for x in (parameters, other))
    for seed in (1, 2, 3):
        gradient = numbers(seed, P, D)
        untouched.step(Given(other, gradient), 1.0)
        before = parameters.values.clone(), stepper.square.clone()
        if seed == 2:
            gradient[1, 3] = bad
        metrics = stepper.step(Given(parameters, gradient), 1.0)
        if seed == 2:
            assert metrics["skipped_steps"].tolist() == [0, 1, 0]
            assert torch.equal(parameters.values[1], before[0][1])
            assert torch.equal(stepper.square[1], before[1][1])
    assert torch.equal(parameters.values[[0, 2]], other.values[[0, 2]])


def test_the_third_bad_gradient_in_a_row_stops_the_run_also_after_a_resume() -> None:
    parameters, gradient = flat(), numbers(1, P, D)
    gradient[2] = math.nan
    stepper = RMSProp().population(parameters)
    for _ in range(MAX_FAILURES - 1):
        stepper.step(Given(parameters, gradient, rows(2)), 1.0)
    resumed = RMSProp().population(parameters)
    resumed.load({k: v.clone() for k, v in stepper.tensors().items()})
    with pytest.raises(NonFiniteError, match="member 2 was not finite in 3 optimizer steps in a row"):
        resumed.step(Given(parameters, gradient, rows(2)), 1.0)


@pytest.mark.parametrize("shared", [True, False])
def test_two_that_step_on_the_same_numbers(shared: bool) -> None:
    """In turns they are one: with one g for both exactly so; with a g for each, each has that of its own gradients."""
    both, square = flat(1), torch.zeros(1, D, dtype=torch.float64)
    values, workers = both.values.clone(), [flat(1), flat(1)]
    steppers = [RMSProp(lr=0.1, shared=shared).population(x) for x in workers]
    for stepper in steppers:
        stepper.join(values, square)
    alone = RMSProp(lr=0.1).population(both)
    seen = [torch.zeros(1, D, dtype=torch.float64) for _ in range(2)]
    for t in range(6):
        gradient, k = numbers(t, 1, D), t % 2
        workers[k].values.copy_(values)
        steppers[k].step(Given(workers[k], gradient), 1.0)
        alone.step(Given(both, gradient), 1.0)
        seen[k] = 0.99 * seen[k] + 0.01 * gradient**2
        assert torch.equal(workers[k].values, values)
    assert torch.equal(values, both.values) == shared
    if shared:
        assert torch.equal(square, alone.square)
    else:
        for stepper, own in zip(steppers, seen):
            torch.testing.assert_close(stepper.square, own, rtol=1e-12, atol=0)
        assert not bool(square.any())
