"""A population's Adam is torch's AdamW after clip_grad_norm_, for every member by itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from control_toys import control_loop
from etude.core.errors import ConfigError, NonFiniteError
from etude.core.population import FlatParameters, Member, PerMember, Population, settle
from etude.core.registry import get_method
from etude.core.transitions import Transitions
from etude.optimizers.adam import AdamW
from etude.optimizers.population import LOOK, MAX_FAILURES, PopulationAdam

P, D = 3, 7


class Weights(nn.Module):
    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(start.clone())


@dataclass
class Given:
    """A minibatch whose gradient [P, D] is given."""

    parameters: FlatParameters
    found: Tensor
    batch: Transitions

    def gradient(self) -> dict[str, Tensor]:
        self.parameters.gradient.copy_(self.found)
        return {}


def numbers(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def flat(dtype: torch.dtype = torch.float64) -> FlatParameters:
    return FlatParameters({"policy": Weights(numbers(0, P, D, dtype=dtype))})


def given(parameters: FlatParameters, found: Tensor) -> Given:
    nothing = torch.zeros(P, 2)
    off = nothing.bool()
    rollout = Transitions(nothing, nothing, nothing, off, off, nothing, nothing, nothing, nothing)
    return Given(parameters, found.to(parameters.values.dtype), rollout)


def torch_steps(
    member: int, gradients: list[Tensor], rates: list[float], part: AdamW, dtype: torch.dtype
) -> list[Tensor]:
    """The same steps by torch, for one member alone."""
    weight = nn.Parameter(numbers(0, P, D, dtype=dtype)[member].clone())
    optimizer = torch.optim.AdamW([weight], part.lr, (part.beta1, part.beta2), part.epsilon, part.weight_decay)
    found = []
    for gradient, rate in zip(gradients, rates):
        weight.grad = gradient[member].to(dtype).clone()
        if part.clip_norm is not None:
            nn.utils.clip_grad_norm_([weight], part.clip_norm)
        optimizer.param_groups[0]["lr"] = part.lr * rate
        optimizer.step()
        found.append(weight.detach().clone())
    return found


@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-14), (torch.float32, 1e-6)])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("clip", [None, 0.5, 100.0])
def test_every_step_is_that_of_torch(dtype: torch.dtype, bound: float, decay: float, clip: float | None) -> None:
    part = AdamW(lr=0.05, epsilon=1e-5, weight_decay=decay, clip_norm=clip)
    parameters = flat(dtype)
    adam = part.population(parameters)
    gradients = [numbers(s, P, D) * 10 ** (s % 3 - 1) for s in range(1, 13)]
    rates = [1 - i / 12 for i in range(12)]
    expected = [torch_steps(m, gradients, rates, part, dtype) for m in range(P)]
    for i, (gradient, rate) in enumerate(zip(gradients, rates)):
        metrics = adam.step(given(parameters, gradient), rate)
        for member in range(P):
            torch.testing.assert_close(parameters.values[member], expected[member][i], atol=bound, rtol=bound)
        torch.testing.assert_close(metrics["gradient_norm"], gradient.norm(dim=1).to(dtype))


def test_members_have_their_own_norms() -> None:
    """A member with a huge gradient does not shorten the steps of the others."""
    parameters, other = flat(), flat()
    calm, wild = numbers(1, P, D) * 0.1, numbers(1, P, D) * 0.1
    wild[0] *= 1e6
    for values, gradient in ((parameters, calm), (other, wild)):
        AdamW(lr=0.1, clip_norm=0.5).population(values).step(given(values, gradient), 1.0)
    assert torch.equal(parameters.values[1:], other.values[1:])


def test_a_member_equals_itself_alone_with_settings_of_its_own() -> None:
    rates, clips = [0.1, 0.01, 0.003], [0.5, 5.0, 0.1]
    together = flat(torch.float32)
    adam = PopulationAdam(together, PerMember(rates), (0.9, 0.999), 1e-8, PerMember([0.0, 0.1, 0.2]), PerMember(clips))
    for seed in range(1, 6):
        adam.step(given(together, numbers(seed, P, D)), 0.7)
    for member, (lr, clip, decay) in enumerate(zip(rates, clips, [0.0, 0.1, 0.2])):
        alone = flat(torch.float32)
        single = PopulationAdam(alone, lr, (0.9, 0.999), 1e-8, decay, clip)
        for seed in range(1, 6):
            single.step(given(alone, numbers(seed, P, D)), 0.7)
        assert torch.equal(alone.values[member], together.values[member])


def test_a_schedule_may_differ_between_members() -> None:
    together, rates = flat(torch.float32), [1.0, 0.5, 0.0]
    adam = AdamW(lr=0.1).population(together)
    for seed in (1, 2):
        adam.step(given(together, numbers(seed, P, D)), PerMember(rates))
    for member, rate in enumerate(rates):
        alone = flat(torch.float32)
        single = AdamW(lr=0.1).population(alone)
        for seed in (1, 2):
            single.step(given(alone, numbers(seed, P, D)), rate)
        assert torch.equal(alone.values[member], together.values[member])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_gradient_skips_the_step_of_its_member_only(bad: float) -> None:
    parameters, other = flat(), flat()
    part = AdamW(lr=0.1, clip_norm=0.5, weight_decay=0.1)
    adam, untouched = part.population(parameters), part.population(other)
    for seed in (1, 2, 3):
        gradient = numbers(seed, P, D)
        untouched.step(given(other, gradient), 1.0)
        if seed == 2:
            before = {k: v.clone() for k, v in adam.tensors().items()}
            weights = parameters.values.clone()
            gradient[1, 3] = bad
        metrics = adam.step(given(parameters, gradient), 1.0)
        if seed == 2:
            assert metrics["skipped_steps"].tolist() == [0, 1, 0]
            assert torch.equal(parameters.values[1], weights[1])
            assert all(torch.equal(adam.tensors()[k][1], v[1]) for k, v in before.items() if k != "failures")
            assert adam.tensors()["failures"].tolist() == [0, 1, 0]
    assert torch.equal(parameters.values[[0, 2]], other.values[[0, 2]])
    assert adam.tensors()["failures"].tolist() == [0, 0, 0]
    assert adam.tensors()["taken"].tolist() == [3, 2, 3]


def test_the_third_bad_gradient_in_a_row_stops_the_run_also_after_a_resume() -> None:
    parameters = flat()
    adam, gradient = AdamW(lr=0.1).population(parameters), numbers(1, P, D)
    gradient[2] = math.nan
    for _ in range(MAX_FAILURES - 1):
        adam.step(given(parameters, gradient), 1.0)
    resumed = AdamW(lr=0.1).population(parameters)
    resumed.load({k: v.clone() for k, v in adam.tensors().items()})
    with pytest.raises(NonFiniteError, match="member 2 was not finite in 3 optimizer steps in a row") as caught:
        resumed.step(given(parameters, gradient), 1.0)
    assert caught.value.batch["rewards"].shape == (2,)


def test_of_another_device_it_is_asked_seldom_whether_a_member_failed() -> None:
    parameters = flat()
    adam, gradient = AdamW(lr=0.1).population(parameters), numbers(1, P, D)
    adam.failures.here, gradient[2] = False, math.nan
    for _ in range(LOOK - 1):
        adam.step(given(parameters, gradient), 1.0)
    assert torch.equal(parameters.values[2], numbers(0, P, D)[2])
    assert not torch.equal(parameters.values[1], numbers(0, P, D)[1])
    with pytest.raises(NonFiniteError, match=f"member 2 was not finite in {LOOK} optimizer steps in a row"):
        adam.step(given(parameters, gradient), 1.0)


def test_it_goes_on_from_what_it_remembers() -> None:
    parameters = flat()
    adam = AdamW(lr=0.1).population(parameters)
    for seed in (1, 2):
        adam.step(given(parameters, numbers(seed, P, D)), 1.0)
    copy = FlatParameters({"policy": Weights(parameters.values)})
    again = AdamW(lr=0.1).population(copy)
    again.load({k: v.clone() for k, v in adam.tensors().items()})
    for values, optimizer in ((parameters, adam), (copy, again)):
        optimizer.step(given(values, numbers(3, P, D)), 0.5)
    assert torch.equal(parameters.values, copy.values)


def test_betas_are_the_same_for_all_members() -> None:
    population = Population([Member(0, {"optimizer.beta1": 0.8}), Member(1)])
    method = settle(get_method("a2c").bind(), population)
    with pytest.raises(ConfigError, match="beta1 and beta2 cannot differ"):
        method.optimizer.population(flat())


def test_a_run_whose_rewards_are_not_finite_stops_and_names_the_member() -> None:
    loop = control_loop(get_method("a2c").replace(rewards=()), [0, 1])
    advance = loop.environment.advance

    def broken(states, actions):
        states, rewards, terminated = advance(states, actions)
        rewards[1] = math.nan
        return states, rewards, terminated

    loop.environment.advance = broken
    reports = [loop.step() for _ in range(MAX_FAILURES - 1)]
    assert all(r.members["skipped_steps"] == [0.0, 1.0] for r in reports)
    with pytest.raises(NonFiniteError, match="member 1"):
        loop.step()
