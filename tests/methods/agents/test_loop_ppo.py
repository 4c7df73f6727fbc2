"""LOOP: leave-one-out advantages, ratios of tokens, turns and trajectories, a clip symmetric in the logarithm."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.evaluation.exact import expected_gradient, gradient
from etude.loops.bandit import Bandit
from etude.loops.credit import credited, kept, loss
from etude.methods.agents.loop import LargeAdvantages, TrajectorySurrogate, TurnSurrogate
from etude.objectives.policy_gradient import ClippedSurrogate
from etude.policies.tabular import SoftmaxTree
from language_toys import random_batch, random_episodes

LOOP: Any = get_method("loop")
RLOO: Any = get_method("rloo")
FREE = {"low": 0.999999, "high": 1e9}
"""A clip that nothing meets."""


def moved(batch: TokenBatch, by: float = 0.2) -> TokenLogProbs:
    """A policy that is not the one that sampled."""
    place = torch.arange(batch.tokens.shape[1], dtype=torch.float64)
    row = torch.arange(len(batch), dtype=torch.float64)[:, None]
    logp = batch.behaviour_logp.double() + by * torch.sin(place + 3 * row)
    return TokenLogProbs((logp * batch.action_mask).requires_grad_())


def batch_of(sizes: tuple[int, ...] = (3, 4), turns: int = 3) -> TokenBatch:
    batch = random_batch(sizes, turns=turns)
    scores = torch.tensor([1.0, 0.0, 0.25, 1.0, 1.0, 0.5, 0.0][: len(batch)], dtype=torch.float64)
    return batch.replace(
        scores=scores, rewards=batch.rewards.double(), weights=batch.weights.double(),
        behaviour_logp=batch.behaviour_logp.double(),
    )  # fmt: skip


def test_advantages_sum_to_zero_and_are_the_centred_rewards_times_k_over_k_less_one() -> None:
    batch = batch_of()
    found = credited(LOOP.replace(filters=()), batch).advantages
    value = found.amax(1) + found.amin(1)
    for group, size in ((0, 3), (1, 4)):
        own = batch.group == group
        assert float(value[own].sum()) == pytest.approx(0, abs=1e-12)
        centred = batch.scores[own] - batch.scores[own].mean()
        torch.testing.assert_close(value[own], centred * size / (size - 1), atol=1e-12, rtol=0)


def test_the_clip_is_symmetric_in_the_logarithm() -> None:
    clip = LOOP.objective
    assert math.log(1 + clip.high) == pytest.approx(-math.log(1 - clip.low), abs=1e-15)


def row_gradients(objective: Any, batch: TokenBatch, now: TokenLogProbs, aggregation: str) -> Tensor:
    method = LOOP.replace(objective=objective, aggregation=aggregation, filters=())
    return torch.autograd.grad(loss(method, credited(method, batch), now, 9), now.logp)[0]


def test_on_policy_tokens_have_rloos_gradient_of_the_mean_over_tokens() -> None:
    batch = batch_of()
    same = TokenLogProbs((batch.behaviour_logp * batch.action_mask).requires_grad_())
    found = row_gradients(LOOP.objective, batch, same, "sequence-mean")
    torch.testing.assert_close(found, row_gradients(RLOO.objective, batch, same, "sequence-mean"), atol=1e-12, rtol=0)
    whole = row_gradients(TrajectorySurrogate(low=0.1 / 1.1, high=0.1), batch, same, "sequence-mean")
    summed = row_gradients(RLOO.objective, batch, same, "fixed-length")
    torch.testing.assert_close(whole, summed * 9, atol=1e-12, rtol=0)


@pytest.mark.parametrize("objective", [TurnSurrogate(**FREE), TrajectorySurrogate(**FREE)], ids=["turn", "trajectory"])
def test_ratios_are_those_of_the_unit(objective: Any) -> None:
    batch = batch_of()
    now = moved(batch)
    found = objective.log_ratio(batch, now)
    difference = (now.logp - batch.behaviour_logp).detach()
    for row, e in enumerate(batch.episodes):
        begin, places = 0, []
        for s in e.segments:
            if any(s.action_mask):
                places.append(range(begin, begin + len(s.tokens)))
            begin += len(s.tokens)
        units = places if isinstance(objective, TurnSurrogate) else [[t for p in places for t in p]]
        for unit in units:
            expected = difference[row, list(unit)].sum()
            torch.testing.assert_close(found[row, list(unit)].detach(), expected.expand(len(unit)), atol=1e-12, rtol=0)
    assert not found[~batch.action_mask].any()


def test_a_trajectorys_loss_is_one_ratio_and_one_clip() -> None:
    batch = batch_of()
    method = LOOP.replace(objective=TrajectorySurrogate(low=0.1 / 1.1, high=0.1), filters=())
    batch, now = credited(method, batch), moved(batch)
    found = loss(method, batch, now, 9)
    ratio = ((now.logp - batch.behaviour_logp) * batch.action_mask).sum(1).exp()
    a = batch.advantages.amax(1) + batch.advantages.amin(1)
    expected = -torch.minimum(ratio * a, ratio.clamp(1 / 1.1, 1.1) * a).mean()
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_one_turn_has_one_ratio_at_both_levels() -> None:
    batch = batch_of(turns=1)
    now = moved(batch)
    torch.testing.assert_close(
        TurnSurrogate().log_ratio(batch, now), TrajectorySurrogate().log_ratio(batch, now), atol=1e-12, rtol=0
    )


def test_a_trajectory_of_several_rows_has_one_ratio() -> None:
    whole = random_episodes((2,), turns=2)
    for e in whole:
        e.views = [e.segments[:2], [e.segments[0], e.segments[3]]]
    batch = to_batch(whole, 0, 1.0, torch.device("cpu"))
    batch = batch.replace(behaviour_logp=batch.behaviour_logp.double())
    now = moved(batch)
    rows = ((now.logp - batch.behaviour_logp) * batch.action_mask).sum(1)
    found = TrajectorySurrogate().log_ratio(batch, now)
    for n in (0, 2):
        for row in (n, n + 1):
            mask = batch.action_mask[row]
            torch.testing.assert_close(found[row][mask], (rows[n] + rows[n + 1]).expand(int(mask.sum())))


def test_the_unclipped_trajectory_form_is_unbiased_off_policy() -> None:
    """Two steps of two choices, sampled by another policy: the gradient of E[r], by enumeration."""
    policy = SoftmaxTree(1, 2, 2, spread=0.8, seed=9)
    bandit = Bandit(policy, torch.tensor([[0.0, 1.0, 0.3, -0.5]], dtype=torch.float64))
    old = SoftmaxTree(1, 2, 2, spread=0.5, seed=8)
    method = LOOP.replace(
        objective=TrajectorySurrogate(low=0.999999999, high=1e12), filters=(), epochs=1, minibatches=1
    )
    found = -expected_gradient(method, bandit, 2, behaviour=old)
    ahead = (policy.probs()[0, 0] * bandit.rewards[0]).sum()
    # E[rho_i (r_i - r_j) d log pi_i] = grad E_pi[r] - E_old[r_j] grad 1, and the second is 0
    torch.testing.assert_close(found, gradient(ahead, policy), atol=1e-10, rtol=0)


def test_equal_groups_are_left_out_and_small_advantages_too() -> None:
    batch = batch_of((3, 4))
    scores = torch.tensor([0.5, 0.5, 0.5, 1.0, 0.5, 0.496, 0.0], dtype=torch.float64)
    batch = kept(LOOP, batch.replace(scores=scores))
    assert len(batch) == 7  # they count in the means of the others
    left = credited(LOOP, batch)
    values = left.advantages.abs().amax(1)
    assert (values >= 0.01).all()
    whole = credited(LOOP.replace(filters=()), batch)
    small = whole.advantages.abs().amax(1) < 0.01
    assert small[:3].all() and len(left) == 7 - int(small.sum())
    assert LargeAdvantages().weigh(whole).tolist() == (~small).double().tolist()
    equal = credited(LOOP, kept(LOOP, batch.replace(scores=torch.ones(7).double())))
    assert not len(equal)


def test_the_clip_of_a_token_is_that_of_ppo() -> None:
    batch = credited(LOOP.replace(filters=()), batch_of())
    now = moved(batch, 0.5)
    found = LOOP.objective(batch, now)
    ratio = (now.logp - batch.behaviour_logp).exp()
    expected = torch.maximum(-ratio * batch.advantages, -ratio.clamp(1 / 1.1, 1.1) * batch.advantages)
    torch.testing.assert_close(found[batch.action_mask], expected[batch.action_mask], atol=1e-12, rtol=0)
    assert isinstance(LOOP.objective, ClippedSurrogate)
    assert LOOP.objective.metrics(batch, now)["clip_fraction"][batch.action_mask].mean() > 0.1
