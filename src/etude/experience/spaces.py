"""Between Gymnasium's spaces and the flat arrays that policies work on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeGuard

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from etude.core.errors import ConfigError

LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def is_image(space: spaces.Space[Any]) -> TypeGuard[spaces.Box]:
    """Whether observations are images: uint8 [H, W, C] or [C, H, W]."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3


def channels_last(shape: Sequence[int]) -> bool:
    """Whether an image is [H, W, C]: two equal sides are height and width, else the channels are the shortest side.

    >>> channels_last((84, 84, 3)), channels_last((12, 84, 84)), channels_last((96, 64, 4)), channels_last((3, 64, 96))
    (True, False, True, False)
    """
    first, second, third = shape
    if (first == second) != (second == third):
        return first == second
    return third <= first


def observation_shape(space: spaces.Space[Any]) -> tuple[int, ...]:
    """Shape of one observation as the policy gets it: [C, H, W] for images, a vector for everything else.

    Raises: ConfigError for a space that has no fixed size, naming what in it has none.
    """
    if is_image(space):
        first, second, third = space.shape
        return (third, first, second) if channels_last(space.shape) else (first, second, third)
    return (sum(_width(leaf, key) for key, leaf in leaves(space)),)


def _width(leaf: spaces.Space[Any], key: str) -> int:
    if not isinstance(leaf, LEAVES):
        where = f" under {key}" if key else ""
        raise ConfigError(
            f"Observations must be made of Box, Discrete, MultiDiscrete and MultiBinary, which have a fixed size; got "
            f"{leaf}{where}."
        )
    return int(spaces.flatdim(leaf))


def leaves(space: spaces.Space[Any], key: str = "") -> Iterator[tuple[str, spaces.Space[Any]]]:
    """Every space that is no Dict or Tuple, with the path to it: "['arm'][0]"."""
    if isinstance(space, spaces.Dict):
        for name, inside in space.spaces.items():
            yield from leaves(inside, f"{key}[{name!r}]")
    elif isinstance(space, spaces.Tuple):
        for i, inside in enumerate(space.spaces):
            yield from leaves(inside, f"{key}[{i}]")
    else:
        yield key, space


def leaf_values(space: spaces.Space[Any], value: Any) -> Iterator[Any]:
    """What stands at every leaf, in the order of `leaves`; works for a batch too."""
    if isinstance(space, spaces.Dict):
        for name, inside in space.spaces.items():
            yield from leaf_values(inside, value[name])
    elif isinstance(space, spaces.Tuple):
        for inside, part in zip(space.spaces, value, strict=True):
            yield from leaf_values(inside, part)
    else:
        yield value


def batch_of(space: spaces.Space[Any], each: Sequence[Any]) -> Any:
    """Single observations or actions as a batch, the way Gymnasium's vector environments give it."""
    empty: Any = create_empty_array(space, len(each))
    return concatenate(space, each, empty)


def observation_encoder(space: spaces.Space[Any]) -> Callable[[Any], np.ndarray]:
    """From a batch of N observations, as Gymnasium's vector environments give it, to [N, *observation_shape].

    Images stay uint8; everything else becomes float32, choices one-hot, in the order of `gymnasium.spaces.flatten`.
    """
    observation_shape(space)
    if is_image(space):
        if channels_last(space.shape):
            return lambda batch: np.ascontiguousarray(np.moveaxis(batch, -1, 1))
        return np.ascontiguousarray
    if isinstance(space, spaces.Box):
        return lambda batch: np.asarray(batch, np.float32).reshape(len(batch), -1)
    return lambda batch: _flat(space, batch)


def _flat(space: spaces.Space[Any], batch: Any) -> np.ndarray:
    """[N, D] with one-hot choices."""
    match space:
        case spaces.Box() | spaces.MultiBinary():
            return np.asarray(batch, np.float32).reshape(len(batch), -1)
        case spaces.Discrete():
            return _one_hot(np.asarray(batch).reshape(-1), int(space.n), int(space.start))
        case spaces.MultiDiscrete():
            columns = np.asarray(batch).reshape(len(batch), -1).T
            each = zip(columns, space.nvec.flatten(), space.start.flatten(), strict=True)
            return np.concatenate([_one_hot(x, int(n), int(start)) for x, n, start in each], 1)
        case spaces.Dict():
            return np.concatenate([_flat(s, batch[k]) for k, s in space.spaces.items()], 1)
        case spaces.Tuple():
            return np.concatenate([_flat(s, b) for s, b in zip(space.spaces, batch, strict=True)], 1)
    raise AssertionError(space)


def _one_hot(values: np.ndarray, count: int, start: int) -> np.ndarray:
    """[N, count]."""
    found: np.ndarray = (values[:, None] == np.arange(start, start + count)).astype(np.float32)
    return found


def action_decoder(space: spaces.Space[Any]) -> Callable[[np.ndarray], Any]:
    """From flat actions [N, A] to a batch as Gymnasium's vector environments take it; Box actions are clipped.

    Raises: ConfigError for a space that has no flat form.
    """
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


def action_size(space: spaces.Space[Any]) -> int:
    """A, the length of a flat action."""
    match space:
        case spaces.Discrete():
            return 1
        case spaces.Dict():
            return sum(map(action_size, space.spaces.values()))
        case spaces.Tuple():
            return sum(map(action_size, space.spaces))
    return math.prod(space.shape or ())


def _sizes(each: Iterable[spaces.Space[Any]]) -> list[int]:
    return [action_size(s) for s in each]


def _split(flat: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    return np.split(flat, np.cumsum(sizes)[:-1], axis=1)
