"""HypeRL: what the layers that a network says must fulfil, and what a critic made of them refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.population import Member, Population
from etude.learners.heads import Dueling
from etude.methods.value.hyperl.hypernetwork import HyperCritics, HyperQFunctions, ResidualNetwork
from etude.policies.control.networks import MLP
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY

torch.set_num_threads(1)
SEEN, ACTION, DYNAMIC, COUNT, ROWS = 3, 2, 7, 2, 5
PART = HyperQFunctions(network=ResidualNetwork(hidden=(8, 16)), dynamic=DYNAMIC, count=COUNT)
BOX = spaces.Box(-1.0, 1.0, (ACTION,))


def built(part: HyperQFunctions, *seeds: int) -> HyperCritics:
    network: Any = part.build((SEEN,), BOX, Population([Member(seed) for seed in seeds]))
    for parameter in network.parameters():
        parameter.data = parameter.data.double()
    found: HyperCritics = network.requires_grad_(False)
    return found


def inputs(members: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    seen, actions = (torch.randn(members, ROWS, d, generator=g, dtype=torch.float64) for d in (SEEN, ACTION))
    return seen, actions


def raised(network: HyperCritics) -> None:
    """Heads so large that layers differ much from row to row."""
    for emitter in (network.first, network.last):
        emitter.linear.weight.data *= 20
        emitter.linear.bias.data += 0.3


@pytest.mark.parametrize("reverse", [False, True])
def test_it_is_a_perceptron_of_what_the_primary_network_says(reverse: bool) -> None:
    """Row by row with torch's own functions, from the heads' columns: inputs, then scales, then biases."""
    network, (seen, actions) = built(PART.replace(reverse=reverse), 3, 4), inputs(2)
    raised(network)
    found = network(seen, actions)
    assert found.shape == (2, COUNT, ROWS, 1)
    x, y = (actions, seen) if reverse else (seen, actions)
    assert network.first.linear.weight.shape[2] == (y.shape[-1] + 2) * DYNAMIC
    for k in range(2):
        for m in range(COUNT):
            row = k * COUNT + m
            z = network.primary(x[k].expand(2 * COUNT, -1, -1))[row]
            said = [z @ e.linear.weight[row] + e.linear.bias[row] for e in (network.first, network.last)]
            for n in range(ROWS):
                (w1, s1, b1), (w2, s2, b2) = (
                    (e.view(-1, width)[:-2].T, 1 + e.view(-1, width)[-2], e.view(-1, width)[-1])
                    for e, width in zip((said[0][n], said[1][n]), (DYNAMIC, 1))
                )
                h = functional.relu(functional.linear(y[k, n], w1) * s1 + b1)
                q = functional.linear(h, w2) * s2 + b2
                assert torch.allclose(found[k, m, n], q, atol=1e-12)
    spread = found.std(2)
    assert float(spread.min()) > 1e-3


def test_without_weights_in_the_heads_it_does_not_depend_on_what_is_seen() -> None:
    network, (seen, actions) = built(PART, 3), inputs(1)
    raised(network)
    same = actions[:, :1].expand_as(actions)
    assert float(network(seen, same).std(2).min()) > 1e-3
    for emitter in (network.first, network.last):
        emitter.linear.weight.data.zero_()
    values = network(seen, same)
    assert float((values - values[:, :, :1]).abs().max()) == 0.0
    assert float(network(seen, actions).std(2).min()) > 1e-3


def test_the_weights_that_are_said_have_this_variance_at_the_start() -> None:
    """Of W_1 |z|^2 0.05^2 / 3 given z, of W_2 |z|^2 0.008^2 / 3; scales are around 1 and biases around 0."""
    network = built(PART.replace(dynamic=512, count=1), *range(8))
    seen, _ = inputs(8)
    z = network.primary(seen)
    for layer, limit in zip(network.layers(seen), (0.05, 0.008)):
        wanted = z.square().sum(-1) * limit**2 / 3
        variance = layer.weight.flatten(2).var(-1, correction=0)
        assert torch.allclose(variance / wanted, torch.ones_like(wanted), atol=0.25)
        assert abs(float((variance / wanted).mean()) - 1) < 0.05
        assert float((layer.scale - 1).abs().mean()) < 3 * float(wanted.sqrt().mean())
        assert float(layer.bias.abs().mean()) < 3 * float(wanted.sqrt().mean())
    assert not network.first.linear.bias.any() and not network.last.linear.bias.any()


def test_the_primary_network_is_residual_blocks_at_growing_widths() -> None:
    """With the numbers of each layer as torch's functions read them."""
    network, (seen, _) = built(PART.replace(count=1), 3), inputs(1)
    v = seen[0]
    for stage in network.primary.stages:
        layers = [(layer.weight[0].T, layer.bias[0, 0]) for layer in stage]
        v = functional.linear(v, *layers[0])
        for inner, outer in (layers[1:3], layers[3:5]):
            v = v + functional.linear(functional.relu(functional.linear(functional.relu(v), *inner)), *outer)
    assert torch.allclose(network.primary(seen)[0], v, atol=1e-12)
    widths = [stage[0].weight.shape[1:] for stage in network.primary.stages]
    assert [tuple(w) for w in widths] == [(SEEN, 8), (8, 16)]
    for layer in (layer for stage in network.primary.stages for layer in stage):
        limit = 0.5 / layer.weight.shape[1] ** 0.5
        assert 0.7 * limit < float(layer.weight.abs().max()) <= limit


def test_the_papers_critic_has_this_many_numbers() -> None:
    """By hand for an observation of 3 and an action of 1, of 256-512-1024 and 256: counted layer by layer."""
    primary = (3 + 1) * 256 + 4 * 257 * 256 + 257 * 512 + 4 * 513 * 512 + 513 * 1024 + 4 * 1025 * 1024
    heads = 1025 * (1 + 2) * 256 + 1025 * (256 + 2)
    part: Any = REPLAY["hyperl"].critic
    network = part.replace(count=1).build((3,), spaces.Box(-1.0, 1.0, (1,)), Population([Member(0)]))
    assert sum(p.numel() for p in network.parameters()) == primary + heads == 7_221_762


def test_choices_and_encoders_are_refused() -> None:
    population = Population([Member(0)])
    with pytest.raises(ConfigError, match="take q-functions"):
        PART.build((SEEN,), spaces.Discrete(3), population)
    with pytest.raises(ConfigError, match="take q-functions"):
        PART.build_joined(16, population)
    with pytest.raises(ConfigError, match="observations are images"):
        PART.build((1, 8, 8), BOX, population)
    with pytest.raises(ConfigError, match="ResidualNetwork reads vectors"):
        PART.network.build((1, 8, 8), population, "critic")
    with pytest.raises(ConfigError, match="at least one width"):
        ResidualNetwork(hidden=())


def test_a_head_with_a_layer_of_its_own_is_refused() -> None:
    method: Any = REPLAY["hyperl"]
    check(method, pendulum)
    dueling = method.replace(critic=method.critic.replace(head=Dueling()))
    with pytest.raises(ConfigError, match=r"Dueling has one of its own: set critic\.head=scalar"):
        check(dueling, pendulum)


def test_its_difference_from_td3_is_the_critic_alone() -> None:
    method, td3 = REPLAY["hyperl"], REPLAY["td3"]
    said = {"id", "title", "paper", "claim"}
    assert {path.partition(".")[0] for path in method.diff(td3)} - said == {"critic"}
    perceptron = PART.replace(network=MLP(hidden=(16,), activation="relu"), count=1)
    assert built(perceptron, 0)(*inputs(1)).shape == (1, 1, ROWS, 1)
