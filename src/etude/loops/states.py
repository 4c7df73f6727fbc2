"""States of parts and environments: as files, tensors and arrays apart from JSON values; and as copies."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from etude.core.errors import EtudeError
from etude.core.method import Method


def split_tensors(value: object, path: str = "parts") -> tuple[Any, dict[str, torch.Tensor]]:
    """JSON values with tensors and numpy arrays taken out, and all of these as tensors by path."""
    if isinstance(value, torch.Tensor):
        return {"tensor": path}, {path: value}
    if isinstance(value, np.ndarray):
        return {"array": path}, {path: torch.from_numpy(value.copy())}
    if isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        split = {k: split_tensors(v, f"{path}/{k}") for k, v in items}
        tensors = {k: t for _, inside in split.values() for k, t in inside.items()}
        plain = {k: v for k, (v, _) in split.items()}
        return (plain if isinstance(value, dict) else list(plain.values())), tensors
    return value, {}


def join_tensors(value: object, tensors: dict[str, torch.Tensor]) -> Any:
    """Undo `split_tensors`."""
    if isinstance(value, dict):
        if set(value) == {"tensor"}:
            return tensors[value["tensor"]]
        if set(value) == {"array"}:
            return tensors[value["array"]].cpu().numpy().copy()
        return {k: join_tensors(v, tensors) for k, v in value.items()}
    return [join_tensors(v, tensors) for v in value] if isinstance(value, list) else value


def below(tensors: Mapping[str, torch.Tensor], start: str) -> dict[str, torch.Tensor]:
    """The tensors whose names begin with `start`, by the rest of their names."""
    return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}


@contextmanager
def untouched(method: Method) -> Iterator[None]:
    """Where what is inside fails, the parts go back to what they knew before, and the error says that it is so."""
    before = copied(method.state_dict())
    try:
        yield
    except EtudeError as error:
        method.load_state_dict(before)
        error.intact = True
        raise


def copied(state: Any) -> Any:
    """A state anew, tensors too: many times as fast as `copy.deepcopy` where there are many numbers.

    >>> before = {"seen": [1, 2]}
    >>> again = copied(before)
    >>> before["seen"].append(3)
    >>> again
    {'seen': [1, 2]}
    """
    if isinstance(state, dict):
        return {k: copied(v) for k, v in state.items()}
    if isinstance(state, (list, tuple)):
        anew = [copied(v) for v in state]
        return anew if isinstance(state, list) else tuple(anew)
    if state is None or isinstance(state, (bool, int, float, str)):
        return state
    return state.clone() if isinstance(state, torch.Tensor) else copy.deepcopy(state)
