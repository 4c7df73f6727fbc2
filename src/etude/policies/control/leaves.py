"""What observations are made of: the leaves of a space, each seen for what it is, in one array."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["vector", "choice", "image", "mask"]


@dataclass(frozen=True)
class Leaf:
    """One leaf of an observation space, as it lies in the array that policies get.

    Args:
        key: the path to it, as in "['camera']"; empty where the whole space is this leaf.
        kind: 'vector', numbers as they are; 'choice', one-hot; 'image'; 'mask', which actions are allowed.
        shape: [C, H, W] of an image, (D,) of all else.
        low, high: the least and the largest value of an image; equal where the space has no bounds.
    """

    key: str
    kind: Kind
    shape: tuple[int, ...]
    low: float = 0.0
    high: float = 0.0

    @property
    def size(self) -> int:
        """How many numbers it is."""
        return math.prod(self.shape)

    def scaled(self, values: Tensor) -> Tensor:
        """(x - low) / (high - low) of an image with bounds, everything else as it is."""
        if self.kind != "image":
            return values
        values = values.float()
        return (values - self.low) / (self.high - self.low) if self.high > self.low else values


class Leaves(tuple[int, ...]):
    """The shape of observations of which it is known what they are made of.

    [C, H, W] where there is one leaf and it is an image; else (D,), the leaves one after another, a mask last.

    >>> Leaves([Leaf("['camera']", "image", (3, 7, 7), 0, 255), Leaf("['way']", "choice", (4,))])
    (151,)
    """

    leaves: tuple[Leaf, ...]

    def __new__(cls, leaves: Iterable[Leaf]) -> Leaves:
        each = tuple(leaves)
        lone = len(each) == 1 and each[0].kind == "image"
        made = super().__new__(cls, each[0].shape if lone else (sum(leaf.size for leaf in each),))
        made.leaves = each
        return made

    def __getnewargs__(self) -> tuple[tuple[Leaf, ...]]:
        return (self.leaves,)  # what a copy is made of

    @property
    def lone(self) -> bool:
        """Whether it is one image, which is not laid out flat."""
        return len(self) == 3

    @property
    def masked(self) -> int:
        """How many of the numbers say whether an action is allowed; they come last."""
        return self.leaves[-1].size if self.leaves[-1].kind == "mask" else 0

    @property
    def seen(self) -> tuple[int, ...]:
        """The shape of what `see` returns: without the mask, and plain where one vector is left."""
        rest = self.leaves[:-1] if self.masked else self.leaves
        return rest[0].shape if len(rest) == 1 and rest[0].kind != "image" else Leaves(rest)

    def split(self, values: Tensor) -> tuple[Tensor, ...]:
        """[..., D] leaf by leaf, each [..., size]."""
        each: tuple[Tensor, ...] = values.split([leaf.size for leaf in self.leaves], -1)
        return each

    def see(self, observations: Tensor) -> Tensor:
        """[P, N, *self] as a network gets them, [P, N, *self.seen]: images scaled by their bounds, no mask."""
        if self.lone:  # of any number of channels: frames may be stacked
            return self.leaves[0].scaled(observations)
        if not self.masked and not any(leaf.kind == "image" for leaf in self.leaves):
            return observations
        each = [leaf.scaled(x) for leaf, x in zip(self.leaves, self.split(observations)) if leaf.kind != "mask"]
        found = torch.cat(each, -1)
        shape = self.seen
        return found.unflatten(-1, tuple(shape)) if len(shape) == 3 else found

    def allowed(self, observations: Tensor) -> Tensor | None:
        """[P, N, K] whether each option may be chosen; None where nothing is said."""
        return observations[..., -self.masked :] > 0 if self.masked else None
