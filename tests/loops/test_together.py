"""Ranks of an update: whatever the cut of a batch over them, gradients and metrics are those of one process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.cut import cut
from etude.core.errors import InvariantError
from etude.loops.together import check_alike, from_first, spread
from etude.runtime.ranks import ALONE, Ranks
from language_toys import random_batch
from rank_toys import cut_at, updated

T = TypeVar("T")


class Meeting:
    """What threads that play ranks have in common."""

    def __init__(self, count: int) -> None:
        self.barrier, self.said = threading.Barrier(count, timeout=60), [None] * count


class Thread(Ranks):
    """A rank that is a thread; `cuts` says whose rows are whose, as a share of the rows up to each rank's last."""

    def __init__(self, meeting: Any, rank: int, count: int, cuts: Sequence[float] | None) -> None:
        self.meeting, self.rank, self.count, self.cuts = meeting, rank, count, cuts

    def _all(self, value: Any) -> list[Any]:
        self.meeting.said[self.rank] = value
        self.meeting.barrier.wait()
        said = list(self.meeting.said)
        self.meeting.barrier.wait()
        return said

    def told(self, value: Any) -> list[Any]:
        return [json.loads(text) for text in self._all(json.dumps(value))]

    def sum(self, tensors: Sequence[Tensor]) -> None:
        for own, parts in zip(
            tensors, zip(*self._all([t.detach().clone() for t in tensors]), strict=True), strict=True
        ):
            own.detach().copy_(sum(parts[1:], parts[0]))

    def cut(self, batch: TokenBatch, whole_groups: bool) -> list[Tensor]:
        return cut_at(self.cuts, batch, self.count, whole_groups)


def on_threads(count: int, cuts: Sequence[float] | None, play: Callable[[Ranks], T]) -> list[T]:
    """What every rank comes to."""
    meeting, found, failed = Meeting(count), dict[int, T](), list[BaseException]()

    def one(rank: int) -> None:
        try:
            found[rank] = play(Thread(meeting, rank, count, cuts))
        except BaseException as error:
            failed.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in sorted(failed, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    return [found[rank] for rank in range(count)]


CUTS = (None, (0.4,), (0.0,), (0.5, 0.5))
"""The library's own; one that would part a pair; no row for the first of two ranks; none for the second of three."""
METHODS = ("grpo with kl", "ppo", "ppo with a critic of its own", "dpo", "sft", "clip-cov")


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_whatever_the_cut_it_is_the_update_of_one_process(name: str) -> None:
    metrics, gradients, weights = updated(name, ALONE)
    assert any(g is not None and bool(g.any()) for g in gradients)
    for cuts in CUTS:
        for told, slopes, held in on_threads(2 if cuts is None else len(cuts) + 1, cuts, lambda r: updated(name, r)):
            assert told == pytest.approx(metrics, rel=1e-9, abs=1e-12)
            for own, theirs in zip(slopes, gradients, strict=True):
                assert (own is None) == (theirs is None)
                assert own is None or theirs is None or float((own - theirs).abs().max()) < 1e-12
            for own, theirs in zip(held, weights, strict=True):
                assert float((own - theirs).abs().max()) < 1e-6


def test_rows_are_cut_by_tokens_and_groups_stay_whole() -> None:
    batch = random_batch((3, 1, 4, 2))
    for count in (1, 2, 3, 7):
        for whole in (True, False):
            pieces = cut(batch, count, whole)
            assert len(pieces) == count and torch.cat(pieces).sort().values.tolist() == list(range(len(batch)))
            groups = [set(batch.group[rows].tolist()) for rows in pieces]
            if whole or count <= 4:
                assert sum(map(len, groups)) == 4
    tokens = [int(batch.lengths[rows].sum()) for rows in cut(batch, 7, False)]
    assert max(tokens) <= 2 * int(batch.lengths.sum()) / 7 + int(batch.lengths.max())


def test_ranks_that_have_come_apart_are_noticed() -> None:
    with pytest.raises(InvariantError, match="hold different weights"):
        on_threads(2, None, lambda ranks: check_alike(ranks, [1.0, float(ranks.rank)], 3))


def test_what_one_rank_refuses_all_refuse() -> None:
    def play(ranks: Ranks) -> str:
        try:
            with ranks.agreed():
                if ranks.rank == 1:
                    raise InvariantError("Rows are gone.")
        except InvariantError as error:
            return str(error)
        return "went on"

    def full(ranks: Ranks) -> str:
        try:
            with ranks.agreed():
                if ranks.rank == 0:
                    raise torch.OutOfMemoryError("full")
        except torch.OutOfMemoryError as error:
            return str(error)
        return "went on"

    assert on_threads(3, None, play) == ["Rows are gone."] * 3
    assert on_threads(3, None, full) == ["full"] * 3


def test_what_is_known_to_some_ranks_reaches_the_others() -> None:
    def play(ranks: Ranks) -> list[Any]:
        made = from_first(ranks, lambda: [torch.tensor([[1.0, 2.0]]), torch.tensor(3, dtype=torch.long)], torch.ones(1))
        values = torch.full((4,), 9.0)
        rows = torch.tensor([0, 2]) if ranks.rank else torch.tensor([3])
        values[rows] = float(ranks.rank)
        spread(ranks, values, rows)
        return [*(x.tolist() for x in made), values.tolist()]

    assert on_threads(2, None, play) == [[[[1.0, 2.0]], 3, [1.0, 9.0, 1.0, 0.0]]] * 2
