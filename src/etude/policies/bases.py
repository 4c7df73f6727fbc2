"""One base below several adapters: each policy has modules of its own, and all share the base's tensors.

A base is loaded once as long as a policy over it lives. What trains or scores over it never writes to its tensors:
adapters freeze them, and folding an adapter in copies them first.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

from etude.policies.loading import choose_device, choose_dtype, lasting, load_model, resolve

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

Key: TypeAlias = tuple[object, ...]
ORIGINALS: WeakValueDictionary[Key, PreTrainedModel] = WeakValueDictionary()
"""Bases as they were loaded; nobody else has these modules."""
USERS: WeakKeyDictionary[PreTrainedModel, PreTrainedModel] = WeakKeyDictionary()
"""The original that each model shares its tensors with, which lives as long as one of them."""
HELD: list[list[PreTrainedModel]] = []
"""Originals that `held` keeps, of each time that it is in use."""


def find(name: str, device: str, dtype: str, bits: int | None, shares: bool) -> PreTrainedModel:
    """A model by name, with tensors of its own, or below an adapter with shared ones, perhaps in fewer bits."""
    where = choose_device(device)
    kind = choose_dtype("bfloat16" if bits and dtype == "auto" else dtype, where)
    return shared(name, kind, where, bits) if shares else load_model(name, kind, where)


def shared(name: str, dtype: torch.dtype, device: torch.device, bits: int | None = None) -> PreTrainedModel:
    """A model whose tensors are those of every other one that was asked for by the same name, dtype, device and bits.

    Only for what does not train them: for a base of adapters.
    """
    key = (lasting(name), dtype, bits, *_where(device), *_stamp(Path(resolve(name))))
    original = ORIGINALS.get(key)
    if original is None:
        original = ORIGINALS[key] = load_model(name, dtype, device, bits)
    for kept in HELD:
        kept.append(original)
    tensors: list[object] = [*original.parameters(), *original.buffers()]
    scales = [t.quant_state for t in tensors if hasattr(t, "quant_state")]  # of weights in 4 bits
    own = copy.deepcopy(original, {id(t): t for t in (*tensors, *scales)})
    USERS[own] = original
    return own


@contextmanager
def held() -> Iterator[None]:
    """Keep every base that is loaded in here until the end, for policies that come one after the other."""
    HELD.append([])
    try:
        yield
    finally:
        HELD.pop()


def _where(device: torch.device) -> tuple[object, ...]:
    """The device with its number, which 'cuda' leaves out."""
    import torch

    return (torch.empty(0, device=device).device,)


def _stamp(folder: Path) -> list[tuple[str, int, int]]:
    """What shows that a model's folder was written to since."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    return [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]
