"""A mixture of normals before tanh, against torch's own, and of one component against the single normal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, distributions

from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.policies.control.mixture import MixturePolicy, SquashedMixture, normals_of
from etude.policies.control.units import Point, SquashedBox

LOW, HIGH = (-2.0, -1.0), (2.0, 3.0)
THREE = SquashedMixture(LOW, HIGH, 3, -5.0, 2.0)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def theirs(said: Tensor) -> Any:
    """The same before tanh, of logits, means and logarithms of deviations one after another."""
    means, log_stds = said[..., 3:9].view(-1, 3, 2), said[..., 9:].view(-1, 3, 2).clamp(-5, 2)
    normals = distributions.Independent(distributions.Normal(means, log_stds.exp()), 1)
    return distributions.MixtureSameFamily(distributions.Categorical(logits=said[..., :3]), normals)


def test_density_is_that_of_torch() -> None:
    said, actions = drawn(50, 15) * 2, torch.tanh(drawn(50, 2, seed=1))
    expected = theirs(said).log_prob(torch.atanh(actions)) - (1 - actions**2).log().sum(-1)
    torch.testing.assert_close(THREE.logp(said, actions), expected, atol=1e-9, rtol=1e-9)


def test_what_is_drawn_has_its_own_density_and_every_component_its_share() -> None:
    g = torch.Generator().manual_seed(0)
    said = torch.tensor([0.0, 1.0, 2.0, -8.0, -8.0, 0.0, 0.0, 8.0, 8.0] + [-3.0] * 6, dtype=torch.float64)
    noise = THREE.noise((4000,), g).double()
    choice = THREE.chosen(said, noise)
    u = torch.atanh(choice.actions.clamp(-1 + 1e-12, 1 - 1e-12))[:, 0]
    share = torch.stack([(u < -4).double().mean(), (u.abs() < 4).double().mean(), (u > 4).double().mean()])
    torch.testing.assert_close(share, torch.tensor([0.0, 1.0, 2.0]).softmax(0).double(), atol=0.03, rtol=0)
    near = (u.abs() < 4).nonzero()[:, 0]
    expected = THREE.logp(said, choice.actions[near])
    assert choice.logp is not None
    torch.testing.assert_close(choice.logp[near], expected, atol=1e-6, rtol=1e-6)


def test_of_one_component_it_is_the_single_normal() -> None:
    one, single = SquashedMixture(LOW, HIGH, 1, -20.0, 2.0), SquashedBox(LOW, HIGH, -20.0, 2.0)
    said, noise, actions = drawn(20, 4), drawn(20, 2, seed=1), torch.tanh(drawn(20, 2, seed=2))
    wide = torch.cat([drawn(20, 1, seed=3), said], -1)
    torch.testing.assert_close(one.logp(wide, actions), single.logp(said, actions), atol=1e-9, rtol=1e-9)
    assert one.middle(wide).equal(single.middle(said))
    ours, theirs = one.chosen(wide, torch.cat([drawn(20, 1, seed=4), noise], -1)), single.chosen(said, noise)
    assert ours.actions.equal(theirs.actions)
    torch.testing.assert_close(ours.logp, theirs.logp, atol=1e-9, rtol=1e-9)
    for found in (normals_of(one, wide), normals_of(single, said)):
        assert found is not None
        assert found.means[:, 0].equal(said[:, :2]) and bool((found.log_chances == 0).all())
    assert normals_of(Point(LOW, HIGH), said) is None


def test_its_mode_is_the_likeliest_components_mean_within_the_bounds() -> None:
    said = torch.zeros(15)
    said[1], said[5:7] = 1.0, torch.tensor([0.5, 50.0])
    torch.testing.assert_close(THREE.mode(said), torch.tensor([2 * torch.tanh(torch.tensor(0.5)).item(), 3.0]))


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(ConfigError, match="least must be below most"):
        MixturePolicy(least=3.0)
    with pytest.raises(ConfigError, match="entropy of a mixture has no closed form"):
        THREE.entropy(torch.zeros(15))
    bc: Any = get_method("bc")
    assert bc.replace(policy=MixturePolicy(), actor=get_method("cfpi").slots()["actor"]).check() is None
