"""Ranks of an update: whatever the cut of a batch over them, gradients and metrics are those of one process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from etude.core import stages
from etude.core.batches import TokenBatch
from etude.core.complete import complete_token
from etude.core.cut import cut
from etude.core.errors import InvariantError
from etude.core.kinds import TokenMethod
from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.learners.value_model import ValueModel
from etude.loops.lessons import Lesson, taught
from etude.loops.together import check_alike, from_first, spread
from etude.loops.token_learning import TokenLearners
from etude.loops.update import Updater
from etude.policies.language import LanguagePolicy
from etude.regularizers.kl import KLToReference
from etude.runtime.ranks import ALONE, Ranks
from language_toys import random_batch, random_policy

T = TypeVar("T")
BUDGET = 60
"""Padded tokens of a micro-batch: each rank has several."""
MAKING = threading.Lock()
"""Models are made with torch's one generator."""


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
        if self.cuts is None:
            return cut(batch, self.count, whole_groups)
        units, whose = torch.unique(batch.group, return_inverse=True)
        if not whole_groups:
            units = whose = torch.arange(len(batch))
        ends = [0, *(round(share * len(units)) for share in self.cuts), len(units)]
        return [((whose >= a) & (whose < b)).nonzero()[:, 0] for a, b in pairwise(ends)]


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


def method_of(name: str) -> TokenMethod:
    own, _, what = name.partition(" with ")
    method: Any = get_method(own)
    if what == "kl":
        method = method.replace(regularizers=(KLToReference(coefficient=0.1),))
    if what == "a critic of its own":
        method = method.replace(critic=ValueModel())
    return method  # type: ignore[no-any-return]


def rows_of(policy: LanguagePolicy) -> TokenBatch:
    """Rows with all that an update may ask for; one of them has nothing to teach where only advantages do."""
    batch = random_batch((2, 2, 2, 2), seed=5)
    random = torch.Generator().manual_seed(3)

    def drawn() -> Tensor:
        return torch.randn(batch.tokens.shape, generator=random, dtype=torch.float64) * batch.action_mask

    with torch.no_grad():
        said = policy.evaluate(batch).logp
    advantages = drawn()
    advantages[2] = 0.0
    scores = torch.tensor([1.0, 0.0] * 4, dtype=torch.float64)
    return batch.replace(
        advantages=advantages, values=drawn(), returns=drawn(), reference_logp=said + 0.1 * drawn(),
        behaviour_logp=said, proximal_logp=said, entropy=drawn().abs(), rewards=drawn(), scores=scores,
        weights=torch.tensor([1.0, 2.0] * 4, dtype=torch.float64), episodes=[],
    )  # fmt: skip


def updated(name: str, ranks: Ranks) -> tuple[dict[str, float], list[Tensor | None], list[Tensor]]:
    """Metrics, gradients of the last step, and weights after all steps of two training steps."""
    with MAKING:
        method = complete_token(stages.bound(method_of(name))[0][1])
        policy = random_policy("gpt2", dtype=torch.float64, seed=2)  # rotary angles are float32, whose ends round apart
        batch = rows_of(policy)
        learners = TokenLearners(method, policy, Stream(0).split("learners"), 4, ranks)
        updater = Updater(policy, method, 4, BUDGET, 9, learners, ranks)
    metrics = {}
    for step in range(2):
        with torch.no_grad():
            said = policy.evaluate(batch).logp
        fresh = batch.replace(behaviour_logp=said, proximal_logp=said)
        metrics = taught(updater, [[Lesson(method, fresh)]], step, Stream(1).split("step", step))
    trained = list(updater.stepper.parameters)
    trained += [] if learners.critic is None else learners.critic.stepper.parameters
    return metrics, [None if p.grad is None else p.grad.clone() for p in trained], [p.detach().clone() for p in trained]


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
