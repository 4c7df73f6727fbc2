"""From token losses to one number: sums, equal lengths, and Dr. GRPO's constant."""

from __future__ import annotations

import pytest
import torch

from etude.objectives.aggregation import AGGREGATIONS, token_shares

MASK = torch.tensor([[0, 1, 1, 1], [0, 1, 0, 0], [0, 0, 1, 1]], dtype=torch.bool)


@pytest.mark.parametrize("name", ["token-mean", "sequence-mean"])
def test_weights_sum_to_one(name: str) -> None:
    assert token_shares(name, MASK, 10).sum().item() == pytest.approx(1.0)


def test_by_hand() -> None:
    assert token_shares("token-mean", MASK, 10)[0].tolist() == pytest.approx([0, 1 / 6, 1 / 6, 1 / 6])
    assert token_shares("sequence-mean", MASK, 10)[0].tolist() == pytest.approx([0, 1 / 9, 1 / 9, 1 / 9])
    assert token_shares("sequence-mean", MASK, 10)[1].tolist() == pytest.approx([0, 1 / 3, 0, 0])
    assert token_shares("fixed-length", MASK, 10)[1].tolist() == pytest.approx([0, 1 / 30, 0, 0])


def test_with_equal_lengths_all_three_are_proportional_and_the_means_are_equal() -> None:
    mask = torch.tensor([[0, 1, 1], [1, 1, 0]], dtype=torch.bool)
    mean = token_shares("token-mean", mask, 8)
    torch.testing.assert_close(token_shares("sequence-mean", mask, 8), mean)
    torch.testing.assert_close(token_shares("fixed-length", mask, 8) * 8 / 2, mean)


@pytest.mark.parametrize("name", sorted(AGGREGATIONS))
def test_no_action_token_is_no_division_by_zero(name: str) -> None:
    assert not token_shares(name, torch.zeros(2, 3, dtype=torch.bool), 8).any()
