"""Every distribution against torch.distributions: log-probabilities, entropies, divergences, samples, gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.distributions as D
from gymnasium import spaces
from torch import Tensor

from etude.core.control import ControlTask, VectorEnvironment
from etude.core.errors import ConfigError
from etude.core.population import Member
from etude.core.registry import get_method
from etude.experience.spaces import action_decoder
from etude.loops.on_policy import OnPolicyLoop
from etude.policies.control.activations import sigmoid, softplus
from etude.policies.control.distributions import Distribution, distribution
from etude.tasks.control._batched import ArrayEnvironment
from solo_runs import assert_members_are_alone

torch.set_num_threads(1)
LOW, HIGH = np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)
BOX = spaces.Box(LOW, HIGH)
NESTED = spaces.Dict(
    {
        "wheels": spaces.Tuple((BOX, spaces.Discrete(3, start=5))),
        "arm": spaces.Dict({"grip": spaces.MultiBinary(2), "joints": spaces.Box(-1, 1, (1, 2))}),
        "tool": spaces.MultiDiscrete([2, 4]),
    }
)
Parts = list[tuple[D.Distribution, int]]  # 0: one number
SPACES: dict[str, tuple[spaces.Space, bool]] = {
    "discrete": (spaces.Discrete(4, start=-2), False),
    "multi-discrete": (spaces.MultiDiscrete([[2, 3], [4, 2]]), False),
    "multi-binary": (spaces.MultiBinary([2, 2]), False),
    "box": (BOX, False),
    "squashed": (BOX, True),
    "nested": (NESTED, False),
    "nested, squashed": (NESTED, True),
}


def reference(space: spaces.Space, bound: Tensor, free: Tensor, squash: bool) -> tuple[Parts, Tensor, Tensor]:
    """torch's distributions over the flat actions, with their sizes, and the parameters that are left."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        found: Parts = []
        inside = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        for each in inside:
            parts, bound, free = reference(each, bound, free, squash)
            found += parts
        return found, bound, free
    if isinstance(space, spaces.Box):
        n = math.prod(space.shape)
        normal: Any = D.Normal(bound[..., :n], free[..., :n].exp())
        if squash:
            low, high = (torch.as_tensor(x.flatten(), dtype=torch.float64) for x in (space.low, space.high))
            maps = [D.TanhTransform(), D.AffineTransform((low + high) / 2, (high - low) / 2)]
            normal = D.TransformedDistribution(normal, maps)
        return [(D.Independent(normal, 1), n)], bound[..., n:], free[..., n:]
    if isinstance(space, spaces.MultiBinary):
        n = math.prod(space.shape)
        return [(D.Independent(D.Bernoulli(logits=bound[..., :n]), 1), n)], bound[..., n:], free
    counts = [int(space.n)] if isinstance(space, spaces.Discrete) else [int(n) for n in space.nvec.flatten()]
    each = [D.Categorical(logits=z) for z in bound[..., : sum(counts)].split(counts, -1)]
    return [(c, 0) for c in each], bound[..., sum(counts) :], free


def torch_logp(parts: Parts, actions: Tensor) -> Tensor:
    total, at = torch.zeros(actions.shape[:-1], dtype=actions.dtype), 0
    for part, size in parts:
        total = total + part.log_prob(actions[..., at : at + size] if size else actions[..., at])
        at += size or 1
    return total


def case(name: str, seed: int = 0, rows: int = 6) -> tuple[Distribution, Tensor, Tensor, Parts]:
    """The distribution, parameters [rows, K] and sampled actions [rows, A] in float64, and torch's distributions."""
    space, squash = SPACES[name]
    found = distribution(space, squash)
    generator = torch.Generator().manual_seed(seed)
    parameters = 0.6 * torch.randn(rows, found.parameters, generator=generator, dtype=torch.float64)
    noise = found.noise((rows,), generator).double()
    return found, parameters, found.sample(parameters, noise).double(), torch_parts(name, parameters)


def torch_parts(name: str, parameters: Tensor) -> Parts:
    space, squash = SPACES[name]
    free = distribution(space, squash).free
    parts, *left = reference(space, *parameters.split([parameters.shape[-1] - free, free], -1), squash)
    assert all(x.shape[-1] == 0 for x in left)
    return parts


@pytest.mark.parametrize("name", SPACES)
def test_log_probabilities_are_those_of_torch(name: str) -> None:
    found, parameters, actions, parts = case(name)
    torch.testing.assert_close(found.logp(parameters, actions), torch_logp(parts, actions), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", [n for n in SPACES if "squashed" not in n])
def test_entropies_and_divergences_are_those_of_torch(name: str) -> None:
    found, old, _, parts = case(name)
    new = torch.randn(old.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    torch.testing.assert_close(found.entropy(old), sum(p.entropy() for p, _ in parts), atol=1e-12, rtol=1e-12)
    exact = sum(D.kl_divergence(p, q) for (p, _), (q, _) in zip(parts, torch_parts(name, new)))
    torch.testing.assert_close(found.kl(old, new), exact, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(found.kl(old, old), torch.zeros(len(old), dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", SPACES)
def test_gradients_are_those_of_torch(name: str) -> None:
    found, parameters, actions, _ = case(name)
    parameters.requires_grad_()
    (mine,) = torch.autograd.grad(found.logp(parameters, actions).sum(), parameters)
    (exact,) = torch.autograd.grad(torch_logp(torch_parts(name, parameters), actions).sum(), parameters)
    torch.testing.assert_close(mine, exact, atol=1e-8, rtol=1e-8)
    if "squashed" not in name:
        (mine,) = torch.autograd.grad(found.entropy(parameters).sum(), parameters)
        total: Any = sum(p.entropy().sum() for p, _ in torch_parts(name, parameters))
        (exact,) = torch.autograd.grad(total, parameters)
        torch.testing.assert_close(mine, exact, atol=1e-10, rtol=1e-10)


@pytest.mark.first
@pytest.mark.parametrize("name", SPACES)
def test_samples_have_the_entropy_and_the_divergence(name: str) -> None:
    found, parameters, _, _ = case(name, rows=1)
    parameters = 0.5 * parameters
    many = parameters.expand(100_000, -1)
    actions = found.sample(many, found.noise((len(many),), torch.Generator().manual_seed(1)).double()).double()
    other = torch.roll(parameters, 1, -1) * 0.8
    logp = found.logp(many, actions)
    assert abs(float(-logp.mean() - found.entropy(parameters))) < 4 * float(logp.std()) / math.sqrt(len(many))
    ratio = logp - found.logp(other.expand_as(many), actions)
    assert abs(float(ratio.mean() - found.kl(parameters, other))) < 4 * float(ratio.std()) / math.sqrt(len(many))


@pytest.mark.parametrize("name", ("discrete", "multi-discrete", "multi-binary"))
def test_frequencies_of_samples(name: str) -> None:
    found, parameters, _, parts = case(name, rows=1)
    many = parameters.expand(200_000, -1)
    actions = found.sample(many, found.noise((len(many),), torch.Generator().manual_seed(2)).double()).double()
    chances = [p.base_dist.probs[0] if size else p.probs[0] for p, size in parts]  # type: ignore[attr-defined]
    for i, exact in enumerate(chances):
        if name == "multi-binary":
            torch.testing.assert_close(actions.mean(0), exact, atol=5e-3, rtol=0)
        else:
            seen = torch.bincount(actions[:, i].long(), minlength=len(exact)) / len(many)
            torch.testing.assert_close(seen.double(), exact, atol=5e-3, rtol=0)


def test_moments_of_continuous_samples() -> None:
    found, parameters, _, parts = case("box", rows=1)
    many = parameters.expand(200_000, -1)
    actions = found.sample(many, found.noise((len(many),), torch.Generator().manual_seed(3)).double()).double()
    normal = parts[0][0].base_dist  # type: ignore[attr-defined]
    torch.testing.assert_close(actions.mean(0), normal.mean[0], atol=0.02, rtol=0)
    torch.testing.assert_close(actions.std(0), normal.stddev[0], atol=0.02, rtol=0)
    deviations = (actions - actions.mean(0)) / actions.std(0)
    torch.testing.assert_close((deviations**4).mean(0), torch.full((2,), 3.0, dtype=torch.float64), atol=0.1, rtol=0)


def first(batch: Any) -> Any:
    """The first action of a batch."""
    if isinstance(batch, dict):
        return {k: first(v) for k, v in batch.items()}
    return tuple(first(x) for x in batch) if isinstance(batch, tuple) else batch[0]


@pytest.mark.parametrize("name", SPACES)
def test_modes_and_samples_are_actions_of_the_space(name: str) -> None:
    found, parameters, actions, _ = case(name, rows=50)
    space, squash = SPACES[name]
    decode: Any = action_decoder(space)
    for flat in (actions, found.mode(parameters)):
        assert flat.shape == (50, found.actions)
        batch = decode(flat.float().numpy())
        assert space.contains(first(batch)), batch
    best = found.logp(parameters, found.mode(parameters))
    assert squash or bool((best >= found.logp(parameters, actions) - 1e-9).all())


def test_the_mode_of_a_squashed_action_is_the_image_of_the_mean() -> None:
    found = distribution(BOX, squash=True)
    parameters = torch.tensor([0.0, 0.5, 0.3, 0.3], dtype=torch.float64)
    expected = torch.tensor([0.0, 5 + 5 * math.tanh(0.5)], dtype=torch.float64)
    torch.testing.assert_close(found.mode(parameters), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("deviation", "bound"), ((0.1, 1e-9), (1.0, 1e-5), (3.0, 0.02)))
def test_the_entropy_of_squashed_actions_is_as_near_as_documented(deviation: float, bound: float) -> None:
    """Against the trapezoid rule on a fine grid."""
    found = distribution(spaces.Box(-2.0, 3.0, (1,)), squash=True)
    for mean in (0.0, 0.7, -2.0, 4.0):
        parameters = torch.tensor([mean, math.log(deviation)], dtype=torch.float64)
        normal = D.Normal(torch.tensor(mean, dtype=torch.float64), deviation)
        u = mean + deviation * torch.linspace(-12, 12, 100_001, dtype=torch.float64)
        stretch = math.log(2.5) + 2 * (math.log(2) - u.abs() - (-2 * u.abs()).exp().log1p())
        exact = normal.entropy() + torch.trapezoid(normal.log_prob(u).exp() * stretch, u)
        assert abs(float(found.entropy(parameters) - exact)) < bound


def test_saturated_actions_have_finite_log_probabilities_and_gradients() -> None:
    found = distribution(BOX, squash=True)
    parameters = torch.tensor([[50.0, -50.0, 0.0, 0.0]], requires_grad=True)
    actions = found.sample(parameters, torch.zeros(1, 2)).detach()
    logp = found.logp(parameters, actions)
    (gradient,) = torch.autograd.grad(logp.sum(), parameters)
    assert bool(logp.isfinite().all()) and bool(gradient.isfinite().all())


@pytest.mark.parametrize("space", (spaces.Box(-np.inf, 1.0, (2,)), spaces.Box(0.0, np.inf, (1,))))
def test_actions_without_bounds_cannot_be_squashed(space: spaces.Space) -> None:
    with pytest.raises(ConfigError, match="Only actions with bounds can be squashed"):
        distribution(space, squash=True)


@pytest.mark.parametrize("space", (spaces.Box(0, 255, (2,), np.uint8), spaces.Text(3)))
def test_spaces_without_a_distribution_are_refused(space: spaces.Space) -> None:
    with pytest.raises(ConfigError, match="Actions must be a Box of floats"):
        distribution(space)


def test_sigmoid_and_softplus_and_their_gradients() -> None:
    x = torch.tensor([-40.0, -3.0, 0.0, 0.5, 30.0], dtype=torch.float64, requires_grad=True)
    for mine, exact in ((sigmoid, torch.sigmoid), (softplus, torch.nn.functional.softplus)):
        torch.testing.assert_close(mine(x), exact(x), atol=1e-12, rtol=1e-9)
        (a,), (b,) = (torch.autograd.grad(f(x).sum(), x) for f in (mine, exact))
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-9)


# In training


class Copy(ArrayEnvironment):
    """Do what you see: every action of a nested space has a target in the observation."""

    draws, limit = 8, 6
    observation_space = spaces.Box(0.0, 1.0, (8,))
    action_space: Any = NESTED

    def start(self, uniform: np.ndarray) -> np.ndarray:
        return uniform

    def advance(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        size = actions.shape[-1]
        reward = -((actions - np.round(states[..., :size])) ** 2).sum(-1)
        return np.roll(states, 1, -1), reward, reward < -1e9

    def observe(self, states: np.ndarray) -> np.ndarray:
        return states.astype(np.float32)


TRAINED = {
    "multi-discrete": (spaces.MultiDiscrete([2, 2, 2]), False),
    "multi-binary": (spaces.MultiBinary(3), False),
    "squashed": (spaces.Box(-1.0, 2.0, (3,)), True),
    "nested": (
        spaces.Dict({"a": spaces.MultiBinary(1), "b": spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (1,))))}),
        True,
    ),
}


class CopyTask(ControlTask):
    id: ClassVar[str] = "copy"
    actions: str = "nested"

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        found = Copy(seeds, count, purpose)
        found.action_space = TRAINED[self.actions][0]
        return found


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_actions_of_every_space_are_learned(name: str) -> None:
    _, squash = TRAINED[name]
    method: Any = get_method("ppo", "control")
    method = method.replace(policy=method.policy.replace(squash=squash), optimizer=method.optimizer.replace(lr=1e-2))
    loop = OnPolicyLoop(method, CopyTask(actions=name), [Member(0), Member(1)], 12)
    returns = [loop.step().metrics["return"] for _ in range(12)]
    rewards = float(loop.collector.collect(99, loop.critic).rewards.mean()) * Copy.limit
    assert rewards > 0.6 * returns[0], (returns[0], rewards)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_members_with_every_action_space_equal_their_own_runs(name: str) -> None:
    _, squash = TRAINED[name]
    method: Any = get_method("ppo", "control")
    method = method.replace(
        policy=method.policy.replace(squash=squash),
        epochs=2,
        experience=method.experience.replace(environments=3, steps=7),
    )
    assert_members_are_alone(method, CopyTask(actions=name), [Member(seed) for seed in range(5)], (3, 5))
