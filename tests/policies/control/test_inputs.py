"""Observations of several leaves: each is seen for what it is, by every member as by a run of its own."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from etude.core.control import ControlTask
from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.population import Member, Population
from etude.core.registry import get_method
from etude.experience.spaces import batch_of, observation_encoder, observation_shape, readable, without_text
from etude.loops.on_policy import OnPolicyLoop
from etude.policies.control.actor import ActorPolicy
from etude.policies.control.frames import FrameStack
from etude.policies.control.inputs import MultiInput, SizedCNN, suited
from etude.policies.control.leaves import Leaf, Leaves
from etude.policies.control.networks import CNN, MLP
from etude.policies.control.observations import NormalizeObservations
from etude.tasks.control.environment import EnvironmentTask
from leaf_toys import GRID, Grid
from solo_runs import assert_members_are_alone

torch.set_num_threads(1)
ONE = Population([Member(0)])
TASK = EnvironmentTask(GRID)


def method(task: ControlTask = TASK) -> Method:
    """PPO with small rollouts, for what the task shows."""
    ppo: Any = get_method("ppo", "control")
    small = ppo.replace(experience=ppo.experience.replace(environments=2, steps=8), epochs=2)
    environment = task.make([0], 1)
    environment.close()
    return suited(small, observation_shape(environment.observation_space))


def test_every_leaf_is_known_for_what_it_is() -> None:
    found: Any = observation_shape(Grid.observation_space)
    assert found.leaves == (
        Leaf("['camera']", "image", (3, 7, 7), 0, 255),
        Leaf("['depth']", "image", (1, 5, 5), -2, 6),
        Leaf("['direction']", "choice", (4,)),
        Leaf("['plan']", "image", (2, 4, 4), 0, 1),
        Leaf("['speed']", "vector", (2,)),
    )
    assert found == (147 + 25 + 4 + 32 + 2,)
    assert copy.deepcopy(found).leaves == found.leaves


def test_images_are_scaled_by_their_bounds_and_choices_are_one_hot() -> None:
    env = Grid()
    shown, _ = env.reset(seed=3)
    space = readable(env.observation_space)
    assert "mission" not in space.spaces  # type: ignore[attr-defined]
    flat = observation_encoder(space)(batch_of(space, [without_text(env.observation_space, shown)]))
    shape: Any = observation_shape(space)
    seen = shape.see(torch.from_numpy(flat)[None])[0, 0].numpy()
    expected = [
        np.moveaxis(shown["camera"], 2, 0).ravel() / 255, (np.moveaxis(shown["depth"], 2, 0).ravel() + 2) / 8,
        np.arange(1, 5) == shown["direction"], np.moveaxis(shown["plan"], 2, 0).ravel(), shown["speed"],
    ]  # fmt: skip
    np.testing.assert_allclose(seen, np.concatenate(expected), rtol=1e-6)


@pytest.mark.parametrize(
    ("space", "shape", "scaled"),
    [
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), (3, 8, 8), 100 / 255),
        (spaces.Box(-100.0, 300.0, (8, 8, 3), np.float32), (3, 8, 8), 0.5),
        (spaces.Box(-np.inf, np.inf, (8, 8, 3), np.float32), (3, 8, 8), 100.0),
        (spaces.Box(0, 1, (8, 8, 3), np.bool_), (3, 8, 8), 1.0),
    ],
    ids=["bytes", "floats", "no bounds", "bits"],
)
def test_a_lone_image_is_scaled_too(space: spaces.Box, shape: tuple[int, ...], scaled: float) -> None:
    values = np.full((1, 8, 8, 3), 100).astype(space.dtype)
    encoded = observation_encoder(space)(values)
    found: Any = observation_shape(space)
    assert found == shape and encoded.shape[1:] == shape
    assert encoded.dtype == (np.float32 if space.dtype == np.float32 else np.uint8)
    assert torch.allclose(found.see(torch.from_numpy(encoded)), torch.tensor(scaled))


def test_vectors_are_normalised_and_nothing_else() -> None:
    shape = Leaves([Leaf("[0]", "choice", (2,)), Leaf("[1]", "vector", (1,)), Leaf("[2]", "image", (1, 1, 1), 0, 1)])
    module, same = NormalizeObservations().build(shape, ONE)
    module.observe(torch.tensor([[[1.0, 0, 10.0, 0.5], [0, 1.0, 30.0, 0.7]]]))  # mean 20, deviation 10
    found = module(torch.tensor([[[0.0, 1.0, 40.0, 0.9]]]))
    assert torch.equal(found, torch.tensor([[[0.0, 1.0, 2.0, 0.9]]])) and same is shape


def test_the_network_reads_each_leaf_by_its_own() -> None:
    """By hand: each image through its CNN, all else through the perceptron, then the joint one."""
    shape: Any = observation_shape(Grid.observation_space)
    network, width = MultiInput(joint=MLP(hidden=(11,))).build(shape, ONE, "policy")
    x = torch.randn(1, 6, *shape)
    camera, depth, direction, plan, speed = x.split([147, 25, 4, 32, 2], -1)
    pictures = [
        network.images[0](camera.view(1, 6, 3, 7, 7)), network.images[1](depth.view(1, 6, 1, 5, 5)),
        network.images[2](plan.view(1, 6, 2, 4, 4)),
    ]  # fmt: skip
    features = torch.cat([*pictures, network.vector(torch.cat([direction, speed], -1))], -1)
    assert width == 11 and torch.equal(network(x), network.joint(features))


@pytest.mark.parametrize("side", [1, 2, 3, 4, 5, 7, 15, 16, 35, 36, 84])
def test_kernels_suit_every_size(side: int) -> None:
    network, width = SizedCNN(hidden=(5,)).build((2, side, side), ONE, "policy")
    assert network(torch.zeros(1, 3, 2, side, side)).shape == (1, 3, width)


def test_it_is_what_runs_take_where_a_task_shows_more_than_a_vector() -> None:
    ppo: Any = get_method("ppo", "control")
    tuned = ppo.replace(policy=ppo.policy.replace(network=MLP(hidden=(7,), activation="relu")))
    found: Any = suited(tuned, observation_shape(Grid.observation_space))
    assert found.policy.network == MultiInput(joint=MLP(hidden=(7,), activation="relu"))
    assert found.critic.network == MultiInput()
    assert found.policy.observations == (NormalizeObservations(),)
    assert suited(found, observation_shape(Grid.observation_space)) == found
    for plain in (spaces.Box(-1, 1, (3,)), spaces.Discrete(4), spaces.Box(-1, 1, (2, 3))):
        assert suited(ppo, observation_shape(plain)) is ppo
    own = ppo.replace(policy=ppo.policy.replace(network=CNN()))
    image: Any = suited(own, observation_shape(spaces.Box(0, 255, (84, 84, 3), np.uint8)))
    assert image.policy.network == CNN() and image.critic.network == MultiInput()
    assert image.policy.observations == ()


@pytest.mark.slow
def test_members_see_as_they_would_alone() -> None:
    assert_members_are_alone(method(), TASK, [Member(s) for s in range(3)], (1, 3))


@pytest.mark.slow
def test_what_the_image_shows_is_learned() -> None:
    """The camera alone says which action is right; other leaves are noise, the vector's a hundred times larger."""
    loop = OnPolicyLoop(method().replace(epochs=4, minibatches=2), TASK, [Member(0), Member(1)], 20)
    reports = [loop.step() for _ in range(20)]
    assert reports[2].metrics["return"] < 5 and min(reports[-1].members["return"]) > 6.4  # of 8; 4 by chance


def test_what_cannot_be_read_is_refused_in_a_sentence() -> None:
    shape = observation_shape(Grid.observation_space)
    with pytest.raises(ConfigError, match=r"some leaves of the observations are images: use multi-input"):
        MLP().build(shape, ONE, "policy")
    with pytest.raises(ConfigError, match=r"FrameStack stacks a vector or an image.*policy\.memory=gru"):
        ActorPolicy(observations=(FrameStack(),)).build(shape, spaces.Discrete(2), ONE)
    with pytest.raises(ConfigError, match=r"show nothing that a policy can see"):
        observation_shape(spaces.Dict(said=spaces.Text(5)))
    with pytest.raises(ConfigError, match=r"which have a fixed size; got Sequence.* under \['many'\]"):
        observation_shape(spaces.Dict(many=spaces.Sequence(spaces.Discrete(2))))
