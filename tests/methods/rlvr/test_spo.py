"""SPO: the mask over unlikely tokens, segments by cut points in a run, the release's base, its limiting cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.advantages.segments import CriticValues, SegmentAdvantage
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.edit import set_values
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.learners.token import TokenCritic
from etude.loops.credit import scored
from etude.loops.losses import with_factors, with_shares
from etude.methods.rlvr.spo import UnsureTokens
from etude.rewards.outcome import TaskReward
from etude.rewards.steps import EveryTokens, LowProbabilityCuts, MarkedSteps
from language_toys import Toy, make_loop, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")
Make = Callable[..., TokenBatch]
SPO: Any = get_method("spo")


def shares(batch: TokenBatch, **changes: Any) -> Tensor:
    """[B, T] of the tokens of a minibatch in the objective."""
    method = SPO.replace(**changes)
    batch = with_shares(method, batch, 10)
    policy = TokenLogProbs(torch.zeros_like(batch.behaviour_logp))
    found = with_factors(method, batch, [part(batch, policy) for part in method.token_weights]).objective_shares
    assert found is not None
    return found


def chances(make_batch: Make, **changes: Any) -> TokenBatch:
    p = torch.tensor([[1.0, 0.5, 0.95, 0.899], [1.0, 0.9, 0.2, 1.0]], dtype=torch.float64)
    return make_batch([[0, 1, 1, 1], [0, 1, 1, 0]], behaviour_logp=p.log(), **changes)


def test_the_mean_is_over_tokens_that_were_unlikely(make_batch: Make) -> None:
    third = 1 / 3
    found = shares(chances(make_batch))
    expected = torch.tensor([[0, third, 0, third], [0, 0, third, 0]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    weighted = shares(chances(make_batch, weights=[1.0, 3.0]))
    assert float(weighted.sum()) == pytest.approx((3 * 1 + 2 * 3) / 5)  # a filter's weights go on counting
    assert float(weighted[1, 2] / weighted[0, 1]) == pytest.approx(3)


def test_above_one_nothing_is_masked_and_without_unlikely_tokens_there_is_no_loss(make_batch: Make) -> None:
    """Identity (4) of the row: PPO's loss."""
    batch = chances(make_batch)
    plain = with_shares(SPO, batch, 10).shares
    assert plain is not None
    torch.testing.assert_close(shares(batch, token_weights=(UnsureTokens(below=1.01),)), plain * batch.action_mask)
    sure = batch.replace(behaviour_logp=torch.zeros_like(batch.behaviour_logp))
    found = shares(sure)
    assert not found.any() and bool(found.isfinite().all())
    written = shares(batch.replace(written=torch.tensor([False, True])))
    assert float(written[1, 1]) > 0 and float(written[0, 2]) == 0


def attempts(base: str = "prompt", every: int = 2, below: float = 0.3) -> TokenBatch:
    """Credited completions of a model that is sure of some tokens, at segments by cut points."""
    splitter = LowProbabilityCuts(below=below, every=every, base=base)  # type: ignore[arg-type]
    method = SPO.replace(experience=SPO.experience.replace(size=4, rollouts=2, splitter=splitter))
    policy, task = random_policy(), Toy(max_tokens=10)
    context = Context(task, policy, Stream(5), max_tokens=10)
    episodes = method.experience.collect(task.problems("train"), context)
    batch = scored(method, to_batch(episodes, 0, 0.6, policy.device), context)
    return batch.replace(advantages=SegmentAdvantage()(batch))


def segments(batch: TokenBatch, row: int) -> list[float]:
    """The advantage of each segment of a row, as its tokens have it."""
    assert batch.step is not None and batch.advantages is not None
    found = []
    for number in range(int(batch.step[row].max()) + 1):
        own = batch.advantages[row][batch.step[row] == number]
        assert bool((own == own[0]).all())
        found.append(float(own[0]))
    return found


@pytest.mark.parametrize("every", [1, 2, 99])
def test_advantages_telescope_from_the_prompt(every: int) -> None:
    """Identity (1) of the row; one segment is REINFORCE with a sampled baseline."""
    batch = attempts(every=every)
    assert batch.sampled_values is not None and batch.step is not None
    counts = set()
    for row in range(len(batch)):
        first = int(batch.action_mask[row].int().argmax())
        each = segments(batch, row)
        counts.add(len(each))
        assert sum(each) == pytest.approx(float(batch.scores[row] - batch.sampled_values[row, first]), abs=1e-5)
        assert int(batch.step[row, first]) == 0
    assert counts == {1} if every == 99 else len(counts) > 2


def test_the_release_begins_at_the_first_cut() -> None:
    batch = attempts("first-cut", below=0.05)
    assert batch.sampled_values is not None and batch.step is not None and batch.advantages is not None
    before = 0
    for row in range(len(batch)):
        own = batch.action_mask[row]
        cuts = own & (batch.behaviour_logp[row] < math.log(0.05))
        if not bool(cuts.any()):
            assert not batch.advantages[row].any() and int(batch.step[row].max()) == -1
            continue
        first = int(cuts.int().argmax())
        earlier = own & (torch.arange(len(own)) < first)
        before += int(earlier.sum())
        assert not batch.advantages[row][earlier].any()
        total = float(batch.scores[row] - batch.sampled_values[row, first])
        assert sum(segments(batch, row)) == pytest.approx(total, abs=1e-5)
    assert before > 3


def test_single_tokens_without_a_mask_are_sampled_values_of_every_token() -> None:
    """VinePPO's credit: V of the text with a token less V of the text before it."""
    method = SPO.replace(experience=SPO.experience.replace(size=2, rollouts=2, splitter=EveryTokens(length=1)))
    policy, task = random_policy(), Toy(max_tokens=5)
    context = Context(task, policy, Stream(5), max_tokens=5)
    episodes = method.experience.collect(task.problems("train"), context)
    batch = scored(method, to_batch(episodes, 0, 0.6, policy.device), context)
    assert batch.sampled_values is not None
    found = SegmentAdvantage()(batch)
    for row in range(len(batch)):
        own = batch.action_mask[row]
        worth = [*batch.sampled_values[row][own].tolist(), float(batch.scores[row])]
        expected = [b - a for a, b in pairwise(worth)]
        assert found[row][own].tolist() == pytest.approx(expected, abs=1e-5)
        assert len(expected) > 1


@pytest.mark.slow
def test_a_critic_can_say_what_segments_are_worth() -> None:
    method = SPO.replace(
        experience=Groups(size=4), rewards=(TaskReward(), MarkedSteps(splitter=LowProbabilityCuts(every=2))),
        advantages=SegmentAdvantage(values=CriticValues()), critic=TokenCritic(), problems=3, minibatches=1,
    )  # fmt: skip
    method.check()
    metrics = make_loop(method, Toy()).step().metrics
    assert metrics["rows"] == 12 and "forked_tokens" not in metrics
    assert metrics["value_loss"] > 0 and metrics["weights_moved"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("base", ["prompt", "first-cut"])
def test_the_loop_trains_and_keeps_few_tokens(base: str) -> None:
    method = set_values(SPO, {"experience.splitter.base": base, "experience.rollouts": 2, "problems": 3})
    metrics = make_loop(method, Toy()).step().metrics
    assert metrics["rows"] == 24 and 0 < metrics["tokens_kept/unsure-tokens"] < 1
    assert metrics["logp_gap"] < 1e-4 and metrics["regularizer/kl-to-reference"] >= 0
    assert metrics["weights_moved"] > 0
