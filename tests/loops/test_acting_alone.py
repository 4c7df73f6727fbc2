"""What is computed in another way for one environment says the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from etude.core.population import Member, Population
from etude.core.registry import get_method
from etude.learners.heads import Huber
from etude.learners.q import Critics, QFunctions
from etude.policies.control.actor import Actor
from etude.policies.control.networks import MLP
from etude.tasks.control.cartpole import CartPole, cartpole


def actor_of(method: str, members: int, **critic: object) -> Actor:
    made = get_method(method)
    made = made.replace(critic=made.critic.replace(**critic)) if critic else made
    environment = cartpole.make([0], 1)
    who = Population([Member(k) for k in range(members)])
    return made.policy.actor(made, (4,), environment.action_space, who)  # type: ignore[no-any-return]


@pytest.mark.parametrize("members", [1, 3])
def test_one_row_of_a_chain_is_what_its_modules_say(members: int) -> None:
    actor, seen = actor_of("dqn", members), torch.randn(members, 1, 4)
    assert actor.chain is not None and len(actor.chain) == 3
    with torch.no_grad():
        assert torch.equal(actor(seen), actor.head(actor.body(seen)))
        actor.body.body.layers[1].weight.mul_(-0.5)  # the chain reads the weights as they are
        assert torch.equal(actor(seen), actor.head(actor.body(seen)))


@pytest.mark.parametrize("method", ["noisy-dqn", "dueling-dqn", "c51"])
def test_what_is_no_chain_is_asked_as_modules(method: str) -> None:
    assert actor_of(method, 2).chain is None


def test_several_networks_of_a_member_are_no_chain_of_its_rows() -> None:
    actor, seen = actor_of("dqn", 2, count=2), torch.randn(2, 1, 4)
    with torch.no_grad():
        assert torch.equal(actor(seen), actor.head(actor.body(seen)))


@pytest.mark.parametrize("gust", [0.0, 4.0])
def test_a_lone_cart_moves_as_one_of_two(gust: float) -> None:
    """Until it fell a few times, and into the episodes after that."""
    alone, both = (CartPole(gust=gust).make(seeds, 1) for seeds in ([7], [7, 8]))
    here, there, falls = alone.reset(), both.reset(), 0
    for t in range(300):
        push = float(t % 3 > 0) if t % 50 > 30 else float(here[0, 0, 2] > 0)
        one, two = alone.step(np.full((1, 1, 1), push)), both.step(np.full((2, 1, 1), push))
        here, there, falls = one.observations, two.observations, falls + int(one.terminated.sum())
        assert here.tobytes() == there[:1].tobytes() and here.shape == (1, 1, 4) and here.dtype == np.float32
        assert one.terminated.shape == (1, 1) and one.terminated[0] == two.terminated[0]
        assert one.rewards.tobytes() == two.rewards[:1].tobytes()
    assert falls >= 2


def slopes_of(network: nn.Module, given: list[Tensor], loss: Tensor) -> list[list[Tensor]]:
    """Gradients of a loss, and those of these gradients' squares."""
    wanted = [*network.parameters(), *given]
    first = torch.autograd.grad(loss, wanted, retain_graph=True)
    again = torch.autograd.grad(loss, wanted, create_graph=True)
    return [list(first), list(torch.autograd.grad(sum((x.square().sum() for x in again), loss * 0), wanted))]


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("rows", [6, 1030])
@pytest.mark.parametrize("choices", [True, False])
def test_rows_of_a_chain_learn_what_its_modules_learn(members: int, rows: int, choices: bool) -> None:
    """Values and gradients, of the weights and of what is seen, and the gradient of a gradient."""
    who, space = Population([Member(k) for k in range(members)]), Discrete(3) if choices else Box(-1.0, 1.0, (2,))
    network = QFunctions(network=MLP((12, 7), "relu"), count=2).build((4,), space, who)
    assert isinstance(network, Critics) and network.links is not None
    given = [torch.randn(members, rows, 4, requires_grad=True), torch.randn(members, rows, 2, requires_grad=True)]
    found, links = [], network.links
    for network.links in (links, None):
        said = network(*given[: 1 if choices else 2])
        found.append([said, *slopes_of(network, given[: 1 if choices else 2], said.square().sum())])
    assert torch.equal(found[0][0], found[1][0])
    for one, other in zip(found[0][1], found[1][1], strict=True):
        assert torch.equal(one, other) if rows == 6 else torch.allclose(one, other, rtol=1e-4, atol=1e-4)
    for one, other in zip(found[0][2], found[1][2], strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))


def test_rows_in_slices_are_those_of_a_lone_member() -> None:
    who = [Population([Member(k) for k in own]) for own in ([0], [0, 1])]
    seen, actions = torch.randn(2, 2600, 4), torch.randn(2, 2600, 2)
    found = []
    for population in who:
        network = QFunctions(network=MLP((12, 7), "relu"), count=2).build((4,), Box(-1.0, 1.0, (2,)), population)
        said = network(seen[: population.size], actions[: population.size])
        slopes = torch.autograd.grad(said.square().sum(), list(network.parameters()))
        found.append([said[0], *(x[:2] for x in slopes)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_hubers_slope_is_the_difference_cut() -> None:
    off = torch.tensor([-3.0, -0.3, 0.0, 0.7, 2.0], requires_grad=True)
    (slope,) = torch.autograd.grad(Huber(delta=0.7)(off, torch.zeros(5)).sum(), off)
    assert slope.tolist() == pytest.approx([-0.7, -0.3, 0.0, 0.7, 0.7])
