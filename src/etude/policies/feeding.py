"""Where tokens stand while they go through the layers of the written-out decoder (`etude.policies.shared`).

Shapes: M tokens, R rows that take part in a product, T tokens of a row at most, U prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SHORT, PIECE = 16, 256
"""Rows that are given up to SHORT tokens are fed together, whatever each one's number; PIECE are the most at once."""
SCORES = 1 << 20
"""Most scores of a head that are held at a time while rows are extended."""


class Rows:
    """Rows in the products over prompts: each has a slot [U, deep] among the rows of its prompt.

    Args:
        over: which of all rows take part; None: every one.
        owner: [R] their prompts, of which there are `prompts`.

    `asked`: which prompts take part; None: every one. They are found out for some rows alone.
    """

    def __init__(self, over: Tensor | None, owner: Tensor, prompts: int) -> None:
        self.asked: Tensor | None = None
        if over is not None:
            asked, number = torch.unique(owner, return_inverse=True)
            if 2 * len(asked) <= prompts:  # else taking them out costs more than the others do
                self.asked, owner, prompts = asked, number, len(asked)
        counts = torch.bincount(owner, minlength=prompts)
        order = owner.argsort(stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[owner[order]]
        self.over, self.deep = over, int(counts.max())
        self.slot = owner * self.deep + rank


@dataclass
class Feed:
    """M tokens on their way through the layers, at most T for each of R rows.

    Args:
        place: [M] where they stand among the R x T; None: R tokens, in order.
        where: what is written of the rows' own buffers: a column of all, or the row and column of each token.
        seen: columns that are attended to, of those `visible` [R, T, seen]; None: all.
    """

    rows: Rows
    place: Tensor | None
    width: int
    where: slice | tuple[Tensor, Tensor]
    seen: int
    visible: Tensor | None = None
    _bias: Tensor | None = None

    @classmethod
    def fixed(cls, rows: Rows, columns: Tensor, seen: int) -> Feed:
        """A token of every row into its column [R], which only the device knows: shapes do not tell."""
        number, all_of_them = (torch.arange(n, device=columns.device) for n in (len(columns), seen))
        return cls(rows, None, 1, (number, columns), seen, (all_of_them <= columns[:, None])[:, None])

    def write(self, buffer: Tensor, new: Tensor) -> None:
        """Put what is new [M, kv, 1, width] into its place."""
        if isinstance(self.where, slice):
            buffer[:, :, self.where] = new
        else:
            buffer[self.where[0], :, self.where[1]] = new[:, :, 0]

    def of(self, buffer: Tensor) -> Tensor:
        """The rows and columns [R, kv, seen, width] that are attended to."""
        buffer = buffer[:, :, : self.seen]
        return buffer if self.rows.over is None else buffer[self.rows.over]

    def spread(self, q: Tensor, size: int) -> Tensor:
        """Queries [M, kv, G, width] at their places [R, kv, T G, width]; the others are zero."""
        if self.place is None:
            return q
        count = size if self.rows.over is None else len(self.rows.over)
        spread = q.new_zeros(count * self.width, *q.shape[1:]).index_copy_(0, self.place, q)
        return spread.view(count, self.width, *q.shape[1:]).transpose(1, 2).flatten(2, 3)

    def gathered(self, out: Tensor) -> Tensor:
        """What `spread` did, undone."""
        if self.place is None:
            return out
        apart: Tensor = out.unflatten(2, (self.width, -1)).transpose(1, 2)
        return apart.flatten(0, 1)[self.place]

    def bias(self, kv: int, queries: int, dtype: torch.dtype) -> Tensor | None:
        """What is added to the scores [R kv, T G, seen]; the same in all layers."""
        if self.visible is not None and self._bias is None:
            hidden = torch.zeros_like(self.visible, dtype=dtype).masked_fill_(~self.visible, -torch.inf)
            rows, width, seen = hidden.shape
            shape = (rows, kv, width, 1 if width == 1 else queries // width, seen)
            self._bias = hidden[:, None, :, None].expand(shape).reshape(rows * kv, -1, seen)
        return self._bias


def alike(counts: Sequence[int], longest: int) -> list[list[int]]:
    """Rows that are given similar numbers of tokens, few enough at a time that their scores are not too many."""
    groups: dict[int, list[int]] = {}
    for i, count in enumerate(counts):
        groups.setdefault(max(SHORT, min(PIECE, 1 << (count - 1).bit_length())), []).append(i)
    found = []
    for width, rows in groups.items():
        most = max(1, SCORES // (min(width, max(counts)) * (longest + width)))
        found += [rows[start : start + most] for start in range(0, len(rows), most)]
    return found
