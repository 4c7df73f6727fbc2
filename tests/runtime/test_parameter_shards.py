"""Shards of tensors: which rows a rank has, and a norm that is everybody's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from etude.optimizers.adam import AdamW, automatic_rate
from etude.optimizers.model import ModelStepper
from etude.runtime.ranks import Ranks
from etude.runtime.shards import Shard, clip_gradients, divided, share, size


class Second(Ranks):
    """The second of two ranks; the first adds what is said here."""

    rank, count = 1, 2

    def __init__(self, other: float = 0.0) -> None:
        self.other = other

    def sum(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            tensor += self.other


def shard(whole: Tensor, ranks: Ranks) -> Shard:
    start, end = share(len(whole), ranks.count, ranks.rank)
    return Shard.of(whole[start:end].clone(), whole.shape, ranks)


@pytest.mark.parametrize("rows", [1, 4, 5, 7])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_rows_are_shared_as_torch_cuts_them(rows: int, count: int) -> None:
    shards = [p.tolist() for p in torch.arange(rows).chunk(count)]
    mine = [list(range(*share(rows, count, rank))) for rank in range(count)]
    assert mine == shards + [[]] * (count - len(shards))


def test_the_norm_is_of_all_ranks_and_what_they_hold_alike_counts_once() -> None:
    """Here (3, 4), with the first rank's 144 of its own and 12 that both hold: 5^2 + 144 + 144 = 313."""
    own, alike, none = shard(torch.zeros(4), Second(144.0)), nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    own.grad, alike.grad = torch.tensor([3.0, 4.0]), torch.tensor([12.0])
    norm = clip_gradients([own, alike, none], 1.0)
    assert norm == pytest.approx(313**0.5)
    assert own.grad.tolist() == pytest.approx([3 / norm, 4 / norm], rel=1e-5)
    assert alike.grad.tolist() == pytest.approx([12 / norm], rel=1e-5) and none.grad is None
    assert clip_gradients([own, alike], torch.inf) > 0 and alike.grad.tolist() == pytest.approx([12 / norm], rel=1e-5)


def test_a_learning_rate_goes_by_what_all_ranks_train() -> None:
    own = shard(torch.zeros(4_000_000, 1), Second())
    assert isinstance(own, Shard) and not isinstance(nn.Parameter(torch.zeros(1)), Shard)
    assert (size(own), own.numel(), divided([own, torch.zeros(1)])) == (4_000_000, 2_000_000, [own])
    assert ModelStepper(AdamW(), [own]).lr == automatic_rate(4_000_000)


def test_moments_are_given_whole_and_cut() -> None:
    own, alike = shard(torch.zeros(5, 2), Second()), nn.Parameter(torch.zeros(3))
    stepper = ModelStepper(AdamW(), [own, alike])
    own.grad, alike.grad = torch.ones_like(own), torch.ones_like(alike)
    stepper.optimizer.step()
    assert {*stepper.shards()} == {"0.exp_avg", "0.exp_avg_sq"}
    tensors: dict[str, Any] = {**stepper.tensors(), "0.exp_avg": torch.arange(10.0).view(5, 2)}
    stepper.load({**tensors, "0.exp_avg_sq": torch.ones(5, 2)})
    assert stepper.moments()[0]["exp_avg"].tolist() == [[6.0, 7.0], [8.0, 9.0]]
    assert stepper.moments()[1]["exp_avg"].shape == (3,)
