"""One decoding step of the Llama family, written out, with the prompt's keys and values kept once per group.

transformers repeats a prompt's cache for every completion, and the heads of grouped-query attention for every step.
Here each distinct prompt stays one block that all its completions attend to in one matrix product, and a completion
owns only what it has said. With (o, l) the outputs and log-normalisers of attention over prompt and over answer,

    o = o_answer + sigmoid(l_prompt - l_answer) (o_prompt - o_answer)

is attention over both. Projections, norms and MLPs are the model's own modules, so adapters work. A model is decoded
this way only if its class is known and its outputs agree with transformers' own (`decoder` checks once per model).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from etude.policies.cache import CachedDecoder, decoding_cache, layers, rope_positions
from etude.policies.protocols import Backbone

if TYPE_CHECKING:
    from transformers import PreTrainedConfig
    from transformers.cache_utils import Cache

KNOWN = {"LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model"}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest difference to transformers' hidden states, relative to their largest entry, by dtype."""
_agrees: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


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


class Decoder(Protocol):
    """Rows being decoded, one token each at a time."""

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Hidden states [N, H] after tokens [N] at positions [N]."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Drop all other rows."""
        ...


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
    """Whether both decoders say the same about two prompts, three rows and two tokens; checked once per model."""
    if backbone not in _agrees:
        ours, theirs = _probe(backbone, config, SharedDecoder), _probe(backbone, config, CachedDecoder)
        largest = max(1.0, float(theirs.abs().max()))
        _agrees[backbone] = float((ours - theirs).abs().max()) <= TOLERANCE[theirs.dtype] * largest
    return _agrees[backbone]


def _probe(backbone: Llama, config: PreTrainedConfig, mask_maker: type[SharedDecoder | CachedDecoder]) -> Tensor:
    """Hidden states of two tokens of three rows, of which the last two share a prompt."""
    device = next(backbone.parameters()).device
    ids = torch.arange(12, device=device).view(2, 6) * 7 % config.vocab_size
    mask = torch.tensor([[False, False, True, True, True, True], [True] * 6], device=device)
    owner = torch.tensor([0, 1, 1], device=device)
    cache = decoding_cache(config, 8)
    backbone(
        input_ids=ids, attention_mask=mask, position_ids=rope_positions(mask), past_key_values=cache, use_cache=True
    )
    rows, position = mask_maker(backbone, cache, mask, owner, 2), mask.sum(1)[owner]
    return torch.cat([rows(ids[0, :3], position), rows(ids[1, :3], position + 1)])


class SharedDecoder:
    """Rows being decoded, each attending to its prompt's one block and to its own answer.

    `rows(tokens [N], positions [N])` feeds one token to each row and returns hidden states [N, H].
    """

    def __init__(self, backbone: Llama, cache: Cache, mask: Tensor, owner: Tensor, capacity: int) -> None:
        self.model, self.owner, self.length = backbone, owner, 0
        self.prompts: list[tuple[Tensor, Tensor]] = [(layer.keys, layer.values) for layer in layers(cache)]
        hidden = torch.zeros_like(mask, dtype=self.prompts[0][0].dtype).masked_fill_(~mask, -torch.inf)
        self.bias = None if bool(mask.all()) else hidden
        kv, width = self.prompts[0][0].shape[1], self.prompts[0][0].shape[3]
        shape = (len(owner), kv, capacity, width)
        self.answers = [(k.new_empty(shape), v.new_empty(shape)) for k, v in self.prompts]
        self._arrange()

    def _arrange(self) -> None:
        """Give each row a slot [U, S] among the rows of its prompt; bring the bias into the shape of the scores."""
        counts = torch.bincount(self.owner, minlength=len(self.prompts[0][0]))
        order = self.owner.argsort(stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[self.owner[order]]
        self.deep = int(counts.max())
        self.slot = self.owner * self.deep + rank
        kv = self.prompts[0][0].shape[1]
        self.spread = None if self.bias is None else self.bias.repeat_interleave(kv, 0)[:, None]

    def keep(self, rows: Tensor) -> None:
        """Drop all other rows, and prompts that nobody continues."""
        self.owner = self.owner[rows]
        used = slice(0, self.length)
        for k, v in self.answers:
            k[: len(rows), :, used], v[: len(rows), :, used] = k[rows, :, used], v[rows, :, used]
        self.answers = [(k[: len(rows)], v[: len(rows)]) for k, v in self.answers]
        going, owner = torch.unique(self.owner, return_inverse=True)
        if len(going) <= 0.75 * len(self.prompts[0][0]):
            self.prompts = [(k[going], v[going]) for k, v in self.prompts]
            self.bias = None if self.bias is None else self.bias[going]
            self.owner = owner
        self._arrange()

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = self.model.embed_tokens(tokens)
        cos, sin = self.model.rotary_emb(x[:, None], positions[:, None])
        cos, sin = cos[:, :, None], sin[:, :, None]  # [N, 1, 1, width]
        for number, layer in enumerate(self.model.layers):
            x = x + self._attention(number, layer.self_attn, _norm(layer.input_layernorm, x), cos, sin)
            x = x + layer.mlp(_norm(layer.post_attention_layernorm, x))
        self.length += 1
        return _norm(self.model.norm, x)

    def _attention(self, number: int, part: Attention, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[N, H] -> [N, H]; queries are [N, kv heads, queries per kv head, width]."""
        keys, values = self.answers[number]
        rows, kv, capacity, width = keys.shape
        q, k = part.q_proj(x).view(rows, kv, -1, width), part.k_proj(x).view(rows, kv, 1, width)
        if hasattr(part, "q_norm"):
            q, k = _norm(part.q_norm, q), _norm(part.k_norm, k)
        q, k = _rotated(q, cos, sin) * part.scaling, _rotated(k, cos, sin)
        keys[:, :, self.length] = k[:, :, 0]
        values[:, :, self.length] = part.v_proj(x).view(rows, kv, width)
        seen = slice(0, self.length + 1)
        own, own_l = _attend(
            q.reshape(rows * kv, -1, width),
            keys.view(rows * kv, capacity, width)[:, seen],
            values.view(rows * kv, capacity, width)[:, seen],
            None,
        )
        shared, shared_l = self._over_prompts(number, q)
        own, own_l = own.view_as(q), own_l.view(*q.shape[:3], 1)
        out = torch.lerp(own, shared, (shared_l - own_l).sigmoid_().to(own.dtype))
        return part.o_proj(out.reshape(rows, -1))

    def _over_prompts(self, number: int, q: Tensor) -> tuple[Tensor, Tensor]:
        """Attention of all rows of a prompt in one product: outputs [N, kv, queries, width], log-normalisers."""
        keys, values = self.prompts[number]
        prompts, kv, length, width = keys.shape
        queries = q.shape[2]
        slots = q.new_zeros(prompts * self.deep, kv, queries, width).index_copy_(0, self.slot, q)
        slots = slots.view(prompts, self.deep, kv, queries, width).transpose(1, 2)
        out, normaliser = _attend(
            slots.reshape(prompts * kv, self.deep * queries, width),
            keys.reshape(prompts * kv, length, width),
            values.reshape(prompts * kv, length, width),
            self.spread,
        )

        def by_row(x: Tensor) -> Tensor:
            return x.view(prompts, kv, self.deep, queries, -1).transpose(1, 2).flatten(0, 1)[self.slot]

        return by_row(out), by_row(normaliser)


def _attend(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention [R, Q, width] and its log-normalisers [R, Q, 1], the softmax in float32 at least."""
    scores = torch.bmm(q, keys.mT) if bias is None else torch.baddbmm(bias, q, keys.mT)
    scores = scores if scores.dtype == torch.float64 else scores.float()
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp_()
    total = weights.sum(-1, keepdim=True)
    return torch.bmm(weights.to(values.dtype), values) / total.to(values.dtype), top + total.log()


def _norm(part: Norm, x: Tensor) -> Tensor:
    """Root-mean-square norm as one operation; other dtypes keep the module's own rounding, which goes by float32."""
    if x.dtype != torch.float32:
        return part(x)
    return rms_norm(x, x.shape[-1:], part.weight, part.variance_epsilon)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin
