"""Generalized advantage estimation, against hand-computed numbers and its definition."""

from __future__ import annotations

import pytest
import torch

from etude.advantages.group import BatchMean
from etude.advantages.returns import GAE, RewardToGo, gae, rewards_to_go, standardized
from etude.core.batches import TokenLogProbs
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.rows import to_batch
from etude.learners.token import TokenCritic

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


def stopped(stop: StopReason, size: int = 2) -> Episode:
    """A prompt of one token and a completion of `size`."""
    said = Segment("assistant", "", [5] * size, [1] * size, [0.0] * size)
    return Episode(Problem("p", "?"), [Segment("user", "", [4], [0], [0.0]), said], stop=stop)


@pytest.mark.parametrize("stop", list(StopReason))
def test_values_go_on_after_the_limits_of_environments_only(stop: StopReason) -> None:
    """V is 2 and 3 before the two tokens and 7 after them, which only counts if the environment was not done."""
    batch = to_batch([stopped(stop)], 0, 1.0, torch.device("cpu"))
    batch.rewards, batch.values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.0, 2.0, 3.0]])
    batch.next_values = torch.tensor([7.0])
    part = GAE(gamma=1.0, lam=1.0, standardize=False)
    found = part(batch)
    after = 7.0 if stop in ("max_turns", "truncated") else 0.0
    assert found.tolist() == [[0.0, 1 + after - 2, 1 + after - 3]]
    assert part.returns(batch).tolist() == [[0.0, 1 + after, 1 + after]]
    end = GAE(gamma=1.0, lam=1.0, standardize=False, bootstrap_truncated=False)(batch)
    assert end.tolist() == [[0.0, -1.0, -2.0]]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [StopReason.MAX_TOKENS, StopReason.CONTEXT_OVERFLOW])
def test_values_of_completions_that_were_cut_end_at_the_return(stop: StopReason) -> None:
    """Reward 1 for 32 completions, of which 31 were cut; the critic is a cubic of the position, so it generalises."""
    size = 8
    episodes = [stopped(stop, size)] * 31 + [stopped(StopReason.TERMINATED, size)]
    batch = to_batch(episodes, 0, 1.0, torch.device("cpu"))
    batch.rewards[:, -1] = 1.0
    place = torch.arange(size + 2) / size
    features, weights = torch.stack([place**k for k in range(4)], 1), torch.zeros(4, requires_grad=True)
    adam = torch.optim.Adam([weights], lr=0.3)
    part, critic = GAE(gamma=1.0, lam=0.95, standardize=False), TokenCritic(coefficient=1.0, clip=None)
    for _ in range(400):
        values = features @ weights
        now = values[:-1].expand(len(batch), -1)
        batch.values, batch.next_values = now.detach() * batch.action_mask, values[-1].detach().expand(len(batch))
        batch.returns = part.returns(batch)
        adam.zero_grad()
        critic.loss(batch, TokenLogProbs(batch.behaviour_logp, values=now))[batch.action_mask].mean().backward()
        adam.step()
    assert float((features @ weights)[1:-1].mean().detach()) == pytest.approx(1.0, abs=0.02)


def test_standardised_values_have_mean_0_and_deviation_1_and_equal_ones_are_left_alone() -> None:
    values, mask = torch.tensor([[1.0, 2.0, 3.0, 99.0]]), torch.tensor([[True, True, True, False]])
    found = standardized(values, mask)
    assert found[mask].mean().item() == pytest.approx(0, abs=1e-7)
    assert found[mask].std(correction=0).item() == pytest.approx(1)
    assert found[0, 3].item() == 99.0
    for number in (2.0, 0.1):  # the mean of 0.1, 0.1, 0.1 is another number
        same = torch.full((1, 4), number)
        assert torch.equal(standardized(same, mask), same)


def test_reward_to_go_minus_the_batch_mean(make_batch) -> None:
    batch = make_batch([[0, 1, 1], [0, 1, 1]], rewards=[[0, 1.0, 2.0], [0, 0, 1.0]], scores=[3.0, 1.0])
    assert RewardToGo(gamma=1.0, baseline=BatchMean())(batch).tolist() == [[0.0, 1.0, 0.0], [0.0, -1.0, -1.0]]
    assert RewardToGo(gamma=0.5, baseline=None)(batch).tolist() == [[0.0, 2.0, 2.0], [0.0, 0.5, 1.0]]
