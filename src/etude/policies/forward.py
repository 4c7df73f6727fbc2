"""The training forward pass: hidden states that predict each action token, the shared prompt computed once.

Rows of a group begin with the same prompt: `prompts.py` computes every distinct one once, with gradient, and runs the
rest of each row on its keys and values. G (P + C) tokens become P + G C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from etude.core.batches import TokenBatch
from etude.core.micro_batches import Rows
from etude.policies.native import KNOWN
from etude.policies.prompts import Held, answered, computed, shareable

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from etude.policies.protocols import Backbone

FLOAT32_ATTENTION = "etude_float32_sdpa"
"""Name under which transformers finds `float32_attention`."""


def predictive_states(
    backbone: Backbone, config: PreTrainedConfig, batch: TokenBatch, share: bool = True, held: Held | None = None
) -> Tensor:
    """Hidden states [N, H] that predict the action tokens, in row-major order of `batch.action_mask`.

    Args:
        share: compute prompts that rows share once, where the architecture allows it and it pays.
        held: what keeps the prompt of these rows, if they have one alone, for other rows too.
    """
    if share and shareable(config):
        rows = Rows.of(batch)
        if held is not None and held.serves(backbone):
            return answered(backbone, config, batch, rows, held.prompts(backbone, config), rows.owner)
        if rows.pays():
            return answered(backbone, config, batch, rows, computed(backbone, config, batch, rows), rows.owner)
    out = backbone(
        input_ids=batch.tokens[:, :-1], attention_mask=batch.attention_mask[:, :-1].contiguous(), use_cache=False
    )
    return out.last_hidden_state[batch.action_mask[:, 1:]]


def spread_over(mask: Tensor, places: Tensor, flat: Tensor) -> Tensor:
    """[B, T, ...] with values [N, ...] at the places [N] where the mask [B, T] is set, else 0."""
    out = flat.new_zeros(mask.numel(), *flat.shape[1:]).index_copy(0, places, flat)
    return out.view(*mask.shape, *flat.shape[1:])


def float32_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """transformers' attention, in float32 where autocast would take bfloat16. Shapes are [B, heads, T, width].

    On a CPU the backward pass of torch's bfloat16 kernel takes two to four times as long as that of its float32 kernel;
    forward it saves less than that costs.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if not torch.is_autocast_enabled(query.device.type):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    dtype = torch.promote_types(value.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        q, k, v = (x.to(dtype) for x in (query, key, value))
        return sdpa_attention_forward(module, q, k, v, attention_mask, **options)


def attend_in_float32(causal: PreTrainedModel, backbone: Backbone) -> None:
    """Have a model of a known class attend through `float32_attention`; its configuration is saved as before."""
    if type(backbone).__name__ in KNOWN and backbone.config._attn_implementation == "sdpa":
        from transformers import AttentionInterface, AttentionMaskInterface  # seconds: not before there is a model
        from transformers.masking_utils import sdpa_mask

        AttentionInterface.register(FLOAT32_ATTENTION, float32_attention)
        AttentionMaskInterface.register(FLOAT32_ATTENTION, sdpa_mask)
        causal.set_attn_implementation(FLOAT32_ATTENTION)
