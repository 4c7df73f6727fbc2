"""Critics of which a later layer reads the action: against torch's own layers, alone and together, and who cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.population import Member, Population
from etude.learners.q import QFunctions
from etude.loops.off_policy import OffPolicyLoop
from etude.policies.control.networks import MLP
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY, small
from solo_runs import alike

torch.set_num_threads(1)
PEOPLE = Population([Member(seed) for seed in range(3)])
BOX = spaces.Box(-1.0, 1.0, (2,))


class Own(nn.Module):
    """The critic of DDPG's paper: the action joins what the first layer says (arXiv:1509.02971, section 7)."""

    def __init__(self, critics: Any, row: int) -> None:
        super().__init__()
        layers = [*critics.body.layers, critics.head]
        self.each = nn.ModuleList(nn.Linear(*layer.weight.shape[1:]) for layer in layers)
        for own, layer in zip(self.each, layers, strict=True):
            own.weight.data, own.bias.data = layer.weight[row].T.detach().clone(), layer.bias[row, 0].detach().clone()

    def forward(self, seen: Tensor, action: Tensor) -> Tensor:
        first, second, third, last = self.each
        x = torch.cat([first(seen).relu(), action], -1)
        found: Tensor = last(third(second(x).relu()).relu())
        return found


@pytest.fixture
def critics() -> Any:
    """Two of every member, three hidden layers, the second of which reads an action of two numbers."""
    network = MLP(hidden=(7, 5, 6), activation="relu", action_layer=1)
    return QFunctions(network=network, count=2).build((4,), BOX, PEOPLE)


def test_the_layer_that_reads_the_action_is_as_much_wider(critics: Any) -> None:
    assert [tuple(layer.weight.shape) for layer in critics.body.layers] == [(6, 4, 7), (6, 9, 5), (6, 5, 6)]
    assert critics(torch.zeros(3, 8, 4), torch.zeros(3, 8, 2)).shape == (3, 2, 8, 1)
    assert critics.links is None, "what walks a chain of layers would give the action to the first"


def test_values_and_gradients_are_those_of_a_network_by_hand(critics: Any) -> None:
    """Gradients in weights, and in the actions that a policy climbs along."""
    g = torch.Generator().manual_seed(1)
    seen, actions = torch.randn(3, 6, 4, generator=g), torch.rand(3, 6, 2, generator=g).requires_grad_()
    said = critics(seen, actions)
    found = torch.autograd.grad(said.square().sum(), [actions, *critics.parameters()])
    slopes = torch.zeros(3, 6, 2)
    for row in range(6):
        own, member = Own(critics, row), row // 2
        acted = actions[member].detach().requires_grad_()
        exact = own(seen[member], acted)
        torch.testing.assert_close(said[member, row % 2], exact, atol=1e-6, rtol=1e-5)
        theirs = torch.autograd.grad(exact.square().sum(), [acted, *own.parameters()])
        slopes[member] += theirs[0]
        for mine, one in zip(found[1:], theirs[1:], strict=True):
            torch.testing.assert_close(mine[row] if one.dim() == 2 else mine[row, 0], one.T if one.dim() == 2 else one)
    torch.testing.assert_close(found[0], slopes)
    assert bool((slopes.abs().sum(-1) > 0).any())


def test_with_layer_norms_and_a_direction_it_is_its_parts() -> None:
    options: dict[str, Any] = {"activation": "tanh", "layer_norm": True, "penultimate_norm": True}
    module: Any = MLP(hidden=(7, 5), action_layer=1, **options).build_with_actions(4, 2, PEOPLE, "x")[0]
    x = torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(1))
    first = torch.tanh(module.norms[0](module.layers[0](x[..., :4])))
    second = torch.tanh(module.norms[1](module.layers[1](torch.cat([first, x[..., 4:]], -1))))
    torch.testing.assert_close(module(x), second / second.norm(dim=-1, keepdim=True))


def after(members: list[Member], name: str) -> dict[str, Tensor]:
    """All tensors after two steps of a method whose critic reads the action late."""
    method = set_values(small(REPLAY[name]), {"critic.network.action_layer": 1})
    loop = OffPolicyLoop(method, pendulum, members, 2, 24)
    loop.step(), loop.step()
    return loop.policy_tensors()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddpg", "td3", "sac"])
def test_a_member_learns_what_it_does_alone(name: str) -> None:
    together = after([Member(3), Member(4)], name)
    for k, seed in enumerate((3, 4)):
        for key, value in after([Member(seed)], name).items():
            rows = together[key].unflatten(0, (2, -1))[k] if together[key].dim() else together[key]
            assert alike(rows, value), f"{key} of member {k}"
    assert any("critic" in key for key in together)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: MLP(hidden=(8, 8), action_layer=2), "action_layer=2 .* the 2 hidden layers are counted from 0"),
        (
            lambda: MLP(hidden=(8, 8), action_layer=1).build((4,), PEOPLE, "policy"),
            "policy: MLP.action_layer=1 .* is given none: only critics of actions that are numbers",
        ),
        (
            lambda: OffPolicyLoop(
                set_values(small(REPLAY["dqn"]), {"critic.network.action_layer": 1}), cartpole, [Member(0)], 1
            ),
            "critic: MLP.action_layer=1 .* this network is given none",
        ),
    ],
    ids=["no such layer", "a policy", "choices"],
)
def test_who_is_given_no_action_is_refused_a_layer_for_it(make: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make()
