"""What is computed in another way for one environment says the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from etude.core.population import Member, Population
from etude.core.registry import get_method
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
