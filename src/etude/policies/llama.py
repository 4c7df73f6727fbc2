"""The parts of a model of the Llama family, and what is computed between them where it is written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from etude.policies.protocols import Backbone


class Norm(Protocol):
    """A root-mean-square norm."""

    weight: Tensor
    variance_epsilon: float

    def __call__(self, x: Tensor, /) -> Tensor: ...


class Attention(Protocol):
    """Grouped-query attention; only some have a norm of queries and one of keys."""

    q_proj: Callable[[Tensor], Tensor]
    k_proj: Callable[[Tensor], Tensor]
    v_proj: Callable[[Tensor], Tensor]
    o_proj: Callable[[Tensor], Tensor]
    scaling: float
    q_norm: Norm
    k_norm: Norm


class Layer(Protocol):
    """A layer of the Llama family."""

    input_layernorm: Norm
    self_attn: Attention
    post_attention_layernorm: Norm
    mlp: Callable[[Tensor], Tensor]


class Llama(Backbone, Protocol):
    """A model of the Llama family, without its head."""

    embed_tokens: Callable[[Tensor], Tensor]
    rotary_emb: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    layers: Sequence[Layer]
    norm: Norm


def attend(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention [R, Q, width] and its log-normalisers [R, Q, 1], the softmax in float32 at least."""
    scores = torch.bmm(q, keys.mT) if bias is None else torch.baddbmm(bias, q, keys.mT)
    scores = scores if scores.dtype == torch.float64 else scores.float()
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp_()
    total = weights.sum(-1, keepdim=True)
    return torch.bmm(weights.to(values.dtype), values) / total.to(values.dtype), top + total.log()


def normed(part: Norm, x: Tensor) -> Tensor:
    """Root-mean-square norm as one operation; other dtypes keep the module's own rounding, which goes by float32."""
    if x.dtype != torch.float32:
        return part(x)
    return rms_norm(x, x.shape[-1:], part.weight, part.variance_epsilon)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin
