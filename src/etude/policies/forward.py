"""The training forward pass: hidden states that predict each action token, the shared prompt computed once.

Rows of a group begin with the same prompt. `shared` prefills every distinct prompt once, with gradient, and
runs the rest of each row on its keys and values: G (P + C) tokens become P + G C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from etude.core.batches import TokenBatch

MIN_SHARED = 0.15
"""Fraction of a micro-batch's tokens that sharing must save to be worth its second call."""


def predictive_states(backbone: Callable[..., Any], config: Any, batch: TokenBatch, share: bool = True) -> Tensor:
    """Hidden states [N, H] that predict the action tokens, in row-major order of `batch.action_mask`."""
    starts = batch.action_mask.int().argmax(1)
    if share and _shareable(config):
        owner, first = _prefixes(batch, starts)
        saved = int(starts.sum() - starts[first].sum())
        if saved >= MIN_SHARED * int(batch.lengths.sum()):
            return _shared(backbone, config, batch, starts, owner, first)
    out = backbone(
        input_ids=batch.tokens[:, :-1], attention_mask=batch.attention_mask[:, :-1].contiguous(), use_cache=False
    )
    return out.last_hidden_state[batch.action_mask[:, 1:]]


def _shareable(config: Any) -> bool:
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return kinds == {"full_attention"} and not getattr(config, "sliding_window", None)


def _prefixes(batch: TokenBatch, starts: Tensor) -> tuple[Tensor, Tensor]:
    """For each row the number of its distinct prefix [B], and a row that has each distinct prefix [U]."""
    tokens, ends = batch.tokens.cpu().numpy(), starts.tolist()
    seen: dict[bytes, int] = {}
    owner, first = [], []
    for row, end in enumerate(ends):
        key = tokens[row, :end].tobytes()
        if key not in seen:
            seen[key] = len(seen)
            first.append(row)
        owner.append(seen[key])
    device = batch.tokens.device
    return torch.tensor(owner, device=device), torch.tensor(first, device=device)


def _shared(
    backbone: Callable[..., Any], config: Any, batch: TokenBatch, starts: Tensor, owner: Tensor, first: Tensor
) -> Tensor:
    cache = DynamicCache(config=config)
    ids, mask = _left_padded(batch.tokens[first], starts[first])
    positions = (mask.cumsum(1) - 1).clamp_(min=0)
    whole = bool(mask.all())
    out = backbone(
        input_ids=ids,
        attention_mask=None if whole else mask,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
    )
    last = out.last_hidden_state[:, -1][owner]
    for layer in cache.layers:  # out of place, so that gradients flow into the prompt's keys and values
        layer.keys, layer.values = layer.keys[owner], layer.values[owner]
    counts = batch.lengths - starts
    width = int(counts.max())
    offsets = torch.arange(width, device=starts.device)
    columns = (starts[:, None] + offsets).clamp_(max=batch.tokens.shape[1] - 1)
    actions = batch.action_mask.gather(1, columns) & (offsets < counts[:, None])
    if width == 1:
        return last[:, None][actions]
    fed = offsets[:-1] < counts[:, None] - 1
    out = backbone(
        input_ids=batch.tokens.gather(1, columns)[:, :-1],
        attention_mask=torch.cat([mask[owner], fed], 1),
        position_ids=columns[:, :-1],
        past_key_values=cache,
        use_cache=True,
    )
    return torch.cat([last[:, None], out.last_hidden_state], 1)[actions]


def _left_padded(tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Prefixes [U, P] moved to the right edge, and their mask."""
    width = int(lengths.max())
    columns = torch.arange(width, device=tokens.device) - (width - lengths)[:, None]
    return tokens.gather(1, columns.clamp(min=0)), columns >= 0
