"""Batched networks against torch's own, image policies, shared trunks and stacked frames."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.population import Member, Population
from etude.core.registry import get_method
from etude.learners.state import StateValue
from etude.loops.on_policy import OnPolicyLoop
from etude.loops.states import join_tensors, split_tensors
from etude.policies.control.activations import ACTIVATIONS
from etude.policies.control.frames import FrameStack, Stacked
from etude.policies.control.initializers import Orthogonal, Sparse
from etude.policies.control.networks import CNN, MLP, Conv, affine
from etude.policies.control.observations import NormalizeObservations
from etude.tasks.control.cartpole import cartpole
from image_toys import CounterArrays, Dot
from solo_runs import alike, assert_members_are_alone

torch.set_num_threads(1)
PEOPLE = Population([Member(seed) for seed in range(3)])
SMALL = CNN(channels=(4, 6), kernels=(4, 2), strides=(2, 1), hidden=(8,))


def torch_layers(module: nn.Module, member: int) -> nn.Sequential:
    """A member's layers as torch's own modules, with their weights."""
    layers: list[nn.Module] = []
    activation = getattr(module, "activation", None)
    name = next(k for k, f in ACTIVATIONS.items() if f is activation)
    act = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU, "elu": nn.ELU, "leaky-relu": nn.LeakyReLU}[name]
    for number, layer in enumerate(module.layers):
        weight = layer.weight[member].detach()
        if weight.dim() == 4:
            own: Any = nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2], layer.stride)
            own.weight.data, own.bias.data = weight.clone(), layer.bias[member].detach().clone()
        else:
            own = nn.Linear(*weight.shape)
            own.weight.data, own.bias.data = weight.T.clone(), layer.bias[member, 0].detach().clone()
        layers.append(own)
        if getattr(module, "norms", None):
            theirs = module.norms[number]
            norm = nn.LayerNorm(len(own.bias), elementwise_affine=hasattr(theirs, "scale"))
            if norm.elementwise_affine:
                norm.weight.data = theirs.scale[member, 0].detach().clone()
                norm.bias.data = theirs.shift[member, 0].detach().clone()
            layers.append(norm)
        layers.append(act())
    if hasattr(module, "after"):
        layers += [nn.Flatten(), *torch_layers(module.after, member)]
    return nn.Sequential(*layers)


def stirred(module: nn.Module) -> nn.Module:
    """With biases, scales and shifts that are not where they start."""
    generator = torch.Generator().manual_seed(5)
    for parameter in module.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return module


@pytest.mark.parametrize("norm", (False, True), ids=("plain", "layer norm"))
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("kind", (MLP, CNN))
def test_every_member_computes_what_torch_computes(kind: Any, activation: Any, norm: bool) -> None:
    part = MLP(hidden=(7, 5)) if kind is MLP else SMALL
    shape = (4,) if kind is MLP else (2, 10, 9)
    built, width = part.replace(activation=activation, layer_norm=norm).build(shape, PEOPLE, "x")
    module = stirred(built)
    x = torch.randn(3, 6, *shape, generator=torch.Generator().manual_seed(1))
    found = module(x)
    assert found.shape == (3, 6, width)
    gradients = torch.autograd.grad((found**2).sum(), list(module.parameters()))
    for member in range(3):
        own = torch_layers(module, member)
        exact = own(x[member])
        torch.testing.assert_close(found[member], exact, atol=2e-6, rtol=2e-5)
        theirs = torch.autograd.grad((exact**2).sum(), list(own.parameters()))
        mine = sorted(float((g[member] ** 2).sum()) for g in gradients)
        assert mine == pytest.approx(sorted(float((g**2).sum()) for g in theirs), rel=1e-4)


@pytest.fixture
def normed() -> tuple[nn.Module, Tensor]:
    """Layer norms without parameters and penultimate normalisation, [P, N, D] to read, weights not where they start."""
    part = MLP(hidden=(7, 5), activation="leaky-relu", layer_norm=True, affine=False, penultimate_norm=True)
    built = stirred(part.build((4,), PEOPLE, "x")[0])
    return built, torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(1))


def test_layer_norms_without_parameters_are_torchs(normed: tuple[nn.Module, Tensor]) -> None:
    module, x = normed
    assert [tuple(p.shape[1:]) for p in module.parameters()] == [(4, 7), (1, 7), (7, 5), (1, 5)]
    for member in range(3):
        before = torch_layers(module, member)(x[member])
        torch.testing.assert_close(module(x)[member], before / before.norm(dim=-1, keepdim=True), atol=2e-6, rtol=2e-5)


def test_penultimate_vectors_have_length_1_and_no_scale(normed: tuple[nn.Module, Tensor]) -> None:
    """AVG's identity: scaling what the last layer says changes nothing (its leaky rectifier keeps the scale)."""
    part = MLP(hidden=(7, 5), activation="leaky-relu", penultimate_norm=True)
    module, x = stirred(part.build((4,), PEOPLE, "x")[0]), normed[1]
    for each in (normed[0], module):
        assert torch.allclose(each(x).norm(dim=-1), torch.ones(3, 6), atol=1e-6)
    found = module(x)
    last: Any = module.layers[-1]
    last.weight.data *= 17.0
    last.bias.data *= 17.0
    torch.testing.assert_close(module(x), found, atol=1e-6, rtol=1e-5)


def test_a_vector_of_zeros_has_no_direction_and_moves_no_weight() -> None:
    """Where all biases start at 0 and an observation is all 0, as the first one is that a normaliser has seen."""
    part = MLP(hidden=(7, 5), activation="leaky-relu", penultimate_norm=True, initializer=Orthogonal(gain=1.0))
    module = part.build((4,), PEOPLE, "x")[0]
    found = module(torch.stack([torch.zeros(3, 4), torch.ones(3, 4)], 1))
    assert (found[:, 0] == 0).all() and torch.allclose(found[:, 1].norm(dim=-1), torch.ones(3))
    found[:, 0].sum().backward()
    assert all((p.grad == 0).all() for p in module.parameters() if p.grad is not None)


@pytest.mark.parametrize(("inputs", "zeros"), [(4, 4), (10, 9), (16, 15), (128, 116)])
def test_sparse_weights_have_exactly_so_many_zeros_in_every_unit(inputs: int, zeros: int) -> None:
    """ceil(0.9 inputs), others in every unit, the rest uniform in +-1 / sqrt(inputs)."""
    weights = Sparse(share=0.9).weights(PEOPLE, "critic.0", inputs, 64)
    assert ((weights == 0).sum(1) == zeros).all()
    assert Sparse().biases(PEOPLE, "critic.0", inputs, 64).abs().max() == 0
    if zeros < inputs:
        heard = (weights != 0).float().mean((0, 2))
        assert heard.min() > 0 and not torch.equal(weights[0] == 0, weights[1] == 0)
        left = weights[weights != 0] * inputs**0.5
        assert left.abs().max() <= 1 and abs(float(left.var()) - 1 / 3) < 0.05


def test_norms_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match="about its layer norms, of which there are none: set layer_norm=true"):
        MLP(affine=False)
    with pytest.raises(ConfigError, match="about the last hidden vector, and there is none: set hidden"):
        MLP(hidden=(), penultimate_norm=True)


def everything_of(x: Tensor, flat: Tensor, outputs: int, along: Tensor, direction: Tensor) -> list[Tensor]:
    """A layer's product, its gradients, and products with its Hessian, as training computes them.

    Weights are views of flat parameters, and the outgoing gradient is a part of a wider tensor, as a Gaussian's is.
    """
    members, inputs = len(x), x.shape[2]
    weight = flat[:, : inputs * outputs].view(members, inputs, outputs).requires_grad_()
    bias = flat[:, inputs * outputs :].view(members, 1, outputs).detach().requires_grad_()
    leaves, x, outward = (weight, bias), x.clone().requires_grad_(), along[..., :outputs]
    found = affine(x, weight, bias)
    first = torch.autograd.grad(found, (x, *leaves), outward)
    squares = (torch.tanh(affine(x, weight, bias)) ** 2 * outward).mean((1, 2))
    slope = torch.autograd.grad(squares.sum(), leaves, create_graph=True)
    second = torch.autograd.grad((slope[0].flatten(1) * direction).sum(), (x, *leaves))
    return [found.detach(), *first, *(g.detach() for g in slope), *second]


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.parametrize("rows", (1, 2, 3, 4, 16, 33, 128, 511, 513))
def test_a_layer_computes_the_same_for_a_lone_member_as_for_each_of_several(rows: int) -> None:
    """Forward, backward and twice backward, bit for bit, edges of 1 included."""
    generator = torch.Generator().manual_seed(rows)
    for inputs, outputs in itertools.product((1, 2, 3, 5, 17, 64, 65, 256), (1, 2, 3, 8, 33, 64, 65)):
        sizes = ((rows, inputs), ((inputs + 1) * outputs,), (rows, 2 * outputs), (inputs * outputs,))
        x, flat, along, direction = (torch.randn(3, *size, generator=generator) for size in sizes)
        together = everything_of(x, flat.clone(), outputs, along, direction)
        for k in (0, 2):
            one = slice(k, k + 1)
            alone = everything_of(x[one], flat[one].clone(), outputs, along[one], direction[one])
            for number, (a, b) in enumerate(zip(alone, together, strict=True)):
                assert alike(a[0], b[k]), (inputs, outputs, number)


def test_layers_with_an_edge_of_one_are_torchs_products() -> None:
    generator = torch.Generator().manual_seed(0)
    for rows, inputs, outputs in itertools.product((1, 5), (1, 4), (1, 3)):
        sizes = ((rows, inputs), (inputs, outputs), (1, outputs))
        x, weight, bias = (torch.randn(2, *size, generator=generator, dtype=torch.float64) for size in sizes)
        torch.testing.assert_close(affine(x, weight, bias), x @ weight + bias, atol=1e-12, rtol=0)


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("rows", "side", "channels", "kernel"),
    ((2, 20, (1, 32), 2), (5, 10, (1, 8), 4), (8, 20, (3, 32), 2), (1, 9, (3, 5), 3)),
)
def test_convolutions_do_not_depend_on_the_number_of_members(
    rows: int, side: int, channels: tuple[int, int], kernel: int
) -> None:
    """Sizes at which a grouped convolution of ten members does."""
    inputs, outputs = channels
    people = [Member(seed) for seed in range(10)]
    x = torch.randn(10, rows, inputs, side, side, generator=torch.Generator().manual_seed(0))

    def computed(members: list[Member]) -> list[Tensor]:
        conv = Conv(Population(members), "x", inputs, outputs, kernel, 2)
        seen = torch.stack([x[m.seed] for m in members])
        y = conv(seen)
        return [y.detach(), *torch.autograd.grad(y.tanh().sum(), list(conv.parameters()))]

    together = computed(people)
    for k in range(10):
        for mine, alone in zip(together, computed([people[k]] * 2)):
            assert alike(mine[k], alone[0])


@pytest.mark.slow
def test_the_default_cnn_is_the_one_of_the_paper() -> None:
    module, width = CNN().build((4, 84, 84), PEOPLE, "x")
    shapes = [tuple(p.shape[1:]) for p in module.parameters() if p.dim() > 3]
    assert shapes == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)]
    assert module.after.layers[0].weight.shape == (3, 7 * 7 * 64, 512) and width == 512


def test_padding_is_zeros_around_what_every_convolution_reads() -> None:
    """Of 7 x 7 cells three strides of 2 leave 4, 2 and 1, each as without padding over a framed image."""
    padded = SMALL.replace(channels=(4, 6, 5), kernels=(3, 3, 3), strides=(2, 2, 2), padding=1, hidden=())
    module, width = padded.build((3, 7, 7), PEOPLE, "x")
    x = torch.rand(3, 2, 3, 7, 7, generator=torch.Generator().manual_seed(0))
    found, y = module(x), x
    for layer, side in zip(module.layers, (4, 2, 1)):
        framed = torch.nn.functional.pad(y, (1, 1, 1, 1))
        each = [torch.nn.functional.conv2d(one, w, b, 2) for one, w, b in zip(framed, layer.weight, layer.bias)]
        y = torch.stack(each).relu()
        assert y.shape[-2:] == (side, side)
    torch.testing.assert_close(found, y.flatten(2))
    assert width == 5
    with pytest.raises(ConfigError, match="convolution 2 of the CNN is 1 x 1"):
        padded.replace(padding=0, kernels=(3, 3, 2)).build((3, 7, 7), PEOPLE, "x")


def test_weights_start_orthogonal_and_are_the_members_own() -> None:
    module, _ = SMALL.build((2, 10, 9), PEOPLE, "x")
    weight = module.layers[1].weight.detach().flatten(2)
    eye = torch.eye(len(weight[0])).expand(3, -1, -1)
    torch.testing.assert_close(weight @ weight.transpose(1, 2), 2 * eye, atol=1e-5, rtol=0)
    assert not torch.equal(weight[0], weight[1])
    alone, _ = SMALL.build((2, 10, 9), Population([Member(1)]), "x")
    assert torch.equal(alone.layers[1].weight[0], module.layers[1].weight[1])


def test_networks_refuse_what_they_cannot_read() -> None:
    with pytest.raises(ConfigError, match="x: MLP reads vectors, and observations are images"):
        MLP().build((3, 10, 10), PEOPLE, "x")
    with pytest.raises(ConfigError, match="x: CNN reads images"):
        CNN().build((5,), PEOPLE, "x")
    with pytest.raises(ConfigError, match="x: what reaches convolution 0 of the CNN is 5 x 9, smaller than its kern"):
        CNN().build((1, 5, 9), PEOPLE, "x")
    with pytest.raises(ConfigError, match="a kernel and a stride for each"):
        CNN(channels=(4,))


# Policies of images, shared trunks


def image_method(**changes: Any) -> Method:
    found: Any = get_method("ppo", "control")
    found = found.replace(
        policy=found.policy.replace(network=SMALL),
        critic=StateValue(network=SMALL),
        experience=found.experience.replace(environments=3, steps=11),
        epochs=2,
    )
    return found.replace(**changes)


@pytest.mark.slow
@pytest.mark.parametrize("shared", (False, True), ids=("apart", "shared"))
def test_members_with_image_policies_equal_their_own_runs(shared: bool) -> None:
    method = image_method(critic=StateValue(network=SMALL, shared=shared))
    assert_members_are_alone(method, Dot(), [Member(seed) for seed in range(5)], (3, 5))


@pytest.mark.slow
@pytest.mark.parametrize("shared", (False, True), ids=("apart", "shared"))
def test_images_are_learned_from(shared: bool) -> None:
    method: Any = image_method(critic=StateValue(network=SMALL, shared=shared), epochs=6)
    method = method.replace(
        optimizer=method.optimizer.replace(lr=3e-3), experience=method.experience.replace(environments=8, steps=32),
        advantages=method.advantages.replace(gamma=0.5),
    )  # fmt: skip
    loop = OnPolicyLoop(method, Dot(), [Member(0), Member(1)], 20)
    first = loop.step().metrics["return"]
    for _ in range(19):
        loop.step()
    rewards = float(loop.collector.collect(99, loop.critic).rewards.mean()) * 7
    assert first < 4.0 and rewards > 5.0, (first, rewards)


def test_a_shared_critic_has_one_layer_of_its_own_and_moves_the_body() -> None:
    method: Any = get_method("ppo", "control")
    method = method.replace(
        critic=StateValue(shared=True, coefficient=1.0),
        objective=method.objective,
        experience=method.experience.replace(environments=2, steps=8),
    )
    loop = OnPolicyLoop(method, cartpole, [Member(0), Member(1)], 3)
    assert [k for k, _ in loop.critic.named_parameters()] == ["head.weight", "head.bias"]
    batch = loop.collector.collect(0, loop.critic)
    features = loop.actor.body(loop.actor.see(batch.observations.flatten(1, 2)))
    torch.testing.assert_close(batch.values.flatten(1), loop.critic(features).detach(), atol=1e-6, rtol=1e-6)
    batch.advantages = torch.zeros_like(batch.rewards)  # only the values have something to learn
    batch.returns = batch.values + 1
    before = {k: v.clone() for k, v in loop.parameters.named()}
    no_entropy = method.replace(regularizers=(), advantages=method.advantages.replace(standardize=False))
    loop.updater.method = no_entropy.bind()
    loop.updater.run(batch.flat(), 0, 1.0)
    moved = {k for k, v in loop.parameters.named() if not torch.equal(v, before[k])}
    assert {"policy.body.layers.0.weight", "critic.head.weight"} <= moved and "policy.head.weight" not in moved


def test_values_of_a_shared_critic_at_the_end_of_episodes() -> None:
    """V(s') is what the critic says of the next observation, where the episode goes on."""
    method: Any = get_method("ppo", "control")
    method = method.replace(critic=StateValue(shared=True), experience=method.experience.replace(steps=40))
    loop = OnPolicyLoop(method, cartpole, [Member(0), Member(1)], 3)
    batch = loop.collector.collect(0, loop.critic)
    goes_on = ~(batch.terminated | batch.truncated)[:, :-1]
    assert torch.equal(batch.next_values[:, :-1][goes_on], batch.values[:, 1:][goes_on])
    last = loop.actor.see(torch.from_numpy(loop.collector.observations))
    exact = loop.critic(loop.actor.body(last)).detach()
    torch.testing.assert_close(batch.next_values[:, -1], exact, atol=1e-6, rtol=1e-6)


# Stacked frames


def expected_stack(counts: list[float], image: bool) -> np.ndarray:
    each = [np.array([c, c if image else -c], np.float32) for c in counts]
    flat = np.concatenate(each)
    return np.broadcast_to(flat[:, None, None], (len(flat), 3, 3)).astype(np.uint8) if image else flat


@pytest.mark.parametrize("image", (False, True), ids=("vectors", "images"))
def test_frames_are_those_of_the_episode_the_first_repeated(image: bool) -> None:
    environment = Stacked(CounterArrays([0, 1], 2, "train", image), 3)
    seen, finals = [environment.reset()], []
    for _ in range(9):
        step = environment.step(np.zeros((2, 2, 1), np.float32))
        seen.append(step.observations)
        finals.append(step.final)
    # episode 0 is cut after 5 steps, episode 1 ends after 3, episode 2 is running
    windows = [
        [0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [0, 0, 0], [0, 0, 1], [0, 1, 2], [0, 0, 0], [0, 0, 1],
    ]  # fmt: skip
    for found, counts in zip(seen, windows):
        exact = expected_stack([float(c) for c in counts], image)
        assert found.dtype == exact.dtype
        for m, e in np.ndindex(2, 2):
            np.testing.assert_array_equal(found[m, e], exact)
    assert [t for t, f in enumerate(finals) if f is not None] == [4, 7]
    for t, counts in ((4, [3.0, 4.0, 5.0]), (7, [1.0, 2.0, 3.0])):
        assert finals[t].shape[0] == 4
        for found in finals[t]:
            np.testing.assert_array_equal(found, expected_stack(counts, image))


def test_frames_are_saved_with_the_environment() -> None:
    environment = Stacked(CounterArrays([0, 1], 2, "train"), 3)
    environment.reset()
    for _ in range(3):
        environment.step(np.zeros((2, 2, 1), np.float32))
    plain, tensors = split_tensors(environment.state())
    again = Stacked(CounterArrays([0, 1], 2, "train"), 3)
    again.reset()
    again.restore(join_tensors(json.loads(json.dumps(plain)), tensors))
    for _ in range(4):
        one, other = (e.step(np.zeros((2, 2, 1), np.float32)) for e in (environment, again))
        np.testing.assert_array_equal(one.observations, other.observations)


def stacking(*parts: Any) -> Method:
    method: Any = get_method("ppo", "control")
    policy = method.policy.replace(observations=parts or (FrameStack(count=3), NormalizeObservations()))
    return method.replace(policy=policy, experience=method.experience.replace(environments=3, steps=17), epochs=2)


@pytest.mark.slow
def test_policies_of_stacked_frames_train_resume_and_equal_their_own_runs(tmp_path: Path) -> None:
    loop = OnPolicyLoop(stacking(), cartpole, [Member(0), Member(1)], 4)
    assert loop.actor.shape == (12,)
    loop.step()
    loop.save(tmp_path)
    again = OnPolicyLoop(stacking(), cartpole, [Member(0), Member(1)], 4)
    again.load(tmp_path)
    for _ in range(2):
        assert loop.step().members.items() <= again.step().members.items()
    assert_members_are_alone(stacking(), cartpole, [Member(seed) for seed in range(3)], (3,))


def test_stacked_images_reach_the_network() -> None:
    method: Any = image_method()
    method = method.replace(policy=method.policy.replace(observations=(FrameStack(count=2),)))
    loop = OnPolicyLoop(method, Dot(), [Member(0), Member(1)], 2)
    assert loop.actor.shape == (2, 10, 10)
    batch = loop.collector.collect(0, loop.critic)
    assert batch.observations.dtype == torch.uint8 and batch.observations.shape[-3:] == (2, 10, 10)
    loop.step()


def test_frames_are_stacked_first() -> None:
    wrong = stacking(NormalizeObservations(), FrameStack())
    with pytest.raises(ConfigError, match=r"put it first in policy\.observations"):
        wrong.check()


# Normalisers


def test_normalisers_of_images_and_of_stacks_see_what_they_transform() -> None:
    method: Any = image_method()
    twice = (NormalizeObservations(), NormalizeObservations())
    method = method.replace(policy=method.policy.replace(observations=twice))
    loop = OnPolicyLoop(method, Dot(), [Member(0), Member(1)], 2)
    batch = loop.collector.collect(0, loop.critic).flat()
    loop.actor.observe(batch.observations)
    first, second = (t.moments for t in loop.actor.transforms)
    scaled = batch.observations.double() / 255
    torch.testing.assert_close(first.mean[:, 0], scaled.mean(1), atol=1e-7, rtol=0)
    torch.testing.assert_close(second.mean[:, 0], scaled.mean(1), atol=1e-7, rtol=0)  # the first had seen nothing yet
    spread: Tensor = loop.actor.see(batch.observations)
    assert bool(spread.isfinite().all()) and bool((first.count == 33.0).all())
