"""Credit for segments: against loops over tokens, as sums that telescope, and its expectation by enumeration."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from etude.advantages.returns import gae, rewards_to_go
from etude.advantages.segments import CriticValues, SampledValues, SegmentAdvantage, segment_advantages
from etude.core.batches import TokenBatch
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.evaluation.exact import gradient
from etude.policies.tabular import SoftmaxTree
from etude.rewards.steps import EveryTokens, LowProbabilityCuts, MarkedSteps, Splitter

Make = Callable[..., TokenBatch]
NAN = math.nan


def by_hand(rewards: list[float], values: list[float], mask: list[int], after: float) -> list[float]:
    """Token by token: the segment's rewards and the value at its end less that at its beginning."""
    begins = [t for t, v in enumerate(values) if mask[t] and not math.isnan(v)]
    found = [0.0] * len(rewards)
    for begin, end in zip(begins, [*begins[1:], len(rewards)]):
        closing = values[end] if end < len(rewards) else after
        for t in range(begin, end):
            found[t] = mask[t] * (sum(rewards[begin:end]) + closing - values[begin])
    return found


@pytest.mark.parametrize("seed", range(5))
def test_segments_against_loops(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    rewards, values = torch.rand(2, 6, 9, generator=random, dtype=torch.float64)
    mask = torch.rand(6, 9, generator=random) < 0.8
    values = torch.where(torch.rand(6, 9, generator=random) < 0.4, values, NAN)
    after, paid = torch.rand(6, generator=random, dtype=torch.float64), rewards * mask
    found = segment_advantages(paid, values, mask, after)
    rows = zip(paid.tolist(), values.tolist(), mask.int().tolist(), after.tolist())
    expected = torch.tensor([by_hand(*row) for row in rows], dtype=torch.float64)
    assert (found != 0).any()
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_advantages_of_segments_sum_to_the_reward_less_the_first_value(make_batch: Make) -> None:
    batch = make_batch([[0, 1, 1, 1, 1, 1]], rewards=torch.tensor([[0, 0, 0, 0, 0, 0.7]], dtype=torch.float64))
    batch.sampled_values = torch.tensor([[NAN, 0.2, NAN, 0.9, 0.4, NAN]], dtype=torch.float64)
    found = SegmentAdvantage()(batch)[0]
    assert found[1] == found[2] and found[4] == found[5]
    each = found[[1, 3, 4]]
    torch.testing.assert_close(each, torch.tensor([0.7, -0.5, 0.3], dtype=torch.float64), atol=1e-12, rtol=0)
    assert float(each.sum()) == pytest.approx(0.7 - 0.2, abs=1e-12)
    batch.sampled_values[0, 1] = NAN  # nobody knows the first: tokens before the second get nothing
    found = SegmentAdvantage()(batch)[0]
    assert found[:3].tolist() == [0, 0, 0]
    assert float(found[[3, 4]].sum()) == pytest.approx(0.7 - 0.9, abs=1e-12)
    assert not SegmentAdvantage()(batch.replace(sampled_values=None)).any()
    assert not SegmentAdvantage()(batch.replace(written=torch.tensor([True]))).any()
    assert SegmentAdvantage().returns(batch) is None


def test_one_segment_is_the_return_less_a_baseline_and_single_tokens_are_temporal_differences(make_batch: Make) -> None:
    random = torch.Generator().manual_seed(1)
    rewards, values = torch.rand(2, 3, 5, generator=random, dtype=torch.float64)
    batch = make_batch(torch.ones(3, 5), rewards=rewards, values=values)
    part = SegmentAdvantage(values=CriticValues())
    one = part(batch.replace(step=torch.zeros(3, 5, dtype=torch.long)))
    torch.testing.assert_close(one, (rewards.sum(1) - values[:, 0])[:, None].expand(3, 5))
    each = part(batch.replace(step=torch.arange(5).expand(3, 5)))
    torch.testing.assert_close(each, gae(rewards, values, batch.action_mask, 1.0, 0.0))
    returns = part.returns(batch)
    assert returns is not None
    torch.testing.assert_close(returns, rewards_to_go(rewards, batch.action_mask, 1.0))


def test_values_go_on_behind_what_an_environment_stopped(make_batch: Make) -> None:
    batch = make_batch([[1, 1], [1, 1]], values=[[0.5, 0.0], [0.5, 0.0]], truncated=[True, False])
    batch = batch.replace(step=torch.zeros(2, 2, dtype=torch.long), next_values=torch.tensor([0.25, 0.25]).double())
    assert SegmentAdvantage(values=CriticValues())(batch).tolist() == [[-0.25, -0.25], [-0.5, -0.5]]


# Expectations, by enumeration: three tokens of two


def tree() -> tuple[SoftmaxTree, Tensor]:
    policy = SoftmaxTree(1, 2, 3, spread=1.0, seed=3)
    return policy, torch.tensor([0.3, 1.0, 0.0, 0.2, 0.9, 0.0, 1.0, 0.6], dtype=torch.float64)


def scores(policy: SoftmaxTree) -> Tensor:
    """[Y, L, N, V] gradient of the log-probability of every token of every response."""
    found = [gradient(policy.token_logp()[0, 0, y, t], policy)[0] for y in range(8) for t in range(3)]
    return torch.stack(found).view(8, 3, *found[0].shape)


def alike(policy: SoftmaxTree, y: int, count: int) -> list[int]:
    """The responses that begin as y does."""
    return [z for z in range(8) if torch.equal(policy.tokens[z, :count], policy.tokens[y, :count])]


def of_rows(policy: SoftmaxTree, splitter: Splitter, make_batch: Make) -> list[list[int]]:
    """Where the segments of each response begin."""
    batch = make_batch(policy.mask, behaviour_logp=policy.token_logp().detach()[0, 0])
    step = splitter.step(batch, None)  # type: ignore[arg-type]  # asks no tokenizer
    return [[row.index(n) for n in sorted(set(row)) if n >= 0] for row in step.tolist()]


def expected(policy: SoftmaxTree, rewards: Tensor, begins: list[list[int]]) -> Tensor:
    """E[sum_t A_t grad log pi_t] over every response and every fresh one of each of its beginnings."""
    chance, slope = policy.probs()[0, 0].detach(), scores(policy)
    total = torch.zeros_like(slope[0, 0])
    for y in range(8):
        fresh = [alike(policy, y, t) for t in begins[y]]
        for chosen in product(*fresh):
            weight = chance[y]
            values = torch.full((1, 3), NAN, dtype=torch.float64)
            for t, z, others in zip(begins[y], chosen, fresh):
                weight = weight * chance[z] / chance[others].sum()
                values[0, t] = rewards[z]
            paid = torch.tensor([[0.0, 0.0, float(rewards[y])]], dtype=torch.float64)
            found = segment_advantages(paid, values, torch.ones(1, 3).bool(), torch.zeros(1).double())[0]
            total += weight * (found[:, None, None] * slope[y]).sum(0)
    return total


@pytest.mark.first("2")
@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_policy_gradient_is_unbiased_with_one_fresh_completion_of_each_beginning(
    length: int, make_batch: Make
) -> None:
    policy, rewards = tree()
    begins = of_rows(policy, EveryTokens(length=length), make_batch)
    assert begins[0] == list(range(0, 3, length))
    exact = gradient((policy.probs()[0, 0] * rewards).sum(), policy)[0]
    torch.testing.assert_close(expected(policy, rewards, begins), exact, atol=1e-12, rtol=0)


def test_and_with_steps_that_end_at_a_separator() -> None:
    policy, rewards = tree()
    begins = [[0, *(t + 1 for t in range(2) if row[t] == 0)] for row in policy.tokens.tolist()]
    assert len({tuple(b) for b in begins}) == 4
    exact = gradient((policy.probs()[0, 0] * rewards).sum(), policy)[0]
    torch.testing.assert_close(expected(policy, rewards, begins), exact, atol=1e-12, rtol=0)


def test_without_a_value_at_the_prompt_the_first_tokens_learn_nothing_and_later_ones_the_same(make_batch: Make) -> None:
    policy, rewards = tree()
    begins = [[1, 2]] * 8
    exact = gradient((policy.probs()[0, 0] * rewards).sum(), policy)[0]
    found = expected(policy, rewards, begins)
    first = int(policy.nodes[0, 0])
    later = [n for n in range(policy.count) if n != first]
    assert not found[first].any() and exact[first].abs().max() > 0.01
    torch.testing.assert_close(found[later], exact[later], atol=1e-12, rtol=0)


def test_cuts_that_go_by_the_token_behind_them_bias_the_gradient(make_batch: Make) -> None:
    """Whether a segment ends before a token depends on that token: its own baseline knows it."""
    policy, rewards = tree()
    begins = of_rows(policy, LowProbabilityCuts(below=0.4, every=1), make_batch)
    assert len({tuple(b) for b in begins}) > 2
    exact = gradient((policy.probs()[0, 0] * rewards).sum(), policy)[0]
    assert (expected(policy, rewards, begins) - exact).abs().max() > 0.01


def test_what_cannot_work_is_refused() -> None:
    grpo = get_method("grpo")
    with pytest.raises(ConfigError, match="samples nothing to find out"):
        grpo.replace(advantages=SegmentAdvantage()).check()
    with pytest.raises(ConfigError, match="no critic learns"):
        grpo.replace(advantages=SegmentAdvantage(values=CriticValues())).check()
    ppo = get_method("ppo").replace(advantages=SegmentAdvantage(values=CriticValues()))
    with pytest.raises(ConfigError, match="no part says where they begin"):
        ppo.check()
    ppo.replace(rewards=(*ppo.slots()["rewards"], MarkedSteps())).check()
    with pytest.raises(ConfigError, match="keep one of them"):
        ppo.replace(rewards=(*ppo.slots()["rewards"], MarkedSteps(), MarkedSteps(splitter=EveryTokens()))).check()
    assert SampledValues().objection(get_method("spo")) is None
