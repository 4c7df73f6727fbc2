"""Caches for decoding: preallocated, shared by a group's completions, rows dropped as they finish.

Recurrent layers (Mamba, linear attention, convolutions) keep a state of fixed size instead of keys and values.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from functools import cache as remembered
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad
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
        if end > self.capacity:
            self._grow(end)
        self.key_buffer[:, :, self.length : end] = key_states
        self.value_buffer[:, :, self.length : end] = value_states
        self.length = end
        self.keys, self.values = self.key_buffer[:, :, :end], self.value_buffer[:, :, :end]
        return self.keys, self.values

    def _grow(self, least: int) -> None:
        """Room for `least` tokens, and for as many again as there was, so that growing costs no more than writing."""
        keys, values, used = self.key_buffer, self.value_buffer, slice(0, self.length)
        self.capacity = max(least, 2 * self.capacity)
        self._allocate(keys, values)
        self.key_buffer[:, :, used], self.value_buffer[:, :, used] = keys[:, :, used], values[:, :, used]

    def adopt(self, keys: Tensor, values: Tensor) -> None:
        """Hold these keys and values [rows, heads, tokens, width] in place of what there is."""
        self.key_buffer, self.value_buffer, self.keys, self.values = keys, values, keys, values
        self.capacity = self.length = keys.shape[2]

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


def token_bytes(backbone: Backbone, config: PreTrainedConfig, device: torch.device) -> tuple[int, int]:
    """Bytes of a row's cache that grow with every token, and those of states that do not."""
    cache = decoding_cache(config, 1)
    feed(backbone, cache, input_ids=torch.zeros(1, 1, dtype=torch.long, device=device))
    return row_bytes(cache)


def rope_positions(mask: Tensor) -> Tensor:
    """Positions [U, P] of tokens that are padded on the left, counted from the first real one."""
    return (mask.cumsum(1) - 1).clamp_(min=0)


def copied(cache: Cache, rows: Tensor) -> Cache:
    """A cache of some of the rows, which shares nothing with the one that they are in."""
    made = copy.copy(cache)
    made.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in layers(made):
        for name, value in vars(layer).items():
            if isinstance(value, dict):  # states by number, which are replaced in place
                setattr(layer, name, dict(value))
    select_rows(made, rows)
    return made


def joined(caches: Sequence[Cache]) -> Cache:
    """One cache of all rows, one after the other: what is shorter is padded on its left. The given ones are used up."""
    made = max(caches, key=_columns)
    for number, layer in enumerate(layers(made)):
        parts = [layers(cache)[number] for cache in caches]
        if _holds_keys(layer):
            keys, values = (padded([getattr(part, name) for part in parts]) for name in ("keys", "values"))
            if isinstance(layer, PreallocatedLayer):
                layer.adopt(keys, values)
            else:
                layer.keys, layer.values = keys, values
        for name in ("conv_states", "recurrent_states"):
            states = [getattr(part, name, {}) for part in parts]
            for i in list(states[0]):
                if states[0][i] is not None:
                    getattr(layer, name)[i] = torch.cat([s[i] for s in states])
    return made


def _columns(cache: Cache) -> int:
    """Tokens that the layers with keys and values have seen, padding included."""
    return max((layer.get_seq_length() for layer in layers(cache) if _holds_keys(layer)), default=0)


def _holds_keys(layer: Any) -> bool:
    keys = getattr(layer, "keys", None)
    return keys is not None and keys.numel() > 0


def padded(parts: Sequence[Tensor]) -> Tensor:
    """Tensors [rows, heads, tokens, width] one after the other, padded on the left with zeros to the most tokens."""
    most = max(part.shape[2] for part in parts)
    return torch.cat([pad(part, (0, 0, most - part.shape[2], 0)) for part in parts])


class CachedDecoder:
    """Rows being decoded by transformers' own forward pass, the prompt's cache repeated for every row.

    Columns of the cache are common to all rows, and padding stands only at the left of a row, so that a window or a
    recurrent state never sees any. So rows that rest are taken out of the cache, and rows that are given different
    numbers of tokens are fed apart and put together afterwards. Recurrent layers are fed token by token, as they are
    when they decode: that is what `check_model` found to agree.

    Args:
        cache: holds the prompts [U, P] with `mask` True on their tokens; it becomes the rows' cache.
        owner: [B] which prompt each row continues.
        capacity: most tokens that a row may add, as far as known; the cache was made with room for them.
    """

    rewinds: ClassVar[bool] = False

    def __init__(self, backbone: Backbone, cache: Cache, mask: Tensor, owner: Tensor, capacity: int) -> None:
        self.model, self.cache = backbone, cache
        if len(owner) > len(mask):
            select_rows(cache, owner)
        self.attends = any(hasattr(layer, "keys") for layer in cache.layers)
        self.stepwise = any(hasattr(layer, "conv_states") for layer in cache.layers)
        self.columns, self.numbers = mask.shape[1], torch.arange(len(owner), device=mask.device)
        self.real = mask[owner] if self.attends and not bool(mask.all()) else None  # states have taken padding in
        self.resting: list[CachedDecoder] = []

    @property
    def size(self) -> int:
        """Rows that it holds."""
        return len(self.numbers) + sum(len(part.numbers) for part in self.resting)

    def keep(self, rows: Tensor) -> None:
        """Drop all other rows."""
        select_rows(self.cache, rows)
        self.real = None if self.real is None else self.real[rows]
        self.numbers = torch.arange(len(rows), device=rows.device)

    def narrow(self, rows: Tensor) -> None:
        """Feed only these from now on; the others rest as they are, until `widen`."""
        rest = torch.ones_like(self.numbers, dtype=torch.bool).index_fill_(0, rows, False).nonzero()[:, 0]
        self.resting.append(self._part(rest))
        numbers = self.numbers[rows]
        self.keep(rows)
        self.numbers = numbers

    def widen(self) -> None:
        """Have all rows again, in the order in which they were."""
        if self.resting:
            self._unite([self, *self.resting])
            self.resting = []

    def join(self, others: CachedDecoder) -> None:
        """Take the rows of another one behind the own."""
        others.numbers = others.numbers + self.size
        self._unite([self, others])

    def fork(self, rows: Tensor) -> None:
        """Add rows that go on from where these are."""
        self.keep(torch.cat([self.numbers, rows]))

    def rewind(self, rows: Sequence[int], counts: Sequence[int]) -> list[bool]:
        """None can: columns are common, and states have taken in what they were fed."""
        return [False] * len(rows)

    def fitting(self, limit: int) -> int:
        """How many of the first rows take no more than `limit` bytes."""
        return int(limit * self.size / max(1, sum(row_bytes(self.cache))))

    def _part(self, rows: Tensor) -> CachedDecoder:
        part = copy.copy(self)
        part.cache, part.resting, part.numbers = copied(self.cache, rows), [], self.numbers[rows]
        part.real = None if self.real is None else self.real[rows]
        return part

    def _unite(self, parts: Sequence[CachedDecoder]) -> None:
        """Become all these rows, ordered by their numbers."""
        numbers, columns = torch.cat([part.numbers for part in parts]), max(part.columns for part in parts)
        if self.attends:
            masks = [part.real if part.real is not None else _ones(len(part.numbers), part.columns, numbers.device)
                     for part in parts]  # fmt: skip
            real = torch.cat([pad(mask, (columns - mask.shape[1], 0)) for mask in masks])
            self.real = None if bool(real.all()) else real
        self.cache, self.columns = joined([part.cache for part in parts]), columns
        self.keep(numbers.argsort())

    def extend(self, tokens: Sequence[Sequence[int]], begun: Sequence[int]) -> Tensor:
        """Hidden states [N, H] of the last of the tokens that each row is given, which has `begun` of them so far."""
        counts, device = [len(new) for new in tokens], self.numbers.device
        groups = [[i for i, n in enumerate(counts) if n == count] for count in sorted(set(counts))]
        states: list[Tensor] = []
        parts = [self] if len(groups) == 1 else [self._part(torch.tensor(rows, device=device)) for rows in groups]
        for part, rows in zip(parts, groups):
            ids = torch.tensor([list(tokens[i]) for i in rows], device=device)
            first = torch.tensor([begun[i] for i in rows], device=device)
            places = first[:, None] + torch.arange(ids.shape[1], device=device)
            pieces = ids.shape[1] if self.stepwise else 1
            for some, at in zip(ids.chunk(pieces, 1), places.chunk(pieces, 1)):
                last = part._fed(some, at)
            states.append(last)
        if len(groups) > 1:
            numbers = self.numbers
            for part, rows in zip(parts, groups):
                part.numbers = torch.tensor(rows, device=device)
            self._unite(parts)
            self.numbers = numbers
        order = torch.tensor([i for rows in groups for i in rows], device=device)
        return torch.cat(states)[order.argsort()]

    def _fed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Hidden states [N, H] of the last of the same number of tokens [N, T] for each row."""
        if self.real is not None:
            self.real = torch.cat([self.real, self.real.new_ones(ids.shape)], 1)
        self.columns += ids.shape[1]
        hidden = feed(self.model, self.cache, input_ids=ids, attention_mask=self.real, position_ids=positions)
        return hidden[:, -1]

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Hidden states [N, H] after one token for each row: tokens [N] at positions [N]."""
        return self._fed(tokens[:, None], positions[:, None])


def _ones(rows: int, columns: int, device: torch.device) -> Tensor:
    return torch.ones(rows, columns, dtype=torch.bool, device=device)
