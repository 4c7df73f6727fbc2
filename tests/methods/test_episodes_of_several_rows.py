"""An episode that is cut into two rows counts once in every statistic of its group, and its tokens weigh as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.advantages.group import BatchMean, LeaveOneOut
from etude.advantages.order_statistics import MaclaurinAdvantage
from etude.advantages.returns import RewardToGo
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.episodes import Episode, Problem, Segment
from etude.core.rows import last_action
from etude.methods.rlvr.agro import GenerationConsistency
from etude.methods.rlvr.gdro_grpo import RolloutGDRO
from etude.methods.rlvr.hpt import PerformanceGate
from etude.methods.rlvr.kimi_k1_5 import MeanBaseline
from etude.methods.rlvr.lens import CalibratedReward
from etude.methods.rlvr.max_at_k import BestOfGroup, MaxAtK, OffPolicyMaxAtK
from etude.methods.rlvr.oblr_po import GradientWeightedBaseline
from etude.methods.rlvr.pacs import OutcomePrediction
from etude.methods.rlvr.rapid import ReweightedGroups

SCORES = [1.0, 0.0, 0.25, 1.0, 0.0, 0.0, 1.0]
GROUP = [0, 0, 0, 1, 1, 1, 1]
ROWS = [0, 0, 1, 2, 3, 4, 5, 5, 6]
"""Rows of the cut batch by the episode that they show: number 0 and number 5 have two."""


def whole(make_batch: Callable[..., TokenBatch]) -> TokenBatch:
    """Seven episodes of two problems, a row each, of four sampled tokens."""
    draw = torch.Generator().manual_seed(1)
    scores = torch.tensor(SCORES)
    said = -torch.rand(len(SCORES), 5, generator=draw)
    batch = make_batch(
        [[0, 1, 1, 1, 1]] * len(SCORES), scores=scores, solved=scores >= 1, group=GROUP, behaviour_logp=said,
        reference_logp=said + 0.3 * torch.randn(said.shape, generator=draw), outcomes=scores,
        episodes=[Episode(Problem(f"p{g}", ""), [Segment("assistant")], g) for g in GROUP],
        episode=torch.arange(len(SCORES)),
    )  # fmt: skip
    return paid(batch)


def paid(batch: TokenBatch) -> TokenBatch:
    """With each row's score on its last action token."""
    last = last_action(batch)[:, None]
    return batch.replace(rewards=torch.zeros_like(batch.rewards).scatter(1, last, batch.scores[:, None]))


def cut(batch: TokenBatch) -> TokenBatch:
    """The same episodes, two of them as two rows: tokens 1 and 2 are the first's actions, 3 and 4 the second's."""
    rows, mask = batch.rows(torch.tensor(ROWS)), batch.action_mask[torch.tensor(ROWS)].clone()
    for first in (0, 6):
        mask[first, 3:], mask[first + 1, :3] = False, False
    return paid(rows.replace(action_mask=mask))


def policy(batch: TokenBatch) -> TokenLogProbs:
    """A policy that has moved, the same on the same tokens."""
    place = torch.arange(5, dtype=torch.float64)
    return TokenLogProbs((batch.behaviour_logp + 0.2 * torch.sin(place + 3 * batch.scores[:, None])).requires_grad_())


def merged(values: Tensor) -> Tensor:
    """Tokens of the cut batch where they stand in the whole one."""
    return values.new_zeros(len(SCORES), values.shape[1]).index_add(0, torch.tensor(ROWS), values)


PER_ROW: dict[str, Callable[[TokenBatch], Tensor]] = {
    "agro": lambda b: GenerationConsistency(beta=0.5).coefficients(b, policy(b)),
    "agro extra": lambda b: GenerationConsistency(beta=0.5, extra=1.0).coefficients(b, policy(b)),
    "rapid": lambda b: ReweightedGroups(eta=1.2).coefficients(b, policy(b)),
    "rapid scaled": lambda b: ReweightedGroups(eta=1.2, scale="group", normalised=True).coefficients(b, policy(b)),
    "pacs": lambda b: OutcomePrediction(beta=0.5).score(b, policy(b)),
    "pacs standardized": lambda b: OutcomePrediction(compared="standardized").score(b, policy(b)),
    "pacs likelihood": lambda b: OutcomePrediction(implicit="likelihood").score(b, policy(b)),
    "lens": lambda b: CalibratedReward().rescore(b),
    "hpt": lambda b: PerformanceGate(gamma=0.4).bind().weigh(b),
    "hpt soft": lambda b: PerformanceGate(rl=(0.0, 0.5, 1.0), sft=(1.0, 0.5, 0.0)).bind().weigh(b),
    "max-at-k": lambda b: MaxAtK(k=2).rescore(b),
    "max-at-k others": lambda b: MaxAtK(k=2, baseline="leave-one-out").rescore(b),
    "max-at-k subsets": lambda b: MaxAtK(k=2, baseline="leave-one-out-1").rescore(b),
    "best": lambda b: BestOfGroup(baseline="second").rescore(b),
    "best mean": lambda b: BestOfGroup().rescore(b),
}
PER_TOKEN: dict[str, Callable[[TokenBatch], Tensor]] = {
    "kimi-k1-5": lambda b: MeanBaseline()(b),
    "maclaurin": lambda b: MaclaurinAdvantage()(b),
    "oblr-po": lambda b: GradientWeightedBaseline(norm="uniform")(b),
    "reinforce": lambda b: RewardToGo(baseline=BatchMean())(b),
    "reinforce others": lambda b: RewardToGo(baseline=LeaveOneOut())(b),
    "max-at-k off policy": lambda b: OffPolicyMaxAtK(k=2).advantages(b, policy(b)),
}


@pytest.mark.parametrize("name", PER_ROW)
def test_rows_of_an_episode_share_what_it_has_among_others(make_batch, name: str) -> None:
    batch, found = whole(make_batch), PER_ROW[name]
    torch.testing.assert_close(found(cut(batch)), found(batch)[torch.tensor(ROWS)], atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", PER_TOKEN)
def test_tokens_have_the_credit_of_the_uncut_episode(make_batch, name: str) -> None:
    batch, found = whole(make_batch), PER_TOKEN[name]
    torch.testing.assert_close(merged(found(cut(batch))), found(batch), atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    "objective",
    [GenerationConsistency(beta=0.5), ReweightedGroups(), OutcomePrediction(), OutcomePrediction(balanced=False)],
    ids=["agro", "rapid", "pacs", "pacs unbalanced"],
)
def test_every_token_has_the_gradient_of_the_uncut_episode(make_batch, objective: Any) -> None:
    def gradient(batch: TokenBatch) -> Tensor:
        now = policy(batch)
        loss = objective(batch, now)
        loss = loss * batch.action_mask if loss.dim() > 1 else loss
        return torch.autograd.grad(loss.sum(), now.logp)[0] * batch.action_mask

    batch = whole(make_batch)
    torch.testing.assert_close(merged(gradient(cut(batch))), gradient(batch), atol=1e-12, rtol=0)


def test_the_price_of_completions_counts_episodes(make_batch) -> None:
    """Seven completions of two problems are 3.5 a problem, 0.5 below the price's 4; nine rows would be 0.5 above."""
    part = RolloutGDRO(size=4, price_rate=0.1).bind()
    batch = cut(whole(make_batch))
    part.after_update(batch.replace(row_loss=torch.zeros_like(batch.scores)))
    assert part.state["price"] == pytest.approx(-0.05)
