"""Prompts that rows share, computed once in training, and the answers that follow them.

Answers attend to a long prompt as one block where the model allows it (`blocks.py`); otherwise each row gets a copy of
its keys and values. `Held` keeps prompts for several micro-batches: each leaves its gradient at the prompts' states,
and `finish` takes the sum of them back through the prompts, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from etude.core.batches import TokenBatch
from etude.core.layout import sent
from etude.core.micro_batches import Rows, by_length
from etude.policies.blocks import LONG, Block, OwnTokens, attending_to_blocks
from etude.policies.cache import layers

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from etude.policies.protocols import Backbone

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest difference of states after blocks and after copies, relative to the largest entry, by dtype."""
_agrees: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def shareable(config: PreTrainedConfig) -> bool:
    """Whether keys and values of a prompt are all that its answers need."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return kinds == {"full_attention"} and not getattr(config, "sliding_window", None)


@dataclass
class Prompts:
    """Distinct prompts that were computed.

    Args:
        layers: keys and values [U, K, P, w] of each layer.
        mask: [U, P] True on their tokens, padded on the right if answers attend to blocks, else on the left.
        last: [U, H] states of their last tokens.
        blocks: whether answers attend to them as blocks.
    """

    layers: list[tuple[Tensor, Tensor]]
    mask: Tensor
    last: Tensor
    blocks: bool

    def tensors(self) -> list[Tensor]:
        """All that a gradient comes back through."""
        return [self.last, *(x for layer in self.layers for x in layer)]

    def cut_off(self) -> Prompts:
        """The same as leaves of a graph of their own, which adds gradients up in float32 at least."""
        leaves = [_leaf(x) for x in self.tensors()]
        return Prompts(list(zip(leaves[1::2], leaves[2::2])), self.mask, leaves[0], self.blocks)

    def to(self, dtype: torch.dtype) -> Prompts:
        """The same with keys and values as a model of this dtype reads them, leaves of float32 too."""
        return replace(self, layers=[(keys.to(dtype), values.to(dtype)) for keys, values in self.layers])


def computed(
    backbone: Backbone, config: PreTrainedConfig, batch: TokenBatch, rows: Rows, blocks: bool | None = None
) -> Prompts:
    """The distinct prompts of rows; `blocks` is for long ones, where they serve, if it is not given."""
    if blocks is None:
        blocks = int(rows.starts.max()) >= LONG and in_blocks(backbone, config)
    device = batch.tokens.device
    counts = rows.starts[rows.first]
    first, lengths = (sent(x, device) for x in (rows.first, counts))
    width = int(counts.max())
    columns, padding = torch.arange(width, device=device), (width - lengths)[:, None]
    cache = DynamicCache(config=config)
    if blocks:  # on the right, where what is causal needs no mask
        mask = columns < lengths[:, None]
        out = backbone(input_ids=batch.tokens[first, :width], past_key_values=cache, use_cache=True).last_hidden_state
        last = out[torch.arange(len(first), device=device), lengths - 1]
    else:
        mask = columns >= padding
        out = backbone(
            input_ids=batch.tokens[first].gather(1, (columns - padding).clamp(min=0)),
            attention_mask=None if counts.min() == width else mask, position_ids=(mask.cumsum(1) - 1).clamp_(min=0),
            past_key_values=cache, use_cache=True,
        ).last_hidden_state  # fmt: skip
        last = out[:, -1]
    return Prompts([(layer.keys, layer.values) for layer in layers(cache)], mask, last, blocks)


def answered(
    backbone: Backbone, config: PreTrainedConfig, batch: TokenBatch, rows: Rows, prompts: Prompts, owner: np.ndarray
) -> Tensor:
    """States [N, H] that predict the action tokens; `owner` [B] says which of `prompts` each row continues."""
    prompts = prompts.to(next(backbone.parameters()).dtype)
    pieces = by_length(rows.lengths - rows.starts, rows.cut)
    found = [_piece(backbone, config, batch, rows, prompts, owner, piece) for piece in pieces]
    states, places = torch.cat([x for x, _ in found]), np.concatenate([x for _, x in found])
    return states if len(found) == 1 else states[sent(places.argsort(), states.device)]


def _piece(
    backbone: Backbone, config: PreTrainedConfig, batch: TokenBatch, rows: Rows, prompts: Prompts, owner: np.ndarray,
    piece: np.ndarray,
) -> tuple[Tensor, np.ndarray]:  # fmt: skip
    """States of the action tokens of some rows, and the tokens' places in the batch."""
    device, longest = batch.tokens.device, batch.tokens.shape[1]
    counts = (rows.lengths - rows.starts)[piece]
    width = int(counts.max())
    at = (rows.starts[piece][:, None] + np.arange(width)).clip(max=longest - 1)
    actions = rows.actions[piece[:, None], at] & (np.arange(width) < counts[:, None])
    places, chosen = (piece[:, None] * longest + at)[actions], sent(np.flatnonzero(actions), device)
    mine, whose, columns, sizes = (sent(x, device) for x in (piece, owner[piece], at, counts))
    offsets = torch.arange(width, device=device)
    first = prompts.last[whose][:, None]
    if width == 1:
        return first.flatten(0, 1)[chosen], places
    fed = {"input_ids": batch.tokens[mine].gather(1, columns)[:, :-1], "position_ids": columns[:, :-1]}
    if prompts.blocks:
        out = _after_blocks(backbone, prompts, whose, fed)
    else:
        out = _after_copies(backbone, config, prompts, whose, fed, offsets[:-1] < sizes[:, None] - 1)
    return torch.cat([first, out.to(first.dtype)], 1).flatten(0, 1)[chosen], places


def _after_blocks(backbone: Backbone, prompts: Prompts, owner: Tensor, fed: dict[str, Tensor]) -> Tensor:
    """States [R, A, H] of what is fed after the prompts, which stay where they are."""
    block = Block(prompts.layers, prompts.mask.sum(1), owner)
    with attending_to_blocks(backbone.config):
        out = backbone(**fed, block=block, past_key_values=OwnTokens(len(prompts.layers)), use_cache=True)
    return out.last_hidden_state


def _after_copies(
    backbone: Backbone, config: PreTrainedConfig, prompts: Prompts, owner: Tensor, fed: dict[str, Tensor], real: Tensor
) -> Tensor:
    """The same with keys and values copied for every row; `real` [R, A] is False on padding."""
    cache = DynamicCache(config=config)
    for number, (keys, values) in enumerate(prompts.layers):
        cache.update(keys[owner], values[owner], number)
    mask = torch.cat([prompts.mask[owner], real], 1)
    return backbone(**fed, attention_mask=mask, past_key_values=cache, use_cache=True).last_hidden_state


def in_blocks(backbone: Backbone, config: PreTrainedConfig) -> bool:
    """Whether answers can attend to blocks: on a CPU, if the model then says what it says with copies.

    What masks, caps or drops something in its attention says so itself, or says something else.
    """
    if backbone not in _agrees:
        device, own = next(backbone.parameters()).device, getattr(backbone, "config", None)
        attends = own is not None and own._attn_implementation != "eager"  # tables of ours have neither
        _agrees[backbone] = attends and device.type == "cpu" and _probe(backbone, config)
    return _agrees[backbone]


@torch.no_grad()
def _probe(backbone: Backbone, config: PreTrainedConfig) -> bool:
    """Whether two prompts and three answers have the same states with blocks and with copies."""
    tokens = (torch.arange(24).view(3, 8) * 7 + 1) % config.vocab_size
    tokens[1, :4] = tokens[0, :4]
    lengths, starts = np.array([8, 7, 8]), np.array([4, 4, 6])
    real, action = (torch.arange(8) < torch.from_numpy(n)[:, None] for n in (lengths, starts))
    actions = (real & ~action).numpy()
    rows = Rows(lengths, actions, starts, np.array([0, 0, 1]), np.array([0, 2]), np.zeros(3, int))
    zeros = torch.zeros(3)
    batch = TokenBatch(tokens, real, real & ~action, zeros, zeros, zeros, zeros, zeros, zeros)
    found = []
    with _at_rest(backbone), torch.autocast("cpu", enabled=False):
        for blocks in (False, True):
            try:
                prompts = computed(backbone, config, batch, rows, blocks)
                found.append(answered(backbone, config, batch, rows, prompts, rows.owner))
            except (NotImplementedError, RuntimeError, TypeError, AttributeError):
                if not blocks:
                    raise
                return False
    copies, ours = found
    return bool((copies - ours).abs().max() <= TOLERANCE[copies.dtype] * max(1.0, float(copies.abs().max())))


@contextmanager
def _at_rest(backbone: Backbone) -> Iterator[None]:
    """Without dropout, which would draw numbers that are somebody else's."""
    assert isinstance(backbone, nn.Module)
    active = [m for m in backbone.modules() if m.training]
    for module in active:
        module.training = False
    try:
        yield
    finally:
        for module in active:
            module.training = True


class Held:
    """A prompt that several micro-batches answer, computed for the first of them.

    Args:
        batch: a row that begins with it.
    """

    def __init__(self, batch: TokenBatch) -> None:
        self.batch, self.rows = batch, Rows.of(batch)
        self.whole: Prompts | None = None
        self.leaves: Prompts | None = None
        self.known: tuple[Backbone, bool] | None = None

    def serves(self, backbone: Backbone) -> bool:
        """Whether it holds what this model says of the prompt, or nothing yet."""
        return self.known is None or self.known == (backbone, torch.is_grad_enabled())

    def prompts(self, backbone: Backbone, config: PreTrainedConfig) -> Prompts:
        """The prompt, cut off from the graph that made it."""
        if self.leaves is None:
            self.known = backbone, torch.is_grad_enabled()
            self.whole = computed(backbone, config, self.batch, self.rows)
            self.leaves = self.whole.cut_off()
        return self.leaves

    def finish(self) -> None:
        """Take the gradient of all micro-batches back through the prompt."""
        if self.whole is None or self.leaves is None:
            return
        both = zip(self.whole.tensors(), self.leaves.tensors())
        pairs = [(x, leaf.grad) for x, leaf in both if leaf.grad is not None]
        if pairs:
            torch.autograd.backward([x for x, _ in pairs], [d.to(x.dtype) for x, d in pairs])


def _leaf(x: Tensor) -> Tensor:
    return x.detach().to(torch.promote_types(x.dtype, torch.float32)).requires_grad_(x.requires_grad)
