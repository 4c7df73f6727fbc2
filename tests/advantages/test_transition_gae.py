"""Generalized advantage estimation over steps of control, against its definition and an enumerated process."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from control_toys import MDP
from etude.advantages.group import BatchMean
from etude.advantages.returns import GAE, RewardToGo, standardized_members, transition_gae
from etude.core.transitions import Transitions
from etude.methods.onpolicy.gae import MonteCarloGAE

P, T, E = 3, 11, 4
GAMMA = 0.9


def rollout(seed: int = 0, cuts: float = 0.25) -> Transitions:
    """Random steps; where an episode goes on, the next value is that of the next state."""
    g = torch.Generator().manual_seed(seed)
    rewards, values, others = (torch.randn(P, T, E, generator=g, dtype=torch.float64) for _ in range(3))
    ended = torch.rand(P, T, E, generator=g)
    terminated, truncated = ended < cuts / 2, (ended >= cuts / 2) & (ended < cuts)
    following = torch.cat([values[:, 1:], others[:, -1:]], 1)
    next_values = torch.where(terminated | truncated, others, following)
    nothing = torch.zeros(P, T, E)
    return Transitions(nothing, nothing, rewards, terminated, truncated, nothing, nothing, values, next_values)


def advantages(r: Transitions, lam: float) -> Tensor:
    return transition_gae(r.rewards, r.values, r.next_values, r.terminated, r.truncated, GAMMA, lam)


def course(r: Transitions, p: int, t: int, e: int) -> tuple[list[float], list[float], list[float]]:
    """Rewards from t to the end of the episode or rollout; V(s_{t+k}) for k >= 1, 0 after a termination; TD errors."""
    rewards, ahead, deltas = [], [], []
    for i in range(t, T):
        value = 0.0 if r.terminated[p, i, e] else float(r.next_values[p, i, e])
        rewards.append(float(r.rewards[p, i, e]))
        ahead.append(value)
        deltas.append(rewards[-1] + GAMMA * value - float(r.values[p, i, e]))
        if r.terminated[p, i, e] or r.truncated[p, i, e]:
            break
    return rewards, ahead, deltas


def everywhere() -> itertools.product:
    return itertools.product(range(P), range(T), range(E))


def k_step(rewards: list[float], ahead: list[float], value: float, k: int) -> float:
    return sum(GAMMA**i * rewards[i] for i in range(k)) + GAMMA**k * ahead[k - 1] - value


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("lam", [0.0, 0.3, 0.95, 1.0])
def test_it_is_the_mixture_of_k_step_advantages(seed: int, lam: float) -> None:
    r = rollout(seed)
    found = advantages(r, lam)
    for p, t, e in everywhere():
        rewards, ahead, _ = course(r, p, t, e)
        last = len(rewards)
        steps = [k_step(rewards, ahead, float(r.values[p, t, e]), k) for k in range(1, last + 1)]
        weights = [(1 - lam) * lam ** (k - 1) for k in range(1, last)] + [lam ** (last - 1)]
        assert float(found[p, t, e]) == pytest.approx(sum(w * a for w, a in zip(weights, steps)), abs=1e-13)


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
def test_it_is_the_discounted_sum_of_shaped_rewards(lam: float) -> None:
    """With r + gamma V(s') - V(s) for rewards, discounted by gamma * lambda."""
    r = rollout(2)
    found = advantages(r, lam)
    for p, t, e in everywhere():
        deltas = course(r, p, t, e)[2]
        expected = sum((GAMMA * lam) ** i * d for i, d in enumerate(deltas))
        assert float(found[p, t, e]) == pytest.approx(expected, abs=1e-13)


def test_lambda_1_is_the_return_minus_the_value() -> None:
    r = rollout(3)
    found = advantages(r, 1.0)
    for p, t, e in everywhere():
        rewards, ahead, _ = course(r, p, t, e)
        total = sum(GAMMA**i * x for i, x in enumerate(rewards)) + GAMMA ** len(rewards) * ahead[-1]
        assert float(found[p, t, e]) == pytest.approx(total - float(r.values[p, t, e]), abs=1e-13)


def test_lambda_0_is_the_residual() -> None:
    r = rollout(4)
    expected = r.rewards + GAMMA * torch.where(r.terminated, 0.0, r.next_values) - r.values
    torch.testing.assert_close(advantages(r, 0.0), expected, atol=1e-15, rtol=0)


def test_truncation_keeps_the_value_that_termination_takes_away() -> None:
    r = rollout(5, cuts=0.5)
    assert r.truncated.any()
    fault = r.replace(terminated=r.terminated | r.truncated, truncated=r.truncated & False)
    apart = advantages(r, 0.9) - advantages(fault, 0.9)
    torch.testing.assert_close(apart[r.truncated], GAMMA * r.next_values[r.truncated], atol=1e-14, rtol=0)


def test_who_does_not_bootstrap_takes_a_cut_for_an_end() -> None:
    r = rollout(5, cuts=0.5)
    fault = r.replace(terminated=r.terminated | r.truncated)
    for part in (GAE, MonteCarloGAE):
        plain = part(gamma=GAMMA, lam=0.8, standardize=False)
        kept, lost = plain.of_transitions(r), plain.replace(bootstrap_truncated=False).of_transitions(r)
        assert torch.equal(lost, plain.of_transitions(fault))
        assert not torch.equal(lost, kept)


def test_what_follows_a_cut_is_not_seen() -> None:
    r = rollout(6)
    for p, t, e in itertools.islice(((r.terminated | r.truncated)[:, :-1].nonzero().tolist()), 8):
        changed = r.rows(torch.arange(T).expand(P, T))  # a copy
        changed.rewards[p, t + 1 :, e] += 100
        changed.values[p, t + 1 :, e] += 100
        changed.next_values[p, t + 1 :, e] += 100
        assert torch.equal(advantages(changed, 0.9)[p, : t + 1, e], advantages(r, 0.9)[p, : t + 1, e])


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.9, 1.0])
def test_the_enumerated_expectation_with_exact_values_is_the_advantage(lam: float) -> None:
    mdp = MDP.random(3)
    pi = torch.randn(3, 2, generator=torch.Generator().manual_seed(7), dtype=torch.float64).softmax(-1)
    states, actions = mdp.paths(3)
    batch, chance = mdp.rollout(states, actions, mdp.values(pi)), mdp.chance(pi, states, actions)
    found = transition_gae(
        batch.rewards, batch.values, batch.next_values, batch.terminated, batch.truncated, mdp.gamma, lam
    )[0, 0]
    expected = mdp.advantages(pi)
    for s, a in itertools.product(range(3), range(2)):
        here = (states[0] == s) & (actions[0] == a)
        assert float(chance[here].sum()) == pytest.approx(1)
        assert float((chance * found)[here].sum()) == pytest.approx(float(expected[s, a]), abs=1e-12)


def test_with_other_values_the_expectation_is_biased_unless_lambda_is_1() -> None:
    """So the test above says something; with lambda = 1 and an end, any value does (the policy gradient is exact)."""
    mdp = MDP.random(3)
    pi = torch.randn(3, 2, generator=torch.Generator().manual_seed(7), dtype=torch.float64).softmax(-1)
    states, actions = mdp.paths(3)
    wrong = mdp.values(pi) + torch.tensor([1.0, -2.0, 0.5])
    batch, chance = mdp.rollout(states, actions, wrong), mdp.chance(pi, states, actions)
    found = GAE(gamma=mdp.gamma, lam=0.0, standardize=False).of_transitions(batch)[0, 0]
    here = (states[0] == 0) & (actions[0] == 0)
    assert abs(float((chance * found)[here].sum() - mdp.advantages(pi)[0, 0])) > 0.1


def test_the_targets_of_the_critic() -> None:
    r = rollout(8)
    plain = GAE(gamma=GAMMA, lam=0.7, standardize=False)
    found = plain.of_transitions(r)
    torch.testing.assert_close(plain.returns_of_transitions(r), found + r.values)
    monte = MonteCarloGAE(gamma=GAMMA, lam=0.7, standardize=False)
    assert torch.equal(monte.of_transitions(r), found)
    torch.testing.assert_close(monte.returns_of_transitions(r), advantages(r, 1.0) + r.values)


def test_every_member_is_standardised_by_itself() -> None:
    r = rollout(9)
    found = GAE(gamma=GAMMA, lam=0.7, standardize=True).of_transitions(r).flatten(1)
    torch.testing.assert_close(found.mean(1), torch.zeros(P, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(found.std(1), torch.ones(P, dtype=torch.float64), atol=1e-6, rtol=0)
    r.rewards[1] *= 7
    again = GAE(gamma=GAMMA, lam=0.7, standardize=True).of_transitions(r).flatten(1)
    assert torch.equal(found[[0, 2]], again[[0, 2]])
    late = GAE(gamma=GAMMA, lam=0.7, standardize=True, per_minibatch=True)
    assert torch.equal(late.of_transitions(r), advantages(r, 0.7))
    piece = late.of_minibatch(advantages(r, 0.7).flatten(1)[:, :9])
    torch.testing.assert_close(piece.std(1), torch.ones(P, dtype=torch.float64), atol=1e-6, rtol=0)


def test_steps_of_a_failed_episode_do_not_count_in_the_standardisation() -> None:
    r = rollout(11)
    values, weights = r.values.clone(), torch.ones(P, T, E)
    weights[1, 3:7, 2] = 0
    values[1, 3:7, 2] = 1e6
    found = standardized_members(values, weights)
    assert torch.equal(found[[0, 2]], standardized_members(values)[[0, 2]])
    left = values[1][weights[1] > 0]
    torch.testing.assert_close(found[1][weights[1] > 0], (left - left.mean()) / left.std(), atol=1e-6, rtol=1e-6)
    assert torch.equal(standardized_members(values, torch.ones(P, T, E)), standardized_members(values))


@pytest.mark.parametrize("number", [2.0, 0.1, -3.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_member_whose_advantages_are_all_equal_has_none(number: float, dtype: torch.dtype) -> None:
    values = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    values[1] = number
    found, weights = standardized_members(values), torch.ones_like(values)
    assert not found[1].any() and torch.equal(found[:1], standardized_members(values[:1]))
    weights[:, 2], values[1, 2] = 0, 5.0  # a step that does not count is no difference
    found = standardized_members(values, weights)
    assert not found[1].any() and torch.equal(found[:1], standardized_members(values[:1], weights[:1]))


def test_reward_to_go_goes_on_with_the_value_where_an_episode_is_cut() -> None:
    r = rollout(10)
    found = RewardToGo(gamma=GAMMA, baseline=None).of_transitions(r)
    torch.testing.assert_close(found, advantages(r, 1.0) + r.values, atol=1e-12, rtol=0)
    centred = RewardToGo(gamma=GAMMA, baseline=BatchMean()).of_transitions(r)
    torch.testing.assert_close(centred.flatten(1).mean(1), torch.zeros(P, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(centred - found, (centred - found)[:, :1, :1].expand_as(found), atol=1e-12, rtol=0)
