"""Which actions an environment allows: `action_mask`, in the info of every reset and step or in a Dict observation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from etude.experience.spaces import MASK


def options(actions: spaces.Space[Any]) -> list[int]:
    """How many options each choice has, of Discrete and MultiDiscrete; empty for all other actions."""
    if isinstance(actions, spaces.Discrete):
        return [int(actions.n)]
    return [int(n) for n in actions.nvec.flatten()] if isinstance(actions, spaces.MultiDiscrete) else []


def has_mask(observations: spaces.Space[Any]) -> bool:
    """Whether observations bring a mask."""
    return isinstance(observations, spaces.Dict) and MASK in observations.spaces


def with_mask(observations: spaces.Space[Any], actions: spaces.Space[Any]) -> spaces.Dict:
    """The space of {'observation': ..., 'action_mask': ...}: what infos say of masks becomes part of observations."""
    return spaces.Dict({"observation": observations, MASK: spaces.MultiBinary(sum(options(actions)))})


def mask_of(info: Mapping[str, Any], actions: spaces.Space[Any]) -> np.ndarray | str:
    """`info["action_mask"]` as one array [K] of 0 and 1, for several choices one after another; or what is wrong."""
    size = sum(options(actions))
    if MASK not in info:
        return f"info has no '{MASK}', which an earlier one had: every reset and step must say it"
    given = info[MASK]
    pieces = given if isinstance(given, (tuple, list)) and any(np.ndim(x) for x in given) else [given]
    try:
        mask = np.concatenate([np.asarray(x).reshape(-1) for x in pieces])
        fits = mask.shape == (size,) and bool(((mask == 0) | (mask == 1)).all())
    except ValueError:
        fits = False
    return mask.astype(np.int8) if fits else f"info['{MASK}'] must be {size} numbers, each 0 or 1, got {given!r}"


def allowed(action: Any, actions: spaces.Space[Any], mask: np.ndarray) -> Any:
    """The action, with every choice that the mask [K] does not allow changed to one that it does, if there is any."""
    start = np.reshape(actions.start, -1)  # type: ignore[attr-defined]  # of both spaces that have options
    chosen = _free(np.reshape(action, -1).astype(np.int64) - start, options(actions), mask)
    found = (chosen + start).astype(actions.dtype).reshape(actions.shape)
    return found[()] if isinstance(actions, spaces.Discrete) else found


def _free(chosen: np.ndarray, counts: list[int], mask: np.ndarray) -> np.ndarray:
    """Places of options [A], each moved to an allowed one."""
    pieces = [np.flatnonzero(piece) for piece in np.split(mask, np.cumsum(counts)[:-1])]
    moved = [i if i in free or not len(free) else free[i % len(free)] for i, free in zip(chosen, pieces)]
    return np.array(moved, np.int64)


def allowed_flat(flat: np.ndarray, shown: np.ndarray, actions: spaces.Space[Any]) -> np.ndarray:
    """Flat actions [M, E, A] that the masks at the end of encoded observations [M, E, D] allow."""
    counts = options(actions)
    each = [_free(flat[i].astype(np.int64), counts, shown[i][-sum(counts) :]) for i in np.ndindex(flat.shape[:2])]
    return np.reshape(each, flat.shape).astype(np.float32)


def nowhere_to_go(
    observations: spaces.Space[Any], actions: spaces.Space[Any]
) -> Callable[[np.ndarray], tuple[int, str] | None]:
    """A look at encoded observations [N, D]: row and sentence of the first that allows no action, None if all do."""
    counts = options(actions)
    if not has_mask(observations) or not counts:
        return lambda encoded: None
    starts = np.cumsum([0, *counts[:-1]])

    def look(encoded: np.ndarray) -> tuple[int, str] | None:
        allowed = np.add.reduceat(encoded[:, -sum(counts) :] > 0, starts, axis=1, dtype=np.int64)
        if allowed.all():
            return None
        row, choice = (int(i) for i in np.argwhere(allowed == 0)[0])
        which = f" of choice {choice}" if len(counts) > 1 else ""
        return row, (
            f"the {MASK} allows no action{which}, and the episode goes on: allow one, or end the episode (terminated)"
        )

    return look
