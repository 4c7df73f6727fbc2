"""Decoding of the Llama family, written out, with the prompt's keys and values kept once per group.

transformers repeats a prompt's cache for every completion, and the heads of grouped-query attention for every step.
Here each distinct prompt stays one block that all its rows attend to in one matrix product, and a row owns only what
came after it. With (o, l) the outputs and log-normalisers of attention over prompt and over the row's own tokens,

    o = o_own + sigmoid(l_prompt - l_own) (o_prompt - o_own)

is attention over both. Projections, norms and MLPs are the model's own modules, so adapters work.

Shapes: M tokens, S rows of which N are fed and R take part in a product, T tokens of a row at most, U prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from etude.policies import feeding
from etude.policies.cache import layers
from etude.policies.feeding import Feed, Rows
from etude.policies.llama import Attention, Llama, attend, normed, rotated
from etude.policies.recorded import Recorded
from etude.policies.stack import Stack

if TYPE_CHECKING:
    from transformers.cache_utils import Cache

RECORDED, STRIDE = {"cuda"}, 128
"""Devices on which steps are recorded, and how many columns are added at a time to what such a step attends to."""
ROOM = 16
"""Columns by which blocks are made wider where a longer one joins them."""
FEW = 3
"""Of one in so many rows, keys and values are copied for a product; of more, all rows' are read where they are."""


class RecordedStep(NamedTuple):
    """A step that is recorded, and what it was recorded for: these rows, these buffers and so many columns of them."""

    rows: Rows
    own: list[tuple[Tensor, ...]]
    seen: int
    step: Recorded

    def of(self, rows: Rows, own: list[tuple[Tensor, ...]], seen: int) -> bool:
        """Whether it is the step of these, in their place."""
        return self.rows is rows and self.own is own and self.seen == seen


class SharedDecoder:
    """Rows being decoded, each attending to its prompt's one block and to its own tokens, which stand packed behind it.

    Buffers belong to all S rows that there are; N of them are fed, the others rest where they are.

    Args:
        cache: holds the prompts [U, P] with `mask` True on their tokens.
        owner: [S] which prompt each row continues.
        capacity: room for this many tokens a row; more is made when it is needed.
    """

    rewinds: ClassVar[bool] = True

    def __init__(self, backbone: Llama, cache: Cache, mask: Tensor, owner: Tensor, capacity: int) -> None:
        self.model, self.owner, self.real = backbone, owner, mask
        self.prompts: list[tuple[Tensor, ...]] = [(layer.keys, layer.values) for layer in layers(cache)]
        kv, width = self.prompts[0][0].shape[1], self.prompts[0][0].shape[3]
        shape = (len(owner), kv, capacity, width)
        self.own: list[tuple[Tensor, ...]] = [(k.new_zeros(shape), v.new_zeros(shape)) for k, v in self.prompts]
        self.stacks = [[Stack() for _ in range(4)] for _ in self.prompts]
        self.lengths = torch.zeros_like(owner)
        self.longest, self.level = 0, True
        self.fed: Tensor | None = None
        self.everyone: Rows | None = None
        self.recorded: RecordedStep | None = None
        self._spread()

    @property
    def size(self) -> int:
        return len(self.owner)

    # Which rows there are

    def _spread(self) -> None:
        """Bring what hides padding of the prompts into the shape of the scores, and arrange the rows."""
        kv, dtype = self.prompts[0][0].shape[1], self.prompts[0][0].dtype
        hidden = torch.zeros_like(self.real, dtype=dtype).masked_fill_(~self.real, -torch.inf)
        self.hidden = None if bool(self.real.all()) else hidden.repeat_interleave(kv, 0)[:, None]
        self.everyone = None
        self.arrangement = self._arranged(self.fed)

    def _arranged(self, fed: Tensor | None, always: bool = False) -> Rows:
        """Where rows stand in the products; few rows are taken out of the buffers, many are computed where they are."""
        if fed is not None and (always or FEW * len(fed) <= self.size):
            return Rows(fed, self.owner[fed], len(self.real))
        self.everyone = self.everyone or Rows(None, self.owner, len(self.real))
        return self.everyone

    def keep(self, rows: Tensor) -> None:
        self.owner, self.lengths = self.owner[rows], self.lengths[rows]
        used = slice(0, self.longest)
        for k, v in self.own:
            k[: len(rows), :, used], v[: len(rows), :, used] = k[rows, :, used], v[rows, :, used]
        self.own = [(k[: len(rows)], v[: len(rows)]) for k, v in self.own]
        self._measure()
        going, owner = torch.unique(self.owner, return_inverse=True)
        if len(going) <= 0.75 * len(self.real):
            self.prompts = [(k[going], v[going]) for k, v in self.prompts]
            self.owner, self.real = owner, self.real[going]
            self._spread()
        else:
            self.everyone = None
            self.arrangement = self._arranged(None)

    def _measure(self) -> None:
        """How long the longest row is, and whether all are."""
        self.longest = int(self.lengths.max())
        self.level = bool((self.lengths == self.longest).all())

    def narrow(self, rows: Tensor) -> None:
        self.fed = rows if self.fed is None else self.fed[rows]
        self.arrangement = self._arranged(self.fed)

    def widen(self) -> None:
        if self.fed is not None:
            self.fed = None
            if self.owner.device.type in RECORDED:
                self._measure()  # steps of some rows only counted
            self.arrangement = self._arranged(None)

    def join(self, other: SharedDecoder) -> None:
        self._append(other.prompts, other.real, other.owner, other.own, other.lengths)

    def fork(self, rows: Tensor) -> None:
        """The history of each forked row becomes a block, which all its forks attend to in one product."""
        going, number = torch.unique(rows, return_inverse=True)
        whose, lengths = self.owner[going], self.lengths[going]
        counts, longest = self.real[whose].sum(1) + lengths, int(lengths.max())
        most = int(counts.max())
        columns = torch.arange(most, device=rows.device)
        real = columns >= (most - counts)[:, None]
        # a prompt ends where what its row said begins: the last columns of both, up to the row's length
        source = (columns + (self.real.shape[1] + lengths - most)[:, None]).clamp_(min=0)[:, None, :, None]
        blocks = [
            tuple(
                torch.cat([shared[whose], said[going, :, :longest]], 2).take_along_dim(source, 2)
                for shared, said in zip(prompt, own)
            )
            for prompt, own in zip(self.prompts, self.own)
        ]
        empty = [tuple(x[:1, :, :0].expand(len(rows), -1, -1, -1) for x in pair) for pair in self.own]
        self._append(blocks, real, number, empty, torch.zeros_like(rows))

    def _append(
        self, prompts: Sequence[tuple[Tensor, ...]], real: Tensor, owner: Tensor, own: Sequence[tuple[Tensor, ...]],
        lengths: Tensor,
    ) -> None:  # fmt: skip
        """Rows behind the others, with blocks of theirs."""
        most, room = self.real.shape[1], max(self.own[0][0].shape[2], own[0][0].shape[2])
        if real.shape[1] > most:
            most = -(-real.shape[1] // ROOM) * ROOM
        self.owner = torch.cat([self.owner, owner + len(self.real)])
        self.real = torch.cat([pad(mask, (most - mask.shape[1], 0)) for mask in (self.real, real)])
        parts = zip(self.stacks, self.prompts, prompts, self.own, own)
        grown = [
            (
                tuple(s.grown(_behind(x, most), _behind(y, most)) for s, x, y in zip(stacks, mine, more)),
                tuple(s.grown(_roomy(x, room), _roomy(y, room)) for s, x, y in zip(stacks[2:], said, new)),
            )
            for stacks, mine, more, said, new in parts
        ]
        self.prompts, self.own = [blocks for blocks, _ in grown], [said for _, said in grown]
        self.lengths = torch.cat([self.lengths, lengths])
        self._measure()
        self._spread()

    def rewind(self, rows: Sequence[int], counts: Sequence[int]) -> list[bool]:
        """As far back as the end of their prompt."""
        index = torch.tensor(rows, device=self.owner.device)
        left = torch.tensor(counts, device=index.device) - self.real.sum(1)[self.owner[index]]
        can = left >= 0
        self.lengths[index[can]] = left[can]
        self._measure()
        return [bool(c) for c in can.tolist()]

    def fitting(self, limit: int) -> int:
        first = torch.unique(self.owner, return_inverse=True)[1]
        fresh = torch.ones_like(first, dtype=torch.bool)
        fresh[1:] = first[1:] > first.cummax(0).values[:-1]  # rows of a prompt follow each other
        tokens = self.lengths + fresh * self.real.sum(1)[self.owner]
        one = sum(x[0, :, :1].nbytes for pair in self.own for x in pair)
        return int((tokens.cumsum(0) * one <= limit).sum())

    # Feeding

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        self._make_room(1)
        if tokens.device.type in RECORDED:
            return self._step(tokens, positions)
        if self.level and self.fed is None:
            at = Feed(self.arrangement, None, 1, slice(self.longest, self.longest + 1), self.longest + 1)
            states = self._forward(tokens, positions, at)
            self.lengths, self.longest = self.lengths + 1, self.longest + 1
            return states
        rows = self._numbers()
        return self._feed(tokens, positions, rows, torch.zeros_like(rows), 1, self.arrangement)

    def _step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """The same in shapes that stay: all rows go through, and what resting ones write is written over later."""
        fed, rows = self.fed, self._arranged(None)
        seen = min(self.own[0][0].shape[2], -(-(self.longest + 1) // STRIDE) * STRIDE)
        if self.recorded is None or not self.recorded.of(rows, self.own, seen):
            self.recorded = RecordedStep(rows, self.own, seen, Recorded(partial(self._fixed_step, rows, seen)))
        if fed is not None:
            tokens, positions = (x.new_zeros(self.size).index_copy_(0, fed, x) for x in (tokens, positions))
        states = self.recorded.step(tokens, positions, self.lengths)
        if fed is None:
            self.lengths, self.longest = self.lengths + 1, self.longest + 1
            return states
        self.lengths = self.lengths.index_add(0, fed, torch.ones_like(fed))
        self.longest, self.level = self.longest + 1, False  # at most: measuring would wait
        return states[fed]

    def _fixed_step(self, rows: Rows, seen: int, tokens: Tensor, positions: Tensor, columns: Tensor) -> Tensor:
        """Of so many columns, those behind a row's own are hidden."""
        return self._forward(tokens, positions, Feed.fixed(rows, columns, seen))

    def extend(self, tokens: Sequence[Sequence[int]], begun: Sequence[int]) -> Tensor:
        counts, rows = [len(new) for new in tokens], self._numbers()
        self._make_room(max(counts))
        last: Tensor | None = None
        for alike in feeding.alike(counts, self.longest):
            for start in range(0, max(counts[i] for i in alike), feeding.PIECE):
                going = [i for i in alike if counts[i] > start]
                pieces = [tokens[i][start : start + feeding.PIECE] for i in going]
                states = self._ends(pieces, rows[going], [begun[i] + start for i in going])
                last = states.new_empty(len(counts), states.shape[1]) if last is None else last
                last[going] = states
        assert last is not None
        return last

    def _numbers(self) -> Tensor:
        """Numbers [N] of the rows that are fed."""
        return torch.arange(self.size, device=self.owner.device) if self.fed is None else self.fed

    def _ends(self, pieces: Sequence[Sequence[int]], rows: Tensor, begun: Sequence[int]) -> Tensor:
        """Hidden states [N, H] of the last tokens of the pieces that N rows are given."""
        device = rows.device
        sizes = torch.tensor([len(piece) for piece in pieces], device=device)
        ends = sizes.cumsum(0)
        number = torch.arange(len(rows), device=device).repeat_interleave(sizes)
        offset = torch.arange(len(number), device=device) - (ends - sizes)[number]
        tokens = torch.tensor([t for piece in pieces for t in piece], device=device)
        positions = torch.tensor(begun, device=device)[number] + offset
        at = self._arranged(None if 4 * len(rows) > 3 * self.size else rows, always=True)
        return self._feed(tokens, positions, rows[number], offset, int(sizes.max()), at)[ends - 1]

    def _feed(self, tokens: Tensor, positions: Tensor, rows: Tensor, offset: Tensor, width: int, at: Rows) -> Tensor:
        """Hidden states [M, H] of tokens [M]: the `offset`-th new one of its row each, which has `width` at most."""
        columns, lengths, place = self.lengths[rows] + offset, self.lengths, rows
        if at.over is not None:
            lengths = lengths[at.over]
            place = torch.empty_like(self.owner).index_copy_(
                0, at.over, torch.arange(len(at.over), device=rows.device)
            )[rows]
        seen, steps = int(columns.max()) + 1, torch.arange(width, device=rows.device)
        visible = torch.arange(seen, device=rows.device) <= (lengths[:, None] + steps)[..., None]
        states = self._forward(
            tokens, positions, Feed(at, place * width + offset, width, (rows, columns), seen, visible)
        )
        self.lengths = self.lengths.index_add(0, rows, torch.ones_like(rows))
        self.longest, self.level = max(self.longest, seen), False
        return states

    def _make_room(self, more: int) -> None:
        """Room for this many tokens more in every row, and for as many again as there are: copying is not free."""
        needed, there = self.longest + more, self.own[0][0].shape[2]
        if needed > there:
            room = max(needed, 2 * there)
            self.own = [tuple(_roomy(x, room) for x in pair) for pair in self.own]

    def _forward(self, tokens: Tensor, positions: Tensor, at: Feed) -> Tensor:
        x = self.model.embed_tokens(tokens)
        cos, sin = self.model.rotary_emb(x[:, None], positions[:, None])
        cos, sin = cos[:, :, None], sin[:, :, None]  # [M, 1, 1, width]
        for number, layer in enumerate(self.model.layers):
            x = x + self._attention(number, layer.self_attn, normed(layer.input_layernorm, x), cos, sin, at)
            x = x + layer.mlp(normed(layer.post_attention_layernorm, x))
        return normed(self.model.norm, x)

    def _attention(self, number: int, part: Attention, x: Tensor, cos: Tensor, sin: Tensor, at: Feed) -> Tensor:
        """[M, H] -> [M, H]; queries are [M, kv heads, queries per kv head, width]."""
        keys, values = self.own[number]
        kv, width, count = keys.shape[1], keys.shape[3], len(x)
        q, k = part.q_proj(x).view(count, kv, -1, width), part.k_proj(x).view(count, kv, 1, width)
        if hasattr(part, "q_norm"):
            q, k = normed(part.q_norm, q), normed(part.k_norm, k)
        q, k = rotated(q, cos, sin) * part.scaling, rotated(k, cos, sin)
        at.write(keys, k)
        at.write(values, part.v_proj(x).view(count, kv, 1, width))
        q = at.spread(q, self.size)
        rows = len(q)
        own, own_l = attend(
            q.reshape(rows * kv, -1, width), at.of(keys).flatten(0, 1), at.of(values).flatten(0, 1),
            at.bias(kv, q.shape[2], q.dtype),
        )  # fmt: skip
        shared, shared_l = self._over_prompts(number, q, at.rows)
        own, own_l = own.view_as(q), own_l.view(*q.shape[:3], 1)
        out = torch.lerp(own, shared, (shared_l - own_l).sigmoid_().to(own.dtype))
        return part.o_proj(at.gathered(out).reshape(count, -1))

    def _over_prompts(self, number: int, q: Tensor, at: Rows) -> tuple[Tensor, Tensor]:
        """Attention of all rows of a prompt in one product: outputs [R, kv, queries, width], log-normalisers."""
        keys, values = self.prompts[number]
        hidden, kv = self.hidden, keys.shape[1]
        if at.asked is not None:
            keys, values = keys[at.asked], values[at.asked]
            hidden = None if hidden is None else hidden.unflatten(0, (-1, kv))[at.asked].flatten(0, 1)
        prompts, _, length, width = keys.shape
        queries = q.shape[2]
        slots = q.new_zeros(prompts * at.deep, kv, queries, width).index_copy_(0, at.slot, q)
        slots = slots.view(prompts, at.deep, kv, queries, width).transpose(1, 2)
        out, normaliser = attend(
            slots.reshape(prompts * kv, at.deep * queries, width),
            keys.reshape(prompts * kv, length, width),
            values.reshape(prompts * kv, length, width),
            hidden,
        )

        def by_row(x: Tensor) -> Tensor:
            return x.view(prompts, kv, at.deep, queries, -1).transpose(1, 2).flatten(0, 1)[at.slot]

        return by_row(out), by_row(normaliser)


def _roomy(buffer: Tensor, room: int) -> Tensor:
    """A buffer [S, kv, capacity, width] with more room behind what is there."""
    return buffer if buffer.shape[2] == room else pad(buffer, (0, 0, 0, room - buffer.shape[2]))


def _behind(block: Tensor, width: int) -> Tensor:
    """Blocks [U, kv, P, width] with more room before what is there."""
    return block if block.shape[2] == width else pad(block, (0, 0, width - block.shape[2], 0))
