"""Generalized advantage estimation, against hand-computed numbers and its definition."""

from __future__ import annotations

import pytest
import torch

from etude.advantages.returns import GAE, RewardToGo, gae, rewards_to_go, standardized

REWARDS = torch.tensor([[0.0, 1.0, 2.0]], dtype=torch.float64)
VALUES = torch.tensor([[1.0, 3.0, 4.0]], dtype=torch.float64)
ALL = torch.ones(1, 3, dtype=torch.bool)


def random_case(seed: int, rows: int = 4, width: int = 7) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    rewards, values = (torch.randn(rows, width, generator=g, dtype=torch.float64) for _ in range(2))
    return rewards, values, torch.ones(rows, width, dtype=torch.bool)


def test_gae_by_hand() -> None:
    # deltas: 0 + .5*3 - 1 = .5;  1 + .5*4 - 3 = 0;  2 - 4 = -2;  A_t = delta_t + .5 * .5 * A_{t+1}
    found = gae(REWARDS, VALUES, ALL, gamma=0.5, lam=0.5)
    assert found.tolist() == [[0.5 + 0.25 * -0.5, -0.5, -2.0]]


def test_gae_is_the_exponential_mixture_of_k_step_advantages() -> None:
    rewards, values, mask = random_case(0)
    gamma, lam, width = 0.9, 0.7, rewards.shape[1]
    padded = torch.cat([values, torch.zeros_like(values[:, :1])], 1)
    for t in range(width):
        left = width - t
        steps = []
        for k in range(1, left + 1):
            ahead = sum(gamma**i * rewards[:, t + i] for i in range(k))
            steps.append(ahead + gamma**k * padded[:, t + k] - values[:, t])
        weights = [(1 - lam) * lam ** (k - 1) for k in range(1, left)] + [lam ** (left - 1)]
        expected = sum(w * a for w, a in zip(weights, steps))
        torch.testing.assert_close(gae(rewards, values, mask, gamma, lam)[:, t], expected, atol=1e-12, rtol=0)


def test_lambda_0_is_the_td_error_and_lambda_1_the_return_minus_the_value() -> None:
    rewards, values, mask = random_case(1)
    following = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], 1)
    torch.testing.assert_close(gae(rewards, values, mask, 0.9, 0.0), rewards + 0.9 * following - values)
    returns = rewards_to_go(rewards, mask, 0.9)
    torch.testing.assert_close(gae(rewards, values, mask, 0.9, 1.0), returns - values, atol=1e-12, rtol=0)
    assert returns[:, -1].tolist() == rewards[:, -1].tolist()
    torch.testing.assert_close(returns[:, -2], rewards[:, -2] + 0.9 * rewards[:, -1])


def test_observation_tokens_are_skipped_not_discounted() -> None:
    mask = torch.tensor([[False, True, False, False, True, True, False]])
    rewards, values = torch.full((1, 7), 9.0), torch.full((1, 7), 9.0)  # 9 stands where nobody may look
    rewards[mask], values[mask] = REWARDS[0].float(), VALUES[0].float()
    found = gae(rewards, values, mask, gamma=0.5, lam=0.5)
    assert found[mask].tolist() == gae(REWARDS, VALUES, ALL, 0.5, 0.5)[0].tolist()
    assert not found[~mask].any()


def test_truncation_bootstraps_and_termination_does_not(make_batch) -> None:
    batch = make_batch(
        [[0, 1, 1], [0, 1, 1]],
        rewards=[[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]],
        values=[[0.0, 2.0, 3.0], [0.0, 2.0, 3.0]],
        truncated=[False, True],
    )
    found = GAE(gamma=1.0, lam=1.0, standardize=False)(batch)
    assert found.tolist() == [[0.0, -1.0, -2.0], [0.0, 2.0, 1.0]]  # the second row's last value is 3 more to come
    assert batch.returns.tolist() == [[0.0, 1.0, 1.0], [0.0, 4.0, 4.0]]
    cut = GAE(gamma=1.0, lam=1.0, standardize=False, bootstrap_truncated=False)(batch)
    assert cut[1].tolist() == found[0].tolist()


def test_standardised_values_have_mean_0_and_deviation_1_and_equal_ones_are_left_alone() -> None:
    values, mask = torch.tensor([[1.0, 2.0, 3.0, 99.0]]), torch.tensor([[True, True, True, False]])
    found = standardized(values, mask)
    assert found[mask].mean().item() == pytest.approx(0, abs=1e-7)
    assert found[mask].std(correction=0).item() == pytest.approx(1)
    assert found[0, 3].item() == 99.0
    same = torch.full((1, 4), 2.0)
    assert torch.equal(standardized(same, mask), same)


def test_reward_to_go_minus_the_batch_mean(make_batch) -> None:
    batch = make_batch([[0, 1, 1], [0, 1, 1]], rewards=[[0, 1.0, 2.0], [0, 0, 1.0]], scores=[3.0, 1.0])
    assert RewardToGo(gamma=1.0, baseline="batch")(batch).tolist() == [[0.0, 1.0, 0.0], [0.0, -1.0, -1.0]]
    assert RewardToGo(gamma=0.5, baseline="none")(batch).tolist() == [[0.0, 2.0, 2.0], [0.0, 0.5, 1.0]]
