"""Which decoder a model gets: the written-out one where it agrees with transformers' own, else transformers' own.

A model is decoded by `etude.policies.shared.SharedDecoder` only if its class is known and its outputs agree with
transformers' forward pass (`decoder` checks once per model).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from etude.policies.cache import CachedDecoder, decoding_cache, rope_positions
from etude.policies.llama import Llama
from etude.policies.protocols import Backbone, Decoder
from etude.policies.shared import SharedDecoder

if TYPE_CHECKING:
    from transformers import PreTrainedConfig
    from transformers.cache_utils import Cache

KNOWN = {"LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model"}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest difference to transformers' hidden states, relative to their largest entry, by dtype."""
_agrees: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def decoder(
    backbone: Backbone, config: PreTrainedConfig, cache: Cache, mask: Tensor, owner: Tensor, capacity: int
) -> Decoder:
    """What decodes one token per row after the prompts in `cache` were prefilled: this file's, or transformers'.

    Args:
        mask: [U, P] True on the prompts' tokens, which are padded on the left.
        owner: [B] which prompt each row continues.
        capacity: most tokens that a row may add.
    """
    if supported(backbone, config) and agrees(backbone, config):
        return SharedDecoder(backbone, cache, mask, owner, capacity)
    return CachedDecoder(backbone, cache, mask, owner, capacity)


def supported(backbone: Backbone, config: PreTrainedConfig) -> TypeGuard[Llama]:
    """Whether the model has the parts that `SharedDecoder` runs, and full attention in every layer."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = kinds != {"full_attention"} or getattr(config, "sliding_window", None)
    return type(backbone).__name__ in KNOWN and not windowed and not backbone.training


@torch.no_grad()
def agrees(backbone: Llama, config: PreTrainedConfig) -> bool:
    """Whether both decoders say the same about two prompts, three rows and what follows; checked once per model."""
    if backbone not in _agrees:
        ours, theirs = _probe(backbone, config, SharedDecoder), _probe(backbone, config, CachedDecoder)
        largest = max(1.0, float(theirs.abs().max()))
        _agrees[backbone] = float((ours - theirs).abs().max()) <= TOLERANCE[theirs.dtype] * largest
    return _agrees[backbone]


def _probe(backbone: Llama, config: PreTrainedConfig, mask_maker: type[SharedDecoder | CachedDecoder]) -> Tensor:
    """Hidden states of three rows, of which the last two share a prompt: after two tokens, then after some at once."""
    device = next(backbone.parameters()).device
    ids = torch.arange(12, device=device).view(2, 6) * 7 % config.vocab_size
    mask = torch.tensor([[False, False, True, True, True, True], [True] * 6], device=device)
    owner = torch.tensor([0, 1, 1], device=device)
    cache = decoding_cache(config, 8)
    backbone(
        input_ids=ids, attention_mask=mask, position_ids=rope_positions(mask), past_key_values=cache, use_cache=True
    )
    rows, position = mask_maker(backbone, cache, mask, owner, 2), mask.sum(1)[owner]
    states = [rows(ids[0, :3], position), rows(ids[1, :3], position + 1)]
    more = [ids[1, :n].tolist() for n in (1, 3, 2)]
    return torch.cat([*states, rows.extend(more, (position + 2).tolist())])
