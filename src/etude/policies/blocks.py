"""Attention of many answers to the long prompt that they share, as one block, in training.

transformers copies a prompt's keys and values for every answer. Here each distinct prompt stays one block that all its
answers attend to at once, and an answer has only its own keys. With (o, l) the outputs and log-normalisers of attention
over prompt and over answer,

    o = o_answer + sigmoid(l_prompt - l_answer) (o_prompt - o_answer),  l = log(exp l_prompt + exp l_answer)

are those of attention over both. The backward pass of torch's kernel computes p = exp(s - l) and ds = p (do v' - do o')
anew from an output and a log-normaliser, so with those of all keys it gives each block's own part of the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

BLOCK_ATTENTION = "etude_block_attention"
"""Name under which transformers finds `block_attention`. No mask function has it, so none is made."""
LONG = 1024
"""Tokens of a prompt from which on this gains: before, copies cost no more than calls of the kernel for each prompt."""


@dataclass(frozen=True)
class Call:
    """One call of the kernel: a prompt and the rows that continue it.

    Args:
        prompt: which; width: how many tokens it has.
        rows: [n] the rows.
    """

    prompt: int
    width: int
    rows: Tensor

    def gather(self, x: Tensor, heads: int) -> Tensor:
        """Of each row, [R, H, A, ...], to one sequence for each head of keys, [1, heads, n * H / heads * A, ...]."""
        x = x[self.rows]
        x = x.reshape(len(x), heads, -1, *x.shape[3:]).transpose(0, 1)
        return x.reshape(1, heads, -1, *x.shape[3:])

    def scatter(self, x: Tensor, into: Tensor) -> None:
        """Undo `gather`."""
        x = x.reshape(x.shape[1], len(self.rows), -1, *x.shape[3:]).transpose(0, 1)
        into[self.rows] = x.reshape(-1, *into.shape[1:])

    def cut(self, x: Tensor) -> Tensor:
        """The prompt's part of all keys or values [U, K, P, w]."""
        return x[self.prompt : self.prompt + 1, :, : self.width]


class Block:
    """What each row of a forward pass attends to before its own tokens.

    Args:
        prompts: keys and values [U, K, P, w] of every layer, padded on the right.
        lengths: [U] tokens of each prompt.
        owner: [R] which prompt each row continues.
    """

    def __init__(self, prompts: Sequence[tuple[Tensor, Tensor]], lengths: Tensor, owner: Tensor) -> None:
        self.prompts = prompts
        rows = owner.argsort(stable=True).split(torch.bincount(owner, minlength=len(lengths)).tolist())
        self.calls = [Call(k, size, mine) for k, (size, mine) in enumerate(zip(lengths.tolist(), rows)) if len(mine)]


class _OverBlocks(torch.autograd.Function):
    """Attention over a block and, causally, over the rows' own tokens: [R, H, A, w]."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, calls: list[Call], scale: float | None
    ) -> Tensor:
        heads = k.shape[1]
        own, own_l = _kernel(q, _spread(k, q), _spread(v, q), causal=True, scale=scale)
        out, shared_l = torch.empty_like(own), torch.empty_like(own_l)
        for call in calls:
            found = _kernel(call.gather(q, heads), call.cut(keys), call.cut(values), scale=scale)
            call.scatter(found[0], out)
            call.scatter(found[1], shared_l)
        out = torch.lerp(own, out, (shared_l - own_l).sigmoid()[..., None].to(own.dtype))
        ctx.save_for_backward(q, k, v, keys, values, out, torch.logaddexp(own_l, shared_l))
        ctx.calls, ctx.scale = calls, scale
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, keys, values, out, whole_l = ctx.saved_tensors
        heads, scale = k.shape[1], ctx.scale
        d_q, d_k, d_v = _slopes(d_out, q, _spread(k, q), _spread(v, q), out, whole_l, causal=True, scale=scale)
        d_keys, d_values, more = torch.zeros_like(keys), torch.zeros_like(values), torch.empty_like(q)
        for call in ctx.calls:
            d, mine, o, both = (call.gather(x, heads) for x in (d_out, q, out, whole_l))
            d, into_keys, into_values = _slopes(d, mine, call.cut(keys), call.cut(values), o, both, scale=scale)
            call.scatter(d, more)
            call.cut(d_keys).copy_(into_keys)
            call.cut(d_values).copy_(into_values)
        return d_q + more, _folded(d_k, heads), _folded(d_v, heads), d_keys, d_values, None, None


def _kernel(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None, causal: bool = False) -> tuple[Tensor, Tensor]:
    """Attention and its log-normalisers."""
    out: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, scale=scale
    )
    return out


def _slopes(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, whole_l: Tensor, *, scale: float | None,
    causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients with respect to q, k and v, given output and log-normalisers of all keys."""
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        d_out, q, k, v, out, whole_l, 0.0, causal, scale=scale
    )
    return found


def _spread(x: Tensor, q: Tensor) -> Tensor:
    """Keys or values [R, K, A, w], each head of them for every head of queries that reads it."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _folded(x: Tensor, heads: int) -> Tensor:
    """Undo `_spread` of a gradient."""
    return x if x.shape[1] == heads else x.unflatten(1, (heads, -1)).sum(2)


def block_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *,
    block: Block, dropout: float = 0.0, scaling: float | None = None, softcap: float | None = None, **options: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention of rows to their prompts and, causally, to themselves, for transformers' models; in float32 at least.

    Shapes: query [R, H, A, w]; key, value [R, K, A, w]; returns [R, A, H, w].

    Raises: NotImplementedError for a mask, dropout or a cap of the scores.
    """
    if attention_mask is not None or dropout or softcap is not None or options.get("position_bias") is not None:
        raise NotImplementedError("attention over blocks is causal, and nothing else")
    keys, values = block.prompts[cast("int", module.layer_idx)]
    dtype = torch.promote_types(value.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        q, k, v, keys, values = (x.to(dtype) for x in (query, key, value, keys, values))
        out: Tensor = _OverBlocks.apply(q, k, v, keys, values, block.calls, scaling)  # type: ignore[no-untyped-call]
    out = out if torch.is_autocast_enabled(query.device.type) else out.to(query.dtype)
    return out.transpose(1, 2).contiguous(), None


class OwnTokens(Cache):
    """A cache that holds nothing: attention gets the keys and values of the tokens that are fed, and no others."""

    def __init__(self, count: int) -> None:
        super().__init__(layers=[_Nothing() for _ in range(count)])


class _Nothing(DynamicLayer):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # transformers'

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states

    def get_seq_length(self) -> int:
        return 0


@contextmanager
def attending_to_blocks(config: PreTrainedConfig) -> Iterator[None]:
    """Have a model attend through `block_attention`."""
    from transformers import AttentionInterface  # here, as in forward.py

    usual = config._attn_implementation
    AttentionInterface.register(BLOCK_ATTENTION, block_attention)
    config._attn_implementation = BLOCK_ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = usual
