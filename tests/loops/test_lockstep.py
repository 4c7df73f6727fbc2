"""Passes of all ranks at once, where FSDP2 divides the weights: whoever has which rows, it is one process's update."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.errors import EtudeError
from etude.core.streams import Stream
from etude.loops import team
from etude.loops.lockstep import in_step, lightest
from etude.loops.movement import Movement
from etude.loops.team import Follower
from etude.policies.micro_batches import micro_batches
from etude.runtime.executors.processes import Processes
from etude.runtime.ranks import ALONE, LostRank, Ranks
from etude.runtime.shards import Shard
from language_toys import random_batch, random_policy
from rank_toys import BUDGET, Cut, Other, held, update_of, updated

pytestmark = pytest.mark.usefixtures("one_thread", "forked_roles")


@contextmanager
def met(count: int, folder: Path) -> Iterator[tuple[Processes, Cut]]:
    """Other ranks in processes of their own, and this one among them."""
    own = [{"rank": k} for k in range(1, count)]
    others = Processes(Other, "rank_toys:Other", {}, count - 1, name="Other", restarts=0, own=own)
    try:
        answer = others.begin("join", None, meeting=str(folder / "meeting"), count=count)
        ranks = Cut(folder / "meeting", 0, count, lockstep=True)
        answer.result()
        yield others, ranks
    finally:
        others.close()
        if "ranks" in locals():
            ranks.close()


CUTS = {2: (None, [0.4], [0.0]), 3: ([0.5, 0.5],)}
"""The library's own; one that would part a pair; no row for the first of two ranks; none for the second of three."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "name"),
    [(2, "grpo with kl"), (2, "ppo"), (2, "dpo"), (3, "ppo"), (3, "clip-cov"), (3, "sft"), (2, "capo")],
)
def test_whatever_the_cut_divided_weights_take_one_processs_steps(count: int, name: str, tmp_path: Path) -> None:
    metrics, gradients, weights = updated(name, ALONE)
    assert any(g is not None and bool(g.any()) for g in gradients)
    with met(count, tmp_path) as (others, ranks):
        for cuts in CUTS[count]:
            ranks.cuts, answer = cuts, others.begin("play", None, name=name, cuts=cuts)
            told, slopes, now, _ = update_of(name, ranks)
            answer.result()
            assert told == pytest.approx(metrics, rel=1e-9, abs=1e-12)
            for own, theirs in zip(slopes, gradients, strict=True):
                assert own is not None and theirs is not None and float((own - theirs).abs().max()) < 1e-12
            for own, theirs in zip(now, weights, strict=True):
                assert float((own - theirs).abs().max()) < 1e-6


@pytest.mark.slow
def test_each_rank_holds_about_half_of_weights_gradients_and_moments(tmp_path: Path) -> None:
    alone = held(update_of("grpo with kl", ALONE)[3])
    with met(2, tmp_path) as (others, ranks):
        answer = others.begin("play", None, name="grpo with kl", cuts=None)
        first = held(update_of("grpo with kl", ranks)[3])
        second = answer.result()[0]["held"]
    for whole, mine, theirs in zip(alone, first, second, strict=True):
        assert mine + theirs == whole and 0.45 < mine / whole < 0.55


class Told(Ranks):
    """A rank that hears of others with more micro-batches."""

    count, lockstep = 3, True

    def told(self, value: Any) -> list[Any]:
        return [value, 1, 4]


def test_who_has_fewer_micro_batches_goes_on_without_rows() -> None:
    pieces = [torch.tensor([0]), torch.tensor([1, 2])]
    assert [None if p is None else p.tolist() for p in in_step(Told(), pieces)] == [[0], [1, 2], None, None]
    assert [p is None for p in in_step(ALONE, pieces)] == [False, False]


def test_what_is_passed_along_is_the_smallest_micro_batch() -> None:
    policy, batch = random_policy("gpt2"), random_batch((2, 2, 2, 2), seed=5)
    sizes = [len(rows) * int(batch.lengths[rows].max()) for rows in micro_batches(policy, batch, BUDGET)]
    assert len(sizes) > 1 and lightest(policy, batch, BUDGET).tokens.numel() == min(sizes)


class Moved(Ranks):
    """The first of two ranks; of the other's eight weights with a gradient two have moved."""

    count = 2

    def sum(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            tensor += torch.tensor([2.0, 8.0])


def test_the_share_of_weights_that_moved_is_of_all_ranks() -> None:
    """1 of 2 here, 2 of 8 on the other rank, and 1 of 1 that both hold: 4 of 11. A rank may hold nothing."""
    own, alike = Shard.of(torch.zeros(2), torch.Size([10]), Moved()), torch.nn.Parameter(torch.zeros(1))
    empty = Shard.of(torch.zeros(0), torch.Size([1]), Moved())
    for parameter in (own, alike, empty):
        parameter.grad = torch.ones_like(parameter)
    movement = Movement([own, alike, empty])
    with torch.no_grad():
        own[0] += 1
        alike += 1
    assert movement.share() == pytest.approx(4 / 11)


def test_what_fails_in_a_pass_of_all_ranks_is_a_sentence() -> None:
    full = pytest.raises(EtudeError, match=r"Out of memory in a pass of all ranks .* smaller --micro-tokens")
    with full, Told().agreed():
        raise torch.OutOfMemoryError("full")
    with pytest.raises(LostRank, match="Connection closed"), Told().agreed():
        raise RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer")
    with pytest.raises(RuntimeError, match="shapes"), Told().agreed():
        raise RuntimeError("shapes do not match")


def test_a_rank_that_fails_alone_says_why_and_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It cannot tell the others, who wait for it in a pass."""
    codes, follower = list[int](), Follower.__new__(Follower)
    monkeypatch.setattr(os, "_exit", codes.append)
    follower.ranks, follower.stage, follower.stream = Told(), 0, Stream(0)
    follower.stages = [SimpleNamespace(load_state_dict=lambda states: None)]  # type: ignore[list-item]
    follower.model = SimpleNamespace(updater=SimpleNamespace())  # type: ignore[assignment]

    def fails(*_: Any) -> Any:
        raise EtudeError("Rows are gone.")

    monkeypatch.setattr(team, "taught", fails)
    monkeypatch.setattr(team, "load_tensors", lambda file: {})
    monkeypatch.setattr(team, "_received", lambda *_: (None, {}))
    with pytest.raises(EtudeError, match="Rows are gone"):
        follower.learn("", 0, 1, False, "own", {})
    assert codes == [1] and capsys.readouterr().err == "Rows are gone.\n"
