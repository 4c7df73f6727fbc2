"""The training forward pass: hidden states that predict each action token, the shared prompt computed once.

Rows of a group begin with the same prompt. `shared` prefills every distinct prompt once, with gradient, and
runs the rest of each row on its keys and values: G (P + C) tokens become P + G C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from etude.core.batches import TokenBatch
from etude.policies.cache import layers
from etude.policies.native import KNOWN

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from etude.policies.protocols import Backbone

MIN_SHARED = 0.15
"""Fraction of a micro-batch's tokens that sharing must save to be worth its second call."""
MIN_CUT = 128
"""Padded tokens that a cut between short and long answers must save to be worth another call."""
FLOAT32_ATTENTION = "etude_float32_sdpa"
"""Name under which transformers finds `float32_attention`."""


def predictive_states(backbone: Backbone, config: PreTrainedConfig, batch: TokenBatch, share: bool = True) -> Tensor:
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


def _shareable(config: PreTrainedConfig) -> bool:
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
    backbone: Backbone, config: PreTrainedConfig, batch: TokenBatch, starts: Tensor, owner: Tensor, first: Tensor
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
    last = out.last_hidden_state[:, -1]
    prompts: list[tuple[Tensor, Tensor]] = [(layer.keys, layer.values) for layer in layers(cache)]
    counts = batch.lengths - starts
    pieces = _by_length(counts)
    caches = [
        _answers(backbone, config, batch, starts, counts, rows, owner[rows], prompts, mask, last) for rows in pieces
    ]
    states, places = (torch.cat(x) for x in zip(*caches))
    return states if len(pieces) == 1 else states[places.argsort()]


def _answers(
    backbone: Backbone, config: PreTrainedConfig, batch: TokenBatch, starts: Tensor, counts: Tensor, rows: Tensor,
    owner: Tensor, prompts: list[tuple[Tensor, Tensor]], mask: Tensor, last: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """States of the action tokens of `rows` after their prompts, and the tokens' places in the batch."""
    starts, counts, width = starts[rows], counts[rows], int(counts[rows].max())
    offsets = torch.arange(width, device=starts.device)
    columns = (starts[:, None] + offsets).clamp_(max=batch.tokens.shape[1] - 1)
    actions = batch.action_mask[rows].gather(1, columns) & (offsets < counts[:, None])
    places = (rows[:, None] * batch.tokens.shape[1] + columns)[actions]
    first = last[owner][:, None]
    if width == 1:
        return first[actions], places
    cache = DynamicCache(config=config)
    for layer, (keys, values) in enumerate(prompts):  # copies, so that gradients flow into the prompt's own
        cache.update(keys[owner], values[owner], layer)
    fed = offsets[:-1] < counts[:, None] - 1
    out = backbone(
        input_ids=batch.tokens[rows].gather(1, columns)[:, :-1],
        attention_mask=torch.cat([mask[owner], fed], 1),
        position_ids=columns[:, :-1],
        past_key_values=cache,
        use_cache=True,
    )
    return torch.cat([first, out.last_hidden_state], 1)[actions], places


def _by_length(lengths: Tensor) -> list[Tensor]:
    """Rows in pieces of similar length, cut wherever that saves enough padding to be worth another call."""
    order = lengths.argsort(stable=True)
    pieces, going = [], [order]
    while going:
        rows = going.pop()
        sizes = lengths[rows]
        saved = torch.arange(len(rows), device=rows.device)[1:] * (sizes[-1] - sizes[:-1])
        if len(rows) > 1 and int(saved.max()) >= MIN_CUT:
            cut = int(saved.argmax()) + 1
            going += [rows[:cut], rows[cut:]]
        else:
            pieces.append(rows.sort().values)
    return pieces


def _left_padded(tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Prefixes [U, P] moved to the right edge, and their mask."""
    width = int(lengths.max())
    columns = torch.arange(width, device=tokens.device) - (width - lengths)[:, None]
    return tokens.gather(1, columns.clamp(min=0)), columns >= 0


def float32_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """transformers' attention, in float32 where autocast would take bfloat16. Shapes are [B, heads, T, width].

    On a CPU the backward pass of torch's bfloat16 kernel takes two to four times as long as that of its float32 kernel;
    forward it saves less than that costs.
    """
    if not torch.is_autocast_enabled(query.device.type):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    dtype = torch.promote_types(value.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        q, k, v = (x.to(dtype) for x in (query, key, value))
        return sdpa_attention_forward(module, q, k, v, attention_mask, **options)


def attend_in_float32(causal: PreTrainedModel, backbone: Backbone) -> None:
    """Have a model of a known class attend through `float32_attention`; its configuration is saved as before."""
    if type(backbone).__name__ in KNOWN and backbone.config._attn_implementation == "sdpa":
        causal.set_attn_implementation(FLOAT32_ATTENTION)


AttentionInterface.register(FLOAT32_ATTENTION, float32_attention)
AttentionMaskInterface.register(FLOAT32_ATTENTION, sdpa_mask)
