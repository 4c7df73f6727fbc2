"""What is computed in another way for one environment says the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from etude.core.population import Member, Population
from etude.core.registry import get_method
from etude.learners.heads import Huber
from etude.policies.control.actor import Actor
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


@pytest.mark.parametrize("members", [1, 3])
def test_rows_of_a_chain_learn_what_its_modules_learn(members: int) -> None:
    """Values and gradients, of the weights and of what is seen, and the gradient of a gradient."""
    network = actor_of("dqn", members).body
    seen, numbers = torch.randn(members, 6, 4, requires_grad=True), list(network.parameters())
    found = []
    for links in (network.links, None):
        network.links = links
        said = network(seen)
        slopes = torch.autograd.grad(said.square().sum(), [*numbers, seen], create_graph=True)
        found.append([said, *slopes, *torch.autograd.grad(slopes[-1].square().sum(), numbers, allow_unused=True)])
    assert found[0][0].grad_fn is not None and "Rectified" in type(found[0][0].grad_fn.next_functions[0][0]).__name__
    for one, other in zip(*found, strict=True):
        assert (one is None and other is None) or torch.allclose(one, other, rtol=1e-5, atol=1e-9)
    for one, other in zip(*(each[:8] for each in found), strict=True):
        assert torch.equal(one, other)


def test_hubers_slope_is_the_difference_cut() -> None:
    off = torch.tensor([-3.0, -0.3, 0.0, 0.7, 2.0], requires_grad=True)
    (slope,) = torch.autograd.grad(Huber(delta=0.7)(off, torch.zeros(5)).sum(), off)
    assert slope.tolist() == pytest.approx([-0.7, -0.3, 0.0, 0.7, 0.7])
