"""Caches for decoding: preallocated, shared by a group's completions, rows dropped as they finish.

Recurrent layers (Mamba, linear attention, convolutions) keep a state of fixed size instead of keys and values.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache as remembered
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from etude.policies.protocols import Backbone


class PreallocatedLayer(DynamicLayer):
    """A layer whose buffer is allocated once and written in place, instead of being concatenated every token.

    `keys` and `values` are views [rows, heads, tokens so far, width] of the buffers.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # transformers'
        self.capacity, self.length = capacity, 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        self._allocate(key_states, value_states)

    def _allocate(self, keys: Tensor, values: Tensor) -> None:
        rows, heads, _, width = keys.shape
        self.key_buffer = keys.new_empty(rows, heads, self.capacity, width)
        self.value_buffer = values.new_empty(*values.shape[:2], self.capacity, values.shape[3])

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[2]
        self.key_buffer[:, :, self.length : end] = key_states
        self.value_buffer[:, :, self.length : end] = value_states
        self.length = end
        self.keys, self.values = self.key_buffer[:, :, :end], self.value_buffer[:, :, :end]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.length

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep (or repeat) rows; also how one prefilled prompt becomes the cache of its whole group."""
        old_keys, old_values = self.key_buffer, self.value_buffer
        self._allocate(old_keys[:1].expand(len(indices), -1, -1, -1), old_values[:1].expand(len(indices), -1, -1, -1))
        used = slice(0, self.length)
        self.key_buffer[:, :, used] = old_keys[:, :, used].index_select(0, indices)
        self.value_buffer[:, :, used] = old_values[:, :, used].index_select(0, indices)
        self.keys, self.values = self.key_buffer[:, :, used], self.value_buffer[:, :, used]


def decoding_cache(config: PreTrainedConfig, capacity: int) -> Cache:
    """A cache for `capacity` tokens a row; models with sliding or linear attention get transformers' own."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None):
        return DynamicCache(config=config)
    return Cache(layers=[PreallocatedLayer(capacity) for _ in range(config.num_hidden_layers)])


def recurrent(config: PreTrainedConfig) -> bool:
    """Whether some layer keeps a recurrent state."""
    return any(hasattr(layer, "conv_states") for layer in DynamicCache(config=config).layers)


def layers(cache: Cache) -> Sequence[Any]:
    """Its layers, of several classes that have no common type."""
    return cache.layers


def select_rows(cache: Cache, rows: Tensor) -> None:
    """Keep (or repeat) rows of every layer, whatever it holds."""
    for layer in layers(cache):
        if hasattr(layer, "conv_states"):
            layer.reorder_cache(rows)
        else:
            layer.batch_select_indices(rows)


def row_bytes(cache: Cache) -> tuple[int, int]:
    """Bytes of a cache that grow with its tokens, and those of states that do not."""
    grown, fixed = 0, 0
    for layer in layers(cache):
        grown += sum(x.nbytes for x in (getattr(layer, "keys", None), getattr(layer, "values", None)) if x is not None)
        for states in (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {})):
            fixed += sum(x.nbytes for x in states.values() if x is not None)
    return grown, fixed


@remembered
def _cache_name(cls: type[Backbone]) -> str:
    """What a model's forward pass calls its cache."""
    known = inspect.signature(cls.forward).parameters
    for name in ("past_key_values", "cache_params"):
        if name in known:
            return name
    raise TypeError("it keeps its state outside of transformers' caches")


def feed(backbone: Backbone, cache: Cache, **inputs: object) -> Tensor:
    """Hidden states [N, T, H] of tokens that follow what is in the cache, which takes them up."""
    name = _cache_name(type(backbone))
    return backbone(**inputs, **{name: cache}, use_cache=True).last_hidden_state


def rope_positions(mask: Tensor) -> Tensor:
    """Positions [U, P] of tokens that are padded on the left, counted from the first real one."""
    return (mask.cumsum(1) - 1).clamp_(min=0)


class CachedDecoder:
    """Rows being decoded by transformers' own forward pass, the prompt's cache repeated for every row.

    `rows(tokens [N], positions [N])` feeds one token to each row and returns hidden states [N, H].

    Args:
        cache: holds the prompts [U, P] with `mask` True on their tokens; it becomes the rows' cache.
        owner: [B] which prompt each row continues.
        capacity: most tokens that a row may add; the cache was made with room for them.
    """

    def __init__(self, backbone: Backbone, cache: Cache, mask: Tensor, owner: Tensor, capacity: int) -> None:
        self.model, self.cache = backbone, cache
        if len(owner) > len(mask):
            select_rows(cache, owner)
        attends = any(hasattr(layer, "keys") for layer in cache.layers)  # recurrent states have taken padding in
        self.real = mask[owner] if attends and not bool(mask.all()) else None

    def keep(self, rows: Tensor) -> None:
        """Drop all other rows."""
        select_rows(self.cache, rows)
        self.real = None if self.real is None else self.real[rows]

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        if self.real is not None:
            self.real = torch.cat([self.real, self.real.new_ones(len(self.real), 1)], 1)
        hidden = feed(
            self.model, self.cache, input_ids=tokens[:, None], attention_mask=self.real, position_ids=positions[:, None]
        )
        return hidden[:, -1]
