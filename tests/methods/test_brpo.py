"""BRPO: what a comparison with one other is worth over the draw of that one, by enumeration; its filter; its draws."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.registry import get_method
from etude.evaluation.exact import every_group, expected_gradient
from etude.filters.informative import BalancedGroups
from etude.loops.bandit import Bandit
from etude.policies.tabular import SoftmaxTree
from etude.rewards.preferences import AgainstOneOther

REWARDS = torch.tensor([[0.9, -0.3, 0.4, 1.7]], dtype=torch.float64)


class Against(AgainstOneOther):
    """With the one that is compared with at a place of the group."""

    place: int = 0

    def drawn(self, batch: TokenBatch) -> Tensor:
        return torch.arange(len(batch)) % int((batch.group == 0).sum()) == self.place


def bandit(rewards: Tensor = REWARDS, seed: int = 0) -> Bandit:
    return Bandit(SoftmaxTree(1, rewards.shape[1], spread=1.0, seed=seed), rewards)


def brpo(place: int, filters: Any = ()) -> Method:
    method: Any = get_method("brpo")
    return method.replace(rewards=(*method.rewards[:1], Against(place=place)), filters=filters)


def of_scores(scores: list[float], place: int | None = None) -> list[float]:
    """What one group's completions are worth; `place` None: as they are drawn."""
    given = bandit(torch.tensor([scores], dtype=torch.float64))
    policy, asked, response = given.policy, torch.zeros(len(scores)).long(), torch.arange(len(scores))
    batch = given.batch(asked, response, policy.rows(0, asked, response, policy.table().detach()))
    batch.draw = torch.arange(len(scores)) + 3
    part = AgainstOneOther() if place is None else Against(place=place)
    return part.rescore_in(batch, None).tolist()  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_over_the_draw_a_completion_is_worth_what_its_rank_says(size: int) -> None:
    """(G + 1 - 2k) / G for rank k of G, whatever the scores are that have this order; they add up to 0."""
    scores = (torch.randn(size, generator=torch.Generator().manual_seed(size)).double() * 10).tolist()
    mean = torch.tensor([of_scores(scores, place) for place in range(size)], dtype=torch.float64).mean(0)
    rank = [1 + sum(other > own for other in scores) for own in scores]
    assert mean.tolist() == pytest.approx([(size + 1 - 2 * k) / size for k in rank], abs=1e-14)
    assert float(mean.sum()) == pytest.approx(0, abs=1e-14)


def test_only_the_order_has_a_say_and_a_tie_is_lost() -> None:
    scores = [0.3, -2.0, 1.1, 0.2]
    for place in range(4):
        found = of_scores(scores, place)
        for increasing in (
            lambda r: 5 * r - 100,
            lambda r: r**3,
            lambda r: 1e-9 * r,
            lambda r: torch.tensor(r).exp().item(),
        ):
            assert of_scores([increasing(r) for r in scores], place) == found
    assert of_scores([1.0, 1.0, 2.0], 0) == [0.0, -1.0, 1.0]


def test_with_two_the_gradient_is_that_of_one_of_them_with_the_sign_of_its_comparison() -> None:
    """And over the draw, half that of both, each with the sign of its own comparison."""
    given = bandit()
    found = [expected_gradient(brpo(place), given, 2) for place in (0, 1)]
    wanted = []
    for place in (0, 1):
        total = torch.zeros_like(found[0])
        for chance, _, response in every_group(given, 2):
            own, other = int(response[1 - place]), int(response[place])
            sign = 1.0 if REWARDS[0, own] > REWARDS[0, other] else -1.0
            slope = torch.autograd.grad(given.policy.logp()[0, 0, own], given.policy.logits[0])[0]
            total -= chance * sign * slope / 2  # a mean over two completions
        wanted.append(total)
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(found[1], wanted[1], rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-13)  # neither place is another than the other
    assert float(found[0].abs().max()) > 0.01


@pytest.mark.slow
def test_the_expected_gradient_ascends_the_chance_to_win() -> None:
    """Of fresh samples: grad of E[sign(r - r')] by one that learns against one that stays, times (G - 1) / G."""
    given, size = bandit(), 3
    found = torch.stack([expected_gradient(brpo(place), given, size) for place in range(size)]).mean(0)
    probs, gap = given.policy.probs()[0, 0], REWARDS[0][:, None] - REWARDS[0]
    value = (probs[:, None] * probs.detach() * torch.where(gap > 0, 1.0, -1.0)).sum() * (size - 1) / size
    wanted = -torch.autograd.grad(value, given.policy.logits[0])[0]
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-13)


def test_every_completion_is_as_likely_to_be_the_one_and_a_batch_has_no_say() -> None:
    scores = torch.zeros(4_000)
    group = torch.arange(1_000).repeat(4)
    rows = SimpleNamespace(scores=scores, group=group, draw=torch.arange(4_000) * 7 + 1, once=lambda: None)
    drawn = AgainstOneOther().drawn(rows)  # type: ignore[arg-type]
    counts = drawn.view(4, 1_000)
    assert (counts.sum(0) == 1).all()
    assert (counts.sum(1) - 250).abs().max() < 4 * (1_000 * 0.25 * 0.75) ** 0.5
    order = torch.randperm(4_000, generator=torch.Generator().manual_seed(0))
    turned = SimpleNamespace(scores=scores, group=group[order], draw=rows.draw[order], once=lambda: None)
    assert torch.equal(AgainstOneOther().drawn(turned), drawn[order])  # type: ignore[arg-type]


def test_groups_compared_with_an_outlier_are_drawn_anew() -> None:
    """|sum A| / G > 0.6: of five, four of a kind; three wins of three and one more are 0.6, and stay."""
    each = [[1.0, 1, 1, 1, 0], [-1.0, -1, -1, -1, 0], [1.0, 1, 1, -1, 0], [1.0, 1, 1, 0, 0]]
    rows = SimpleNamespace(scores=torch.tensor(each).flatten(), group=torch.arange(4).repeat_interleave(5))
    rows.once = lambda: None
    assert BalancedGroups().weigh(rows).view(4, 5)[:, 0].tolist() == [0, 0, 1, 1]  # type: ignore[arg-type]
    assert BalancedGroups().resample and get_method("brpo").filters[0].most == 0.6


def test_one_completion_has_no_other() -> None:
    with pytest.raises(ConfigError, match=r"set experience\.size to 2 or more"):
        set_values(get_method("brpo"), {"experience.size": 1}).check()
