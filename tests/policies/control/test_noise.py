"""Noise in weights: what it is made of, where it starts, when it is renewed, and that nothing evaluated has it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from etude.core.edit import set_value
from etude.core.population import Member, Population, settle
from etude.evaluation.acting import TrainedPolicy
from etude.evaluation.export import plain_policy
from etude.experience.stretches import LENGTH, Stretches
from etude.learners.heads import Atoms, Dueling
from etude.learners.q import Critics, QFunctions
from etude.loops.off_policy import OffPolicyLoop
from etude.policies.control.networks import MLP
from etude.policies.control.noise import FactorisedNoise, NoisyLinear, noisy
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY, small

torch.set_num_threads(1)
TWO = Population([Member(3), Member(4)])


def critics(population: Population = TWO, sigma: float = 0.5, **fields: Any) -> Critics:
    part = QFunctions(network=MLP(hidden=(8, 5), activation="relu"), noise=FactorisedNoise(sigma=sigma), **fields)
    return part.build((4,), Discrete(3), population)


def said(network: Any, x: Tensor, time: int, name: str = "noise", population: Population = TWO) -> Tensor:
    with torch.no_grad(), noisy(network, Stretches(population, "learn").at(time), name):
        found: Tensor = network(x)
    return found


def loop_of(name: str, seeds: tuple[int, ...] = (3, 4), sigma: float = 0.5, **changes: Any) -> OffPolicyLoop:
    method = small(REPLAY[name], **changes)
    if method.critic.noise is not None:
        method = method.replace(critic=method.critic.replace(noise=FactorisedNoise(sigma=sigma)))
    return OffPolicyLoop(method, cartpole, [Member(s) for s in seeds], 4, 12)


def test_without_sigma_it_is_the_network_without_noise() -> None:
    """Bit for bit, noise drawn or not, and at the same first weights."""
    noised, plain = loop_of("noisy-dqn", sigma=0.0), loop_of("dqn")
    x = torch.randn(2, 6, 4)
    with torch.no_grad():
        expected = plain.critic(x)
        assert torch.equal(noised.critic(x), expected)
    assert torch.equal(said(noised.critic, x, 7), expected)
    assert not torch.equal(said(loop_of("noisy-dqn").critic, x, 7), expected)


def test_means_and_sigmas_start_as_in_the_paper() -> None:
    """mu uniform in +-1 / sqrt(p), all sigmas 0.5 / sqrt(p), p the inputs: section 3.2, of biases too."""
    loop = loop_of("noisy-dqn")
    layers = [m for m in loop.critic.modules() if isinstance(m, NoisyLinear)]
    assert [tuple(m.weight.shape[1:]) for m in layers] == [(4, 8), (8, 5), (5, 2)]
    for layer in layers:
        p = layer.weight.shape[1]
        for mean, sigma in ((layer.weight, layer.weight_sigma), (layer.bias, layer.bias_sigma)):
            assert sigma.shape == mean.shape
            assert torch.allclose(sigma, torch.full_like(sigma, 0.5 / math.sqrt(p)))
            assert float(mean.detach().abs().max()) <= 1 / math.sqrt(p)
        assert float(layer.weight.detach().abs().max()) > 0.8 / math.sqrt(p)


@pytest.mark.slow
def test_noise_is_factorised() -> None:
    """The noise of a weight matrix has rank 1, each entry a variance of (2 / pi) sigma^2, a bias of sqrt(2 / pi)."""
    part = QFunctions(network=MLP(hidden=()), noise=FactorisedNoise(sigma=0.5))
    one = Population([Member(0)])
    network = part.build((4,), Discrete(3), one)
    drawn, times = Stretches(one, "learn"), 3000
    x = torch.cat([torch.zeros(1, 4), torch.eye(4)])[None]
    with torch.no_grad():
        means = network(x)
        each = []
        for t in range(times):
            with noisy(network, drawn.at(t), "noise"):
                each.append((network(x) - means)[0, 0, ..., 0])
    found = torch.stack(each) / 0.25  # sigma / sqrt(4)
    bias, weight = found[:, 0], found[:, 1:] - found[:, :1]
    assert float((weight[:, 0, 0] * weight[:, 1, 1] - weight[:, 0, 1] * weight[:, 1, 0]).abs().max()) < 1e-5
    flat = torch.cat([weight.flatten(1), bias], 1)
    wanted = torch.tensor([2 / math.pi] * 12 + [math.sqrt(2 / math.pi)] * 3)
    assert float((flat.T @ flat / times - wanted.diag()).abs().max()) < 0.08
    assert float(flat.mean(0).abs().max()) < 0.06
    inputs = weight[:, :, 0] / bias[:, :1]  # f(e_i), of which the square is |e_i|: a half-normal
    assert float((inputs**2).median()) == pytest.approx(0.6745, abs=0.03)


def test_noise_is_each_members_own_and_renewed_by_time_and_name() -> None:
    network, x = critics(), torch.ones(2, 1, 4)
    x[1] = x[0]
    with torch.no_grad():
        assert torch.equal(said(network, x, 5), said(network, x, 5))
        steps = [said(network, x, t) - network(x) for t in (0, 1, LENGTH - 1, LENGTH, LENGTH + 1)]
        steps += [said(network, x, 0, name) - network(x) for name in ("noise next", "noise next copy")]
    assert all(not torch.allclose(a, b) for i, a in enumerate(steps) for b in steps[:i])
    layer = network.body.layers[0]
    with noisy(network, Stretches(TWO, "learn").at(0), "noise"):
        numbers = layer.noise.numbers
    assert not torch.equal(numbers[0], numbers[1])
    alone = Population([Member(4)])
    assert torch.equal(said(network, x, 9)[1], said(critics(alone), x[1:], 9, population=alone)[0])


def test_a_sigma_of_each_member_and_of_all_its_critics() -> None:
    members = Population([Member(0, {"critic.noise.sigma": 0.5}), Member(0, {"critic.noise.sigma": 0.0})])
    method = small(REPLAY["noisy-dqn"])
    method = settle(method.replace(critic=method.critic.replace(count=3)).bind(), members)
    network = method.critic.build((4,), Discrete(3), members)
    start = network.body.layers[0].weight_sigma
    assert start.shape == (6, 4, 8) and start[:3].unique().tolist() == [0.25] and not start[3:].any()
    x = torch.ones(2, 1, 4)
    found, means = said(network, x, 0, population=members), network(x)
    assert torch.equal(found[1], means[1])
    apart = (found - means)[0]
    assert not torch.allclose(apart[0], apart[1]) and not torch.allclose(apart[1], apart[2])


@pytest.mark.slow
def test_views_of_a_noisy_network_read_the_same_noise() -> None:
    """What learns through actions: all critics without gradient to them, or the first of them."""
    method = small(REPLAY["td3"])
    method = method.replace(critic=method.critic.replace(noise=FactorisedNoise()))
    loop = OffPolicyLoop(method, pendulum, [Member(3), Member(4)], 3, 20)
    assert all(math.isfinite(v) for _ in range(3) for v in loop.step().metrics.values())
    trainer = loop.updater.trainers["critic"]
    rows = torch.randn(2, 6, 3), torch.randn(2, 6, 1)
    every = []
    for network in (trainer.network, trainer.frozen, trainer.first):
        with noisy(network, Stretches(loop.population, "learn").at(3), "noise here"):
            every.append(network(*rows))
    assert torch.equal(every[0], every[1]) and torch.equal(every[0][:, :1], every[2])
    assert not torch.equal(every[0], trainer.network(*rows))
    assert every[0].requires_grad and not every[1].requires_grad


@pytest.mark.parametrize("head", [Atoms(count=7), Dueling(Atoms(count=7))])
def test_every_head_is_noisy(head: Any) -> None:
    network, x = critics(head=head), torch.ones(2, 3, 4)
    assert sum(isinstance(m, NoisyLinear) for m in network.modules()) == 3
    assert said(network, x, 0).shape == (2, 1, 3, 3, 7) and not torch.allclose(said(network, x, 0), network(x))


@pytest.mark.slow
def test_it_acts_with_new_noise_in_every_step_and_is_evaluated_without() -> None:
    loop = loop_of("noisy-dqn", random=1, warmup=400, capacity=400)
    body, heard = loop.actor.body, list[Tensor]()
    forward = body.forward

    def listened(seen: Tensor, actions: Any = None) -> Tensor:
        heard.append(forward(torch.ones(2, 1, 4)))
        return forward(seen, actions)

    body.forward = listened  # type: ignore[method-assign]
    loop.step()
    assert len(heard) == 11 and all(not torch.equal(a, b) for i, a in enumerate(heard) for b in heard[:i])
    assert all(not torch.equal(a[0], a[1]) for a in heard)
    body.forward = forward  # type: ignore[method-assign]
    ones = torch.ones(2, 5, 4)
    means = loop.actor(ones)
    assert torch.equal(means, loop.actor(ones)) and not torch.allclose(means[:, :1], heard[-1][:, 0, :, :, 0])
    states = torch.randn(50, 4)
    best = loop.critic(states.expand(2, -1, -1))[1, 0, ..., 0].argmax(-1)
    assert 0 < int(best.sum()) < 50
    assert torch.equal(plain_policy(loop, 1)(states), best)
    assert [int(TrainedPolicy(loop, 1)(s.numpy())) for s in states] == best.tolist()


def test_sigmas_learn() -> None:
    loop = loop_of("noisy-dqn")
    before = {k: v.clone() for k, v in loop.policy_tensors().items()}
    loop.step(), loop.step()
    moved = {k: not torch.equal(v, before[k]) for k, v in loop.policy_tensors().items()}
    assert len(moved) == 12 and all(moved.values())


def test_it_is_added_and_taken_out_by_name() -> None:
    added: Any = set_value(REPLAY["double-dqn"], "critic.noise=factorised-noise")
    assert added.critic.noise == FactorisedNoise(sigma=0.5)
    added = set_value(added, "critic.noise.sigma=0.2")
    assert added.critic.noise.sigma == 0.2
    assert set_value(added, "critic.noise=none") == REPLAY["double-dqn"]
