"""Turns: which one a token belongs to, in one row or in several, and what weights make of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from etude.advantages.turns import TurnFactors, Turns, TurnWeights, turn_ends, turns
from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.rows import to_batch
from etude.methods.rlvr.grpo import grpo
from etude.tasks.agents.keys import keys
from language_toys import random_batch


def said(*tokens: int) -> Segment:
    return Segment("assistant", "", list(tokens), [1] * len(tokens), [-1.0] * len(tokens), 0)


def seen(*tokens: int) -> Segment:
    return Segment("user", "", list(tokens), [0] * len(tokens), [0.0] * len(tokens))


def rows(*episodes: Episode) -> TokenBatch:
    return to_batch(episodes, 0, 1.0, torch.device("cpu"))


def episode(*segments: Segment, **changes: Any) -> Episode:
    return Episode(Problem("p", "?"), list(segments), **changes)


def test_tokens_know_their_turn() -> None:
    batch = rows(episode(seen(1, 1), said(5, 6), seen(2), said(7), said(8, 9)), episode(seen(1), said(4)))
    assert turns(batch).tolist() == [[-1, -1, 0, 0, -1, 1, 2, 2], [-1, 0, -1, -1, -1, -1, -1, -1]]


def test_turns_of_several_rows_are_counted_through() -> None:
    one = episode(seen(1), said(5), seen(2), said(6, 7), said(8))
    one.views = [[seen(1), said(5), seen(2), said(6, 7)], [seen(1, 6), said(8)]]
    batch = rows(one, episode(seen(1), said(4), seen(2), said(4)))
    assert turns(batch).tolist() == [[-1, 0, -1, 1, 1], [-1, -1, 2, -1, -1], [-1, 0, -1, 1, -1]]
    found = Turns.in_batch(batch)
    assert found.of.tolist() == [[-1, 0, -1, 1, 1], [-1, -1, 2, -1, -1], [-1, 3, -1, 4, -1]]
    assert found.following.tolist() == [1, 2, -1, 4, -1] and found.sizes.tolist() == [1, 2, 1, 1, 1]
    values = torch.arange(15.0).view(3, 5)
    assert found.means(values).tolist() == [1.0, 3.5, 7.0, 11.0, 13.0]
    assert found.spread(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))[0].tolist() == [0, 1, 0, 2, 2]


def test_turns_end_at_the_last_token_that_was_said_in_them() -> None:
    holed = said(5, 6, 7, 8)
    holed.action_mask = [1, 0, 1, 0]
    one = episode(seen(1), said(5), seen(2), said(6, 7), said(8))
    one.views = [[seen(1), said(5), seen(2), said(6, 7)], [seen(1, 6), said(8)]]
    batch = rows(episode(seen(1), holed, said(9, 9)), one)
    assert [row.nonzero()[:, 0].tolist() for row in turn_ends(batch)] == [[3, 6], [1, 4], [2]]


class Doubled(TurnFactors):
    """Twice the credit of every second turn, and one tenth for those that another follows."""

    def __call__(self, batch: TokenBatch, turns: Turns) -> tuple[Tensor, Tensor]:
        number = torch.arange(len(turns.sizes)) % 2
        return number.double() + 1, 0.1 * (turns.following >= 0).double()


def test_a_factor_and_a_bonus_for_every_turn() -> None:
    """Two episodes of two turns, paid 1 and 0: credit 1 and -1, to rounding."""
    batch = rows(*(episode(seen(1), said(5, 6), seen(2), said(7)) for _ in range(2)))
    batch = batch.replace(scores=torch.tensor([1.0, 0.0], dtype=torch.float64), rewards=batch.rewards.double())
    plain = TurnWeights(factors=Doubled(), centred=False)(batch)
    expected = torch.tensor([[0, 1.1, 1.1, 0, 2.0], [0, -0.9, -0.9, 0, -2.0]]).double()
    torch.testing.assert_close(plain, expected, atol=1e-5, rtol=0)
    mean = (1.1 + 2 - 0.9 - 2) / 4  # of turns, not of tokens
    centred = TurnWeights(factors=Doubled())(batch)
    torch.testing.assert_close(centred, (expected - mean) * batch.action_mask, atol=1e-5, rtol=0)


def test_written_rows_keep_what_they_have() -> None:
    batch = rows(episode(seen(1), said(5)), episode(seen(1), said(6)), episode(seen(1), said(7), written=True))
    batch = batch.replace(scores=torch.tensor([1.0, 0.0, 5.0]))
    found = TurnWeights(factors=Doubled())(batch)
    assert found[2].tolist() == [0.0, 0.0] and found[0, 1] > 0.5
    nothing = batch.replace(written=torch.ones(3).bool())
    assert not TurnWeights(factors=Doubled())(nothing).any()


def test_turns_are_those_of_random_episodes() -> None:
    batch = random_batch((3, 2), turns=3)
    found = Turns.in_batch(batch)
    assert len(found.sizes) == 15 and int(found.sizes.sum()) == int(batch.action_mask.sum())
    assert (found.following >= 0).sum() == 10


def test_without_factors_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"set advantages\.factors"):
        check(grpo.replace(advantages=TurnWeights()), keys)
