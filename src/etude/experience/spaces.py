"""Between Gymnasium's spaces and the flat arrays that policies work on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any, TypeGuard

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from etude.core.errors import ConfigError
from etude.policies.control.leaves import Kind, Leaf, Leaves

MASK = "action_mask"
"""The key of a Dict observation, or of an info, that says which actions are allowed; no policy sees it."""
LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def is_image(space: spaces.Space[Any]) -> TypeGuard[spaces.Box]:
    """Whether observations are images: [H, W, C] or [C, H, W] of uint8, or of other numbers from 3 x 3 pixels on."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 3:
        return False
    return space.dtype == np.uint8 or sorted(space.shape)[1] >= 3


def in_bytes(space: spaces.Space[Any]) -> bool:
    """Whether observations are one image of uint8 or bool, which policies get as uint8."""
    return is_image(space) and space.dtype in (np.uint8, np.bool_)


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
    """Shape of one observation as the policy gets it: (D,) of a vector, `Leaves` of an image, a Dict or a Tuple.

    Raises: ConfigError for a space that has no fixed size, naming what in it has none, and for one of text only.
    """
    if not isinstance(space, (spaces.Dict, spaces.Tuple)) and not is_image(space):
        return (_leaf(space, "").size,)
    found = [_leaf(leaf, key) for key, leaf in leaves(space) if not is_text(leaf)]
    if not any(leaf.kind != "mask" for leaf in found):
        raise ConfigError(f"Observations show nothing that a policy can see; got {space}.")
    return Leaves(sorted(found, key=lambda leaf: leaf.kind == "mask"))


def _leaf(space: spaces.Space[Any], key: str) -> Leaf:
    """What is made of one leaf."""
    if not isinstance(space, LEAVES):
        where = f" under {key}" if key else ""
        raise ConfigError(
            f"Observations must be made of Box, Discrete, MultiDiscrete and MultiBinary, which have a fixed size; got "
            f"{space}{where}."
        )
    if is_image(space):
        low, high = float(space.low.min()), float(space.high.max())
        bounded = np.isfinite([low, high]).all() and high < 1e6 and low > -1e6
        return Leaf(key, "image", _picture(space), *((low, high) if bounded else ()))
    kind: Kind = "vector" if isinstance(space, spaces.Box) else "choice"
    return Leaf(key, "mask" if key == f"[{MASK!r}]" else kind, (int(spaces.flatdim(space)),))


def _picture(space: spaces.Box) -> tuple[int, int, int]:
    """[C, H, W]."""
    first, second, third = space.shape
    return (third, first, second) if channels_last(space.shape) else (first, second, third)


def is_text(space: spaces.Space[Any]) -> bool:
    """Whether it is text, which no policy here reads: Gymnasium's, or somebody's own space of strings."""
    if isinstance(space, spaces.Text):
        return True
    own = not type(space).__module__.startswith("gymnasium.")
    return own and not isinstance(space, (*LEAVES, spaces.Dict, spaces.Tuple)) and isinstance(_sampled(space), str)


def _sampled(space: spaces.Space[Any]) -> object:
    return deepcopy(space).sample()  # whose random numbers are its own


def readable(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """The space without the text in it, which policies do not read; the same object where there is none."""
    if not any(is_text(leaf) for key, leaf in leaves(space) if key):
        return space
    if isinstance(space, spaces.Dict):
        return spaces.Dict({k: readable(s) for k, s in space.spaces.items() if _reads(s)})
    assert isinstance(space, spaces.Tuple)
    return spaces.Tuple([readable(s) for s in space.spaces if _reads(s)])


def _reads(space: spaces.Space[Any]) -> bool:
    """Whether something of it is no text."""
    return not all(is_text(leaf) for _, leaf in leaves(space))


def without_text(space: spaces.Space[Any], value: Any) -> Any:
    """An observation of a space as one of `readable(space)`."""
    if isinstance(space, spaces.Dict):
        return {k: without_text(s, value[k]) for k, s in space.spaces.items() if _reads(s)}
    if isinstance(space, spaces.Tuple):
        return tuple(without_text(s, v) for s, v in zip(space.spaces, value, strict=True) if _reads(s))
    return value


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

    Lone images of bytes stay uint8; everything else becomes float32, choices one-hot, images [C, H, W] laid out flat
    where there are other leaves, in the order of the space, but for a mask, which comes last.
    """
    observation_shape(space)
    if is_image(space):
        kind = np.uint8 if in_bytes(space) else np.float32
        return lambda batch: np.ascontiguousarray(_pictures(space, batch), kind)
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return lambda batch: _flat(space, batch)
    each = [(key, leaf) for key, leaf in leaves(space)]
    order = sorted(range(len(each)), key=lambda i: each[i][0] == f"[{MASK!r}]")

    def encode(batch: Any) -> np.ndarray:
        found = [_flat(leaf, values) for (_, leaf), values in zip(each, leaf_values(space, batch))]
        return np.concatenate([found[i] for i in order], 1)

    return encode


def _pictures(space: spaces.Box, batch: Any) -> np.ndarray:
    """[N, C, H, W]."""
    return np.moveaxis(batch, -1, 1) if channels_last(space.shape) else np.asarray(batch)


def _flat(leaf: spaces.Space[Any], batch: Any) -> np.ndarray:
    """One leaf as [N, D], with one-hot choices."""
    match leaf:
        case spaces.Box() if is_image(leaf):
            return _pictures(leaf, batch).astype(np.float32).reshape(len(batch), -1)
        case spaces.Box() | spaces.MultiBinary():
            return np.asarray(batch, np.float32).reshape(len(batch), -1)
        case spaces.Discrete():
            return _one_hot(np.asarray(batch).reshape(-1), int(leaf.n), int(leaf.start))
        case spaces.MultiDiscrete():
            columns = np.asarray(batch).reshape(len(batch), -1).T
            each = zip(columns, leaf.nvec.flatten(), leaf.start.flatten(), strict=True)
            return np.concatenate([_one_hot(x, int(n), int(start)) for x, n, start in each], 1)
    raise AssertionError(leaf)


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
