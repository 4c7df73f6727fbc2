"""LENS: the calibrated reward is a likelihood's gradient, and groups without a right answer teach by it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage
from etude.core.batches import TokenBatch
from etude.core.method import Method
from etude.core.registry import get_method
from etude.evaluation.exact import expected_gradient, gradient
from etude.loops.bandit import Bandit
from etude.methods.rlvr.lens import CalibratedReward, CentredNegatives, WeighNegativeGroups, calibrated
from etude.policies.tabular import SoftmaxTree


@pytest.fixture
def bandit() -> Bandit:
    rewards = torch.tensor([[0.0, 1.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    return Bandit(SoftmaxTree(1, 5, 1, spread=0.7, seed=4), rewards)


def scored(batch: TokenBatch) -> TokenBatch:
    return batch.replace(scores=CalibratedReward().rescore(batch))


def advantages(batch: TokenBatch) -> Tensor:
    return get_method("lens").advantages(scored(batch))[:, -1]


def test_the_calibrated_reward_gives_the_gradient_of_the_value_and_of_the_likelihood(bandit: Bandit) -> None:
    """J = E[r] - E[(1-r) w(pi/D)], w(z) = log(1/(1-z))/z - 1, for a constant D above every probability."""
    r, frozen = bandit.rewards[0], bandit.policy.probs()[0, 0].detach()
    bound = 1.3 * frozen.max()

    def value(probs: Tensor) -> Tensor:
        z = probs / bound
        return (probs * r).sum() - (probs * (1 - r) * (-torch.log1p(-z) / z - 1)).sum()

    def likelihood(probs: Tensor) -> Tensor:
        z = probs / bound
        return (frozen * (r * z.log() + (1 - r) * torch.log1p(-z))).sum()

    def reward(probs: Tensor) -> Tensor:
        return (frozen * calibrated(r, frozen, bound) * probs.log()).sum()

    expected = gradient(value(bandit.policy.probs()[0, 0]), bandit.policy)
    for other in (likelihood, reward):
        found = gradient(other(bandit.policy.probs()[0, 0]), bandit.policy)
        torch.testing.assert_close(found, expected, atol=1e-13, rtol=0)


def test_confidence_and_difficulty_are_those_of_the_paper(make_batch) -> None:
    """c = exp(mean log-probability); D = 1 / mean(r / c) where that is more than 2 max c, else 2 max c."""
    logp = [[0.0, -1.0, -3.0], [0.0, -2.0, 0.0], [0.0, -0.5, -0.5], [0.0, -4.0, -4.0]]
    mask = [[0, 1, 1], [0, 1, 0], [0, 1, 1], [0, 1, 1]]
    c = torch.tensor([-2.0, -2.0, -0.5, -4.0], dtype=torch.float64).exp()
    wrong = make_batch(mask, behaviour_logp=torch.tensor(logp), scores=[0.0] * 4)
    torch.testing.assert_close(scored(wrong).scores, -c / 4 / (2 * c.max() - c), atol=1e-14, rtol=0)
    right = torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    mixed = make_batch(mask, behaviour_logp=torch.tensor(logp), scores=right)
    d = 1 / ((1 / c[2]) / 4)
    assert d > 2 * c.max()
    expected = right - (1 - right) * c / 4 / (d - c)
    torch.testing.assert_close(scored(mixed).scores, expected, atol=1e-14, rtol=0)
    unsure = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)  # 1 / mean(r / c) = 4 exp(-4) is less
    found = scored(make_batch(mask, behaviour_logp=torch.tensor(logp), scores=unsure)).scores
    torch.testing.assert_close(found, unsure - (1 - unsure) * c / 4 / (2 * c.max() - c), atol=1e-14, rtol=0)


@pytest.mark.parametrize("seed", range(20))
def test_wrong_answers_lose_at_most_one_over_g_and_stay_below_every_right_one(make_batch, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    size = int(torch.randint(2, 9, (), generator=random))
    right = torch.zeros(size, dtype=torch.float64)
    right[: 1 + seed % (size - 1)] = 1.0
    logp = -3 * torch.rand(size, 3, generator=random, dtype=torch.float64)
    batch = make_batch([[1, 1, 1]] * size, behaviour_logp=logp, scores=right)
    found = scored(batch).scores
    assert bool((found[right == 1] == 1).all())
    assert bool(((found[right == 0] < 0) & (found[right == 0] >= -1 / size - 1e-15)).all())
    given = advantages(batch)
    assert bool((given[right == 1] > 0).all())
    assert bool((given[right == 0] < 0).all())


def test_a_group_without_a_right_answer_pushes_down_what_it_was_sure_of(make_batch) -> None:
    logp = torch.tensor([[-0.1], [-2.0], [-0.7], [-1.1]])
    batch = make_batch([[1]] * 4, behaviour_logp=logp, scores=[0.0] * 4)
    found = advantages(batch)
    assert float(found.sum()) == pytest.approx(0, abs=1e-15)
    assert logp[:, 0].argsort().tolist() == found.argsort(descending=True).tolist()
    worth = scored(batch).scores
    torch.testing.assert_close(found, worth - worth.mean(), atol=1e-15, rtol=0)


def test_equal_confidences_teach_nothing_and_neither_does_a_group_that_is_all_right(make_batch) -> None:
    for score in (0.0, 1.0):
        batch = make_batch([[1]] * 4, behaviour_logp=torch.full((4, 1), -0.3), scores=[score] * 4)
        assert not advantages(batch).any()
    batch = make_batch([[1]] * 4, behaviour_logp=-torch.rand(4, 1), scores=[1.0] * 4)
    assert not advantages(batch).any()


def test_negative_groups_weigh_alpha(make_batch) -> None:
    batch = make_batch([[1]] * 6, scores=[-0.1, -0.2, 1.0, -0.3, 0.0, 0.0], group=[0, 0, 1, 1, 2, 2])
    assert get_method("lens").filters[0].weigh(batch).tolist() == [0.25, 0.25, 1.0, 1.0, 0.25, 0.25]


def test_mixed_groups_are_scaled_as_in_grpo(make_batch) -> None:
    logp, group = -torch.rand(6, 1, generator=torch.Generator().manual_seed(0)), [0, 0, 0, 1, 1, 1]
    batch = scored(make_batch([[1]] * 6, behaviour_logp=logp, scores=[1.0, 0, 0, 0, 0, 0], group=group))
    found = CentredNegatives()(batch)
    torch.testing.assert_close(found[:3], GroupAdvantage()(batch)[:3], atol=0, rtol=0)
    assert float(found[3:].abs().max()) < 0.2 < float(GroupAdvantage()(batch)[3:].abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_without_calibration_it_is_grpo(bandit: Bandit, size: int) -> None:
    """r~ = r: groups without a right answer have no advantage, whatever they weigh; alpha = 0 drops them."""
    lens, grpo = get_method("lens"), get_method("grpo")
    expected = expected_gradient(grpo, bandit, size)
    for alpha in (0.25, 0.0):
        plain = lens.replace(rewards=grpo.rewards, filters=(WeighNegativeGroups(alpha=alpha),))
        torch.testing.assert_close(expected_gradient(plain, bandit, size), expected, atol=1e-14, rtol=0)
    assert float((expected_gradient(lens, bandit, size) - expected).norm()) > 1e-3


@pytest.mark.slow
def test_negative_groups_alone_lower_confident_mistakes(bandit: Bandit) -> None:
    """Where nothing is ever right, GRPO has no gradient and LENS flattens the policy."""
    never = Bandit(bandit.policy, torch.zeros_like(bandit.rewards))
    lens: Method = get_method("lens")
    step = -expected_gradient(lens, never, 3)[0, 0]
    assert not expected_gradient(get_method("grpo"), never, 3).any()
    assert step[bandit.policy.probs()[0, 0].argmax()] < 0
    assert float((step * bandit.policy.logits[0].detach()[0, 0]).sum()) < 0
