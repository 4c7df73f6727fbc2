"""max@k: what each completion adds to the best of k, against enumeration of every group and of every subset."""

from __future__ import annotations

from itertools import combinations, product
from math import comb
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage
from etude.advantages.order_statistics import max_at_k
from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.registry import get_method
from etude.evaluation.exact import every_group, expected_gradient, gradient
from etude.loops.bandit import Bandit
from etude.methods.rlvr.max_at_k import BestOfGroup, MaxAtK, OffPolicyMaxAtK
from etude.objectives.policy_gradient import ClippedSurrogate, PolicyGradient
from etude.policies.tabular import SoftmaxTree

PLAIN = GroupAdvantage(centre=None, scale=None)


@pytest.fixture
def bandit() -> Bandit:
    """A 4-way softmax with random rewards."""
    random = torch.Generator().manual_seed(5)
    return Bandit(SoftmaxTree(1, 4, 1, spread=1.0, seed=1), torch.rand(1, 4, generator=random, dtype=torch.float64))


def best_of(bandit: Bandit, k: int) -> Tensor:
    """E[max of k rewards], by enumeration."""
    probs, rewards = bandit.policy.probs()[0, 0], bandit.rewards[0]
    draws = [list(rows) for rows in product(range(4), repeat=k)]
    return torch.stack([probs[rows].prod() * rewards[rows].max() for rows in draws]).sum()


def estimating(part: Any) -> Method:
    """The gradient estimate sum_i r~_i s_i / n alone."""
    method = get_method("max-at-k")
    return method.replace(
        rewards=(method.rewards[0], part), advantages=PLAIN, objective=PolicyGradient(), regularizers=(), epochs=1,
        aggregation="fixed-length",
    )  # fmt: skip


def random_group(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    rewards = torch.randint(0, 5, (n,), generator=random).double() + 0.3  # ties among them
    return rewards, torch.randn(n, generator=random, dtype=torch.float64) / 3


def brute(rewards: Tensor, delta: Tensor, k: int) -> Tensor:
    """1/C(n, k) sum over subsets with i of (1 + sum of the subset's delta) times its largest reward."""
    n = len(rewards)
    found = torch.zeros(n, dtype=torch.float64)
    for subset in map(list, combinations(range(n), k)):
        found[subset] += (1 + delta[subset].sum()) * rewards[subset].max()
    return found / comb(n, k)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "k"), [(3, 2), (4, 2), (4, 3), (3, 1), (3, 3)])
def test_the_estimate_is_unbiased_for_the_gradient_of_max_at_k(bandit: Bandit, n: int, k: int) -> None:
    found = -n * expected_gradient(estimating(MaxAtK(k=k)), bandit, n)
    torch.testing.assert_close(found, gradient(best_of(bandit, k), bandit.policy), atol=1e-13, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "k"), [(3, 1), (3, 2)])
def test_leaving_one_out_stays_unbiased(bandit: Bandit, n: int, k: int) -> None:
    for baseline in ("leave-one-out", "leave-one-out-1"):
        found = -n * expected_gradient(estimating(MaxAtK(k=k, baseline=baseline)), bandit, n)
        torch.testing.assert_close(found, gradient(best_of(bandit, k), bandit.policy), atol=1e-13, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3])
def test_the_best_minus_the_second_best_is_unbiased_for_the_best_of_the_group(bandit: Bandit, n: int) -> None:
    found = -n * expected_gradient(estimating(BestOfGroup(baseline="second")), bandit, n)
    torch.testing.assert_close(found, gradient(best_of(bandit, n), bandit.policy), atol=1e-13, rtol=0)
    biased = -n * expected_gradient(estimating(BestOfGroup(baseline="mean")), bandit, n)
    assert not torch.allclose(biased, found, atol=1e-3)


def test_leave_one_out_subtracts_the_maximum_of_k_others_and_minus_one_that_of_the_rest(make_batch) -> None:
    rewards, _ = random_group(6)
    batch, k = make_batch([[1]] * 6, scores=rewards), 3
    rest = torch.zeros(6, dtype=torch.float64)
    others = torch.zeros(6, dtype=torch.float64)
    for i in range(6):
        without = [j for j in range(6) if j != i]
        rest[i] = sum(float(rewards[list(s)].max()) for s in combinations(without, k - 1)) / comb(6, k)
        others[i] = k / 6 * sum(float(rewards[list(s)].max()) for s in combinations(without, k)) / comb(5, k)
    r = brute(rewards, torch.zeros(6), k)
    for baseline, expected in (("leave-one-out", r - others), ("leave-one-out-1", r - rest)):
        found = MaxAtK(k=k, baseline=baseline).rescore(batch)
        torch.testing.assert_close(found, expected, atol=1e-13, rtol=0)


def test_only_the_best_of_a_group_is_rewarded(make_batch) -> None:
    batch = make_batch([[1]] * 6, scores=[0.25, 0.75, 0.5, 1.0, 1.0, 0.25], group=[0, 0, 0, 1, 1, 1])
    assert BestOfGroup().rescore(batch).tolist() == pytest.approx([0, 0.25, 0, 0, 0.25, 0], abs=1e-12)
    second = BestOfGroup(baseline="second").rescore(batch).tolist()
    assert second == pytest.approx([0, 0.25, 0, 0, 0, 0], abs=1e-12)


def test_k_of_one_is_reinforce_and_k_of_n_gives_everyone_the_maximum() -> None:
    rewards, _ = random_group(5)
    group = torch.zeros(5)
    torch.testing.assert_close(max_at_k(rewards, group, 1), rewards / 5, atol=1e-14, rtol=0)
    torch.testing.assert_close(max_at_k(rewards, group, 5), rewards.max().expand(5), atol=1e-14, rtol=0)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 6])
def test_off_policy_weights_are_the_sum_over_subsets(k: int) -> None:
    for seed in range(5):
        rewards, delta = random_group(6, seed)
        found = max_at_k(rewards, torch.zeros(6), k, delta)
        torch.testing.assert_close(found, brute(rewards, delta, k), atol=1e-13, rtol=0)
        still = max_at_k(rewards, torch.zeros(6), k, torch.zeros(6))
        torch.testing.assert_close(still, max_at_k(rewards, torch.zeros(6), k), atol=0, rtol=0)


def test_groups_do_not_meet_and_may_differ_in_size() -> None:
    rewards, delta = random_group(9)
    group = torch.tensor([4, 1, 4, 4, 1, 1, 4, 1, 1])
    found = max_at_k(rewards, group, 3, delta)
    for g in (1, 4):
        rows = (group == g).nonzero()[:, 0]
        torch.testing.assert_close(found[rows], brute(rewards[rows], delta[rows], 3), atol=1e-13, rtol=0)


def test_rewards_of_0_and_1_give_pass_at_k() -> None:
    rewards = torch.tensor([1.0, 0, 0, 1, 0, 0, 0], dtype=torch.float64)
    n, k, right = 7, 3, 2
    found = max_at_k(rewards, torch.zeros(n), k)
    wrong = (comb(n - 1, k - 1) - comb(n - 1 - right, k - 1)) / comb(n, k)
    torch.testing.assert_close(found, rewards * k / n + (1 - rewards) * wrong, atol=1e-14, rtol=0)


STEP = torch.randn(4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def off_policy_error(bandit: Bandit, k: int, size: float, weights: str) -> float:
    """|E[estimate] - grad max@k| where the samples come from a policy `size` steps away.

    'estimate' is sum_i r~_i s_i; the others go through the surrogate's ratio, as in training.
    """
    part = OffPolicyMaxAtK(k=k, own_ratio="once" if weights == "once" else "twice")
    behaviour = SoftmaxTree(1, 4, 1)
    behaviour.logits[0].data = bandit.policy.logits[0].data - size * STEP
    total = torch.zeros(1, 1, 4, dtype=torch.float64)
    for chance, batch, response in every_group(bandit, 3, behaviour):
        batch = batch.replace(outcomes=batch.scores, scores=MaxAtK(k=k).rescore(batch))
        said = bandit.policy.rows(0, batch.group, response, bandit.policy.table())
        worth = batch.scores if weights == "on-policy" else part.worth(batch, said)
        logp = said.logp[:, 0]
        followed = logp if weights == "estimate" else (logp - batch.behaviour_logp[:, 0]).exp()
        total += chance * gradient((worth * followed).sum(), bandit.policy)
    return float((total - gradient(best_of(bandit, k), bandit.policy)).norm())


@pytest.mark.slow
@pytest.mark.parametrize(("weights", "order"), [("estimate", 2), ("once", 2), ("twice", 1), ("on-policy", 1)])
def test_off_policy_weights_err_only_to_second_order(bandit: Bandit, weights: str, order: int) -> None:
    """Half the distance to the behaviour policy, a quarter of the error."""
    far, near = (off_policy_error(bandit, 3, size, weights) for size in (0.02, 0.01))
    assert far / near == pytest.approx(2**order, rel=0.1)


@pytest.mark.slow
def test_for_pairs_the_product_of_the_ratios_is_exact(bandit: Bandit) -> None:
    assert off_policy_error(bandit, 2, 0.3, "once") < 1e-13


@pytest.mark.slow
def test_at_the_policy_that_sampled_it_is_grpo_on_the_new_rewards(bandit: Bandit) -> None:
    ours = get_method("max-at-k")
    method = ours.replace(
        rewards=(ours.rewards[0], MaxAtK(k=2)), objective=ours.objective.replace(k=2), regularizers=()
    )  # fmt: skip
    on_policy = method.replace(objective=ClippedSurrogate())
    found, expected = (expected_gradient(m, bandit, 3) for m in (method, on_policy))
    torch.testing.assert_close(found, expected, atol=1e-13, rtol=0)
    assert float(expected.norm()) > 1e-3
    apart = SoftmaxTree(1, 4, 1, spread=1.0, seed=9)
    found, expected = (expected_gradient(m, bandit, 3, behaviour=apart) for m in (method, on_policy))
    assert float((found - expected).norm()) > 1e-3


def test_equal_rewards_teach_nothing_however_far_the_policy_has_moved(make_batch, logprobs) -> None:
    batch = make_batch([[1, 1]] * 4, scores=[1.0] * 4)
    method = get_method("max-at-k")
    batch = batch.replace(outcomes=batch.scores, scores=method.rewards[1].replace(k=2).rescore(batch))
    assert not OffPolicyMaxAtK(k=2).advantages(batch, logprobs(torch.randn(4, 2))).any()
    assert not method.advantages(batch).any()


def test_a_ratio_beyond_reach_counts_as_reach(make_batch, logprobs) -> None:
    batch = make_batch([[1]] * 4, scores=[0.0, 0.2, 0.5, 1.0])
    batch = batch.replace(outcomes=batch.scores, scores=MaxAtK(k=2).rescore(batch))
    near, far = ([[0.0], [0.0], [x], [0.0]] for x in (2.0, 50.0))
    part = OffPolicyMaxAtK(k=2, reach=1.0)
    assert torch.equal(part.advantages(batch, logprobs(near)), part.advantages(batch, logprobs(far)))


def test_parts_that_cannot_work_are_refused() -> None:
    method = get_method("max-at-k")
    with pytest.raises(ConfigError, match="best of k=9"):
        method.replace(rewards=(method.rewards[0], MaxAtK(k=9))).check()
    with pytest.raises(ConfigError, match="put that among the rewards"):
        method.replace(rewards=method.rewards[:1]).check()
    with pytest.raises(ConfigError, match=r"k = 4 anew, and rewards\.max-at-k has k = 2"):
        method.replace(rewards=(method.rewards[0], MaxAtK(k=2))).check()
