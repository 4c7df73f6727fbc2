"""Between Gymnasium's spaces and the flat arrays that policies work on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from etude.core.errors import ConfigError


def is_image(space: spaces.Space) -> bool:
    """Whether observations are images: uint8 [H, W, C] or [C, H, W]."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3


def observation_shape(space: spaces.Space) -> tuple[int, ...]:
    """Shape of one observation as the policy gets it: [C, H, W] for images, a vector for everything else."""
    if is_image(space):
        h, w, c = space.shape  # type: ignore[misc]
        return (h, w, c) if h <= 4 < c else (c, h, w)
    if isinstance(space, (spaces.Sequence, spaces.Graph, spaces.Text)):
        raise ConfigError(f"Observations must have a fixed size; got {space}.")
    return (spaces.flatdim(space),)


def observation_encoder(space: spaces.Space) -> Callable[[Any], np.ndarray]:
    """From a batch of N observations, as Gymnasium's vector environments give it, to [N, *observation_shape]."""
    if is_image(space):
        swap = observation_shape(space) != space.shape
        return lambda batch: np.ascontiguousarray(np.moveaxis(batch, -1, 1)) if swap else np.asarray(batch)
    if isinstance(space, spaces.Box):
        return lambda batch: np.asarray(batch, np.float32).reshape(len(batch), -1)
    return lambda batch: _flat(space, batch)


def _flat(space: spaces.Space, batch: Any) -> np.ndarray:
    """[N, D] with one-hot choices, as `gymnasium.spaces.flatten` has it for one observation."""
    match space:
        case spaces.Box() | spaces.MultiBinary():
            return np.asarray(batch, np.float32).reshape(len(batch), -1)
        case spaces.Discrete():
            return np.eye(int(space.n), dtype=np.float32)[np.asarray(batch, np.int64) - int(space.start)]
        case spaces.MultiDiscrete():
            columns = (np.asarray(batch, np.int64) - space.start).reshape(len(batch), -1).T
            each = [np.eye(int(n), dtype=np.float32)[x] for n, x in zip(space.nvec.flatten(), columns)]
            return np.concatenate(each, 1)
        case spaces.Dict():
            return np.concatenate([_flat(s, batch[k]) for k, s in space.spaces.items()], 1)
        case spaces.Tuple():
            return np.concatenate([_flat(s, b) for s, b in zip(space.spaces, batch)], 1)
    raise ConfigError(f"Observations must be made of Box, Discrete, MultiDiscrete and MultiBinary; got {space}.")


def action_decoder(space: spaces.Space) -> Callable[[np.ndarray], Any]:
    """From flat actions [N, A] to a batch as Gymnasium's vector environments take it; Box actions are clipped."""
    match space:
        case spaces.Discrete():
            return lambda flat: flat[:, 0].astype(np.int64) + int(space.start)
        case spaces.MultiDiscrete():
            return lambda flat: (flat.reshape(-1, *space.shape) + space.start).astype(space.dtype)
        case spaces.MultiBinary():
            return lambda flat: flat.reshape(-1, *space.shape).astype(np.int8)
        case spaces.Box():
            return lambda flat: np.clip(flat.reshape(-1, *space.shape), space.low, space.high).astype(space.dtype)
        case spaces.Dict():
            each, sizes = [action_decoder(s) for s in space.spaces.values()], _sizes(space.spaces.values())
            return lambda flat: dict(zip(space.spaces, (d(x) for d, x in zip(each, _split(flat, sizes)))))
        case spaces.Tuple():
            each, sizes = [action_decoder(s) for s in space.spaces], _sizes(space.spaces)
            return lambda flat: tuple(d(x) for d, x in zip(each, _split(flat, sizes)))
    raise ConfigError(f"Actions must be Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple; got {space}.")


def action_size(space: spaces.Space) -> int:
    """A, the length of a flat action."""
    match space:
        case spaces.Discrete():
            return 1
        case spaces.Dict():
            return sum(map(action_size, space.spaces.values()))
        case spaces.Tuple():
            return sum(map(action_size, space.spaces))
    return math.prod(space.shape or ())


def _sizes(each: Any) -> list[int]:
    return [action_size(s) for s in each]


def _split(flat: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    return np.split(flat, np.cumsum(sizes)[:-1], axis=1)
