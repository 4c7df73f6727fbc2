"""Key/value caches for decoding: preallocated, shared by a group's completions, rows dropped as they finish."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer


class PreallocatedLayer(DynamicLayer):
    """A layer whose buffer is allocated once and written in place, instead of being concatenated every token.

    `keys` and `values` are views [rows, heads, tokens so far, width] of the buffers.
    """

    def __init__(self, capacity: int, **options: Any) -> None:
        super().__init__(**options)
        self.capacity, self.length = capacity, 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        self._allocate(key_states, value_states)

    def _allocate(self, keys: Tensor, values: Tensor) -> None:
        rows, heads, _, width = keys.shape
        self.key_buffer = keys.new_empty(rows, heads, self.capacity, width)
        self.value_buffer = values.new_empty(*values.shape[:2], self.capacity, values.shape[3])

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
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


def decoding_cache(config: Any, capacity: int) -> Cache:
    """A cache for `capacity` tokens a row; models with sliding or linear attention get transformers' own."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None):
        return DynamicCache(config=config)
    return Cache(layers=[PreallocatedLayer(capacity) for _ in range(config.num_hidden_layers)])
