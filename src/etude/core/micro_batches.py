"""From a batch to micro-batches: how many tokens are held at a time, a prompt that rows share counted once.

A forward pass over rows that begin alike computes their prompt once (`policies/forward.py`), so what it holds until its
backward pass is U P tokens of distinct prompts and the rows' answers, not rows times (P + answer).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.layout import sent

MIN_SHARED = 0.15
"""Fraction of a micro-batch's tokens that sharing must save to be worth its second call."""
MIN_CUT, MIN_CUT_QUEUED = 128, 4096
"""Padded tokens that a cut between short and long answers must save to be worth another call; the second where calls
are put into a device's queue, and take as long whatever they compute."""
LEAST_ROOM = 0.25
"""Part of the budget that answers may take beside a prompt that fills it."""


class Sharing(NamedTuple):
    """How a policy shares prompts.

    Args:
        copied: tokens that a token counts for in each row that attends to a copy of its keys and values.
        long: tokens of a prompt from which on rows attend to it without copies.
    """

    copied: float = 0.0
    long: float = 0.0


FREELY = Sharing()
"""Without copies."""


@dataclass(frozen=True)
class Rows:
    """What the memory of rows depends on, as NumPy arrays; a prompt is all that comes before a row's first action.

    Args:
        lengths: [B] tokens.
        actions: [B, T] whether each token is an action.
        starts: [B] tokens of the prompt.
        owner: [B] number of the distinct prompt; first: [U] a row that has it.
        group: [B] which rows are compared with each other.
        sharing: how prompts are shared.
        cut: as `by_length` has it.
    """

    lengths: np.ndarray
    actions: np.ndarray
    starts: np.ndarray
    owner: np.ndarray
    first: np.ndarray
    group: np.ndarray
    sharing: Sharing = FREELY
    cut: int | None = None

    @classmethod
    def of(cls, batch: TokenBatch, sharing: Sharing = FREELY) -> Rows:
        """Those of a batch."""
        columns = (batch.tokens, batch.action_mask, batch.lengths[:, None], batch.group[:, None])
        found = torch.cat([x.long() for x in columns], 1).cpu().numpy()  # at once
        width = batch.tokens.shape[1]
        tokens, actions = np.ascontiguousarray(found[:, :width]), found[:, width : 2 * width].astype(bool)
        lengths, group = found[:, -2].copy(), found[:, -1].copy()
        starts = actions.argmax(1).clip(min=1)  # also of rows without actions
        seen: dict[bytes, int] = {}
        owner, first = np.empty(len(starts), int), []
        for row, end in enumerate(starts.tolist()):
            key = tokens[row, :end].tobytes()
            if key not in seen:
                seen[key] = len(seen)
                first.append(row)
            owner[row] = seen[key]
        cut = None if batch.tokens.device.type == "cpu" else MIN_CUT_QUEUED
        return cls(lengths, actions, starts, owner, np.array(first, int), group, sharing, cut)

    def pays(self, rows: np.ndarray | None = None) -> bool:
        """Whether computing each distinct prompt of some rows (all, if none are given) once is worth it."""
        rows = np.arange(len(self.starts)) if rows is None else rows
        distinct = self.starts[self.first[np.unique(self.owner[rows])]]
        return bool(self.starts[rows].sum() - distinct.sum() >= MIN_SHARED * self.lengths[rows].sum())

    def held(self, rows: np.ndarray) -> float:
        """Tokens that a forward pass over some rows holds, padding with them."""
        if not self.pays(rows):
            return int(len(rows) * self.lengths[rows].max())
        prompts, widest = len(np.unique(self.owner[rows])), int(self.starts[rows].max())
        return prompts * widest + self.answers(rows, widest)

    def answers(self, rows: np.ndarray, widest: int) -> float:
        """Tokens that are held of answers to prompts that are there already, of at most `widest` tokens."""
        counts = (self.lengths - self.starts)[rows]
        found, copied = 0.0, self.sharing.copied if widest < self.sharing.long else 0.0
        for piece in by_length(counts, self.cut):
            longest = int(counts[piece].max())
            found += len(piece) * (longest + copied * (widest + longest))
        return found


def plan(batch: TokenBatch, budget: int, whole_groups: bool, sharing: Sharing | None = None) -> list[list[Tensor]]:
    """Row indices of micro-batches that hold at most `budget` padded tokens, rows of similar length together.

    Several in one list are answers to one prompt that does not fit beside all of them: they are to follow each other
    while it is held. A prompt that fills the budget leaves them `LEAST_ROOM` of it. Groups stay whole if
    `whole_groups`, whatever they take.

    Args:
        sharing: how prompts are shared; None: they are not.
    """
    if not len(batch):
        return []
    rows = None if sharing is None else Rows.of(batch, sharing)
    if rows is None or not rows.pays():
        return [[_on(batch, piece)] for piece in _repeated(batch, budget, whole_groups)]
    pieces: list[list[np.ndarray]] = []
    going: list[np.ndarray] = []
    for unit in _units(rows, whole_groups):
        if going and rows.held(np.concatenate([*going, unit])) > budget:
            pieces.append([np.concatenate(going)])
            going = []
        if not whole_groups and rows.held(unit) > budget:
            pieces += _cut(rows, unit, budget)
        else:
            going.append(unit)
    if going:
        pieces.append([np.concatenate(going)])
    return [[_on(batch, piece) for piece in together] for together in pieces]


def by_length(lengths: np.ndarray, least: int | None = None) -> list[np.ndarray]:
    """Places in pieces of similar length, cut wherever that saves enough padding to be worth another call.

    Args:
        least: padded tokens that are enough; None: `MIN_CUT`.

    >>> [piece.tolist() for piece in by_length(np.array([600, 50, 640, 60]))]
    [[0, 2], [1, 3]]
    """
    least = MIN_CUT if least is None else least
    pieces, going = [], [lengths.argsort(kind="stable")]
    while going:
        places = going.pop()
        sizes = lengths[places]
        saved = np.arange(1, len(places)) * (sizes[-1] - sizes[:-1])
        if len(places) > 1 and saved.max() >= least:
            cut = int(saved.argmax()) + 1
            going += [places[:cut], places[cut:]]
        else:
            pieces.append(np.sort(places))
    return pieces


def _on(batch: TokenBatch, piece: np.ndarray) -> Tensor:
    return sent(piece, batch.tokens.device)


def _units(rows: Rows, whole_groups: bool) -> list[np.ndarray]:
    """Rows of a prompt (of a group, if those stay whole), short prompts first."""
    whose = rows.group if whole_groups else rows.owner
    widest = np.zeros(int(whose.max()) + 1, int)
    np.maximum.at(widest, whose, rows.starts)
    order = np.lexsort((rows.lengths, whose, widest[whose]))
    return np.split(order, np.flatnonzero(np.diff(whose[order])) + 1)


def _cut(rows: Rows, unit: np.ndarray, budget: int) -> list[list[np.ndarray]]:
    """Rows of one prompt that are over the budget, in pieces that follow each other; apart if sharing gains little."""
    widest = int(rows.starts[unit].max())
    shares = rows.pays(unit)
    room = max(budget - widest, LEAST_ROOM * budget) if shares else budget
    pieces: list[list[int]] = [[]]
    for row in unit.tolist():  # as they are sorted, the last is the longest
        grown = np.array([*pieces[-1], row])
        taken = rows.answers(grown, widest) if shares else len(grown) * rows.lengths[row]
        if pieces[-1] and taken > room:
            pieces.append([])
        pieces[-1].append(row)
    found = [np.array(piece) for piece in pieces]
    return [found] if shares else [[piece] for piece in found]


def _repeated(batch: TokenBatch, budget: int, whole_groups: bool) -> list[np.ndarray]:
    """Micro-batches of a policy that computes the prompt of every row."""
    lengths, group = batch.lengths.cpu().numpy(), batch.group.cpu().numpy()
    longest = np.zeros(int(group.max()) + 1, int)
    np.maximum.at(longest, group, lengths)
    order = np.lexsort((lengths, group, longest[group]))
    pieces: list[list[int]] = [[]]
    widest = 0
    for unit in _runs(order, group, lengths, budget, whole_groups):
        width = max(widest, int(lengths[unit].max()))
        if pieces[-1] and width * (len(pieces[-1]) + len(unit)) > budget:
            pieces.append([])
            width = int(lengths[unit].max())
        pieces[-1].extend(unit)
        widest = width
    return [np.array(p) for p in pieces if p]


def _runs(order: np.ndarray, group: np.ndarray, lengths: np.ndarray, budget: int, whole: bool) -> list[list[int]]:
    """Rows in order, cut where the group changes and, if allowed, where a group is over the budget."""
    units: list[list[int]] = []
    for row in order.tolist():
        same = bool(units) and group[units[-1][-1]] == group[row]
        if same and (whole or (len(units[-1]) + 1) * max(lengths[units[-1]].max(), lengths[row]) <= budget):
            units[-1].append(row)
        else:
            units.append([row])
    return units
