"""Networks for observations that are more than a vector: images of any size, and several leaves at once."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from etude.core.encoder_slots import ReplayEncoder
from etude.core.errors import ConfigError
from etude.core.fields import Count
from etude.core.method import Method
from etude.core.part import Part
from etude.core.population import Population
from etude.core.step_slots import Network
from etude.policies.control.activations import Activation
from etude.policies.control.actor import ActorPolicy
from etude.policies.control.leaves import Leaf, Leaves
from etude.policies.control.networks import CNN, MLP
from etude.policies.control.observations import NormalizeObservations

NATURE, MIDDLE = 36, 16
"""Least sides of images for the kernels of doi:10.1038/nature14236, and for some that still leave pixels out."""


class SizedCNN(Network):
    """A CNN whose kernels suit the size of the images, with small last layers.

    From 36 pixels on those of doi:10.1038/nature14236; from 16 on kernels 3, 3, 3 with strides 2, 2, 1; below two
    kernels of 3 with stride 1, or of what there is.

    Shapes: [P, N, C, H, W] -> [P, N, width]. Grids of 7 x 7 leave 3 x 3 of 32 channels:

    >>> from etude.core.population import Member
    >>> network, width = SizedCNN().build((3, 7, 7), Population([Member(0)]), "policy")
    >>> network.after.layers[0].weight.shape, width
    (torch.Size([1, 288, 128]), 128)
    """

    hidden: tuple[Count, ...] = (128,)
    activation: Activation = "relu"

    def build(self, shape: tuple[int, ...], population: Population, name: str) -> tuple[nn.Module, int]:
        if len(shape) != 3:
            raise ConfigError(f"{name}: SizedCNN reads images [C, H, W], and observations have shape {list(shape)}.")
        side = min(shape[1:])
        sized = CNN(hidden=self.hidden, activation=self.activation)
        if side < MIDDLE:
            kernels = (min(3, side), min(3, max(1, side - 2)))
            sized = sized.replace(channels=(16, 32), kernels=kernels, strides=(1, 1))
        elif side < NATURE:
            sized = sized.replace(channels=(16, 32, 32), kernels=(3, 3, 3), strides=(2, 2, 1))
        return sized.build(shape, population, name)


class Joined(nn.Module):
    """Leaves [P, N, D] to features: all that is no image through `vector`, each image through its own network.

    Args:
        shape: what observations are made of.
        vector: None where there are only images.
        joint: reads all features side by side.
    """

    def __init__(self, shape: Leaves, vector: nn.Module | None, images: list[nn.Module], joint: nn.Module) -> None:
        super().__init__()
        self.shape, self.vector, self.images, self.joint = shape, vector, nn.ModuleList(images), joint

    def forward(self, seen: Tensor) -> Tensor:
        if self.shape.lone:
            parts = [self.images[0](seen)]
        else:
            pieces = list(zip(self.shape.leaves, self.shape.split(seen)))
            pictures = [x.unflatten(-1, leaf.shape) for leaf, x in pieces if leaf.kind == "image"]
            parts = [network(x) for network, x in zip(self.images, pictures)]
            if self.vector is not None:
                parts.append(self.vector(torch.cat([x for leaf, x in pieces if leaf.kind != "image"], -1)))
        features: Tensor = self.joint(parts[0] if len(parts) == 1 else torch.cat(parts, -1))
        return features


class MultiInput(Network):
    """Every leaf of an observation by what suits it, joined: images by a CNN each, vectors and choices by a perceptron.

    Images arrive scaled by their bounds, choices one-hot, vectors normalised if the policy's `observations` say so.
    Observations that are one image, or one vector, are read too.

    Args:
        image: for each image, with weights of its own.
        vector: for all that is no image, side by side.
        joint: what reads all features.

    Shapes: [P, N, D], the leaves one after another -> [P, N, width].

    >>> from etude.core.population import Member
    >>> shape = Leaves([Leaf("['camera']", "image", (3, 7, 7), 0, 255), Leaf("['way']", "choice", (4,))])
    >>> network, width = MultiInput().build(shape, Population([Member(0)]), "policy")
    >>> network(torch.zeros(1, 5, 151)).shape
    torch.Size([1, 5, 64])
    """

    image: Network = SizedCNN()
    vector: Network = MLP(hidden=(64,))
    joint: Network = MLP()

    def build(self, shape: tuple[int, ...], population: Population, name: str) -> tuple[nn.Module, int]:
        if not isinstance(shape, Leaves):
            shape = Leaves([Leaf("", "image" if len(shape) == 3 else "vector", tuple(shape))])
        flat = sum(leaf.size for leaf in shape.leaves if leaf.kind != "image")
        pictures = [leaf for leaf in shape.leaves if leaf.kind == "image"]
        built = [self.image.build(leaf.shape, population, f"{name}.image{i}") for i, leaf in enumerate(pictures)]
        width, vector = sum(size for _, size in built), None
        if flat:
            vector, more = self.vector.build((flat,), population, f"{name}.vector")
            width += more
        joint, width = self.joint.build((width,), population, name)
        return Joined(shape, vector, [module for module, _ in built], joint), width


M = TypeVar("M", bound=Method)


def suited(method: M, shape: tuple[int, ...]) -> M:
    """The method for observations of this shape.

    Where they are more than a vector, `multi-input` reads them wherever a perceptron would, which then joins; and
    vectors among several leaves are normalised. Behind an encoder nothing changes, since it alone reads them.
    """
    seen = shape.seen if isinstance(shape, Leaves) else shape
    if not isinstance(seen, Leaves):
        return method
    changes: dict[str, Any] = {}
    hidden = ("policy", "critic") if any(isinstance(p, ReplayEncoder) for p in method.slots()["learners"]) else ()
    for slot, value in method.slots().items():
        if isinstance(value, Part) and slot not in hidden:
            changes[slot] = _seeing(value)
        elif isinstance(value, tuple):
            changes[slot] = tuple(_seeing(part) if isinstance(part, Part) else part for part in value)
    policy = changes.get("policy")
    vectors = any(leaf.kind == "vector" for leaf in seen.leaves)
    if isinstance(policy, ActorPolicy) and vectors and not policy.observations:
        changes["policy"] = policy.replace(observations=(NormalizeObservations(),))
    return method.replace(**changes)


def _seeing(part: Part) -> Part:
    """A part, and all parts inside, with `multi-input` in the place of perceptrons."""
    if isinstance(part, MLP):
        return MultiInput(joint=part)
    if isinstance(part, Network):
        return part
    inside = {k: v for k, v in part.fields().items() if isinstance(v, Part)}
    new = {k: changed for k, v in inside.items() if (changed := _seeing(v)) is not v}
    return part.replace(**new) if new else part
