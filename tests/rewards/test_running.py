"""Running normalisation of rewards, against the recursion written out step by step."""

from __future__ import annotations

import statistics

import pytest
import torch
from torch import Tensor

from etude.core.population import PerMember
from etude.core.transitions import Transitions
from etude.rewards.running import NormalizeRewards

P, T, E = 2, 7, 3


def rollouts(count: int, scale: float = 1.0) -> list[Transitions]:
    """Consecutive rollouts of the same environments, episodes ending at random."""
    g = torch.Generator().manual_seed(0)
    found = []
    for _ in range(count):
        rewards = scale * torch.randn(P, T, E, generator=g)
        ended, nothing = torch.rand(P, T, E, generator=g), torch.zeros(P, T, E)
        found.append(
            Transitions(nothing, nothing, rewards, ended < 0.15, ended > 0.85, nothing, nothing, nothing, nothing)
        )
    return found


def by_hand(batches: list[Transitions], gamma: float, clip: float) -> list[Tensor]:
    """The same by loops over members, environments and steps, in Python's floats."""
    out = [torch.zeros(P, T, E, dtype=torch.float64) for _ in batches]
    for p in range(P):
        seen: list[float] = []
        running = [0.0] * E
        for number, batch in enumerate(batches):
            for e in range(E):
                for t in range(T):
                    running[e] = gamma * running[e] + float(batch.rewards[p, t, e])
                    seen.append(running[e])
                    if batch.terminated[p, t, e] or batch.truncated[p, t, e]:
                        running[e] = 0.0
            spread = (statistics.pvariance(seen) + 1e-8) ** 0.5
            out[number][p] = (batch.rewards[p].double() / spread).clamp(-clip, clip)
    return out


@pytest.mark.parametrize("scale, clip", [(1.0, 10.0), (1e-3, 10.0), (50.0, 0.5)])
def test_it_is_the_recursion(scale: float, clip: float) -> None:
    batches, part = rollouts(4, scale), NormalizeRewards(gamma=0.9, clip=clip).bind()
    for batch, expected in zip(batches, by_hand(batches, 0.9, clip)):
        found = part.shape(batch)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, atol=1e-7, rtol=1e-6)


def test_it_goes_on_from_its_state() -> None:
    batches, part, again = rollouts(3), NormalizeRewards().bind(), NormalizeRewards().bind()
    for batch in batches[:2]:
        part.shape(batch)
    again.state.update({k: v.clone() if isinstance(v, Tensor) else v for k, v in part.state.items()})
    assert torch.equal(again.shape(batches[2]), part.shape(batches[2]))


def test_every_member_has_its_own_scale() -> None:
    plain, other = NormalizeRewards().bind(), NormalizeRewards().bind()
    for batch in rollouts(2):
        loud = batch.replace(rewards=batch.rewards * torch.tensor([1.0, 100.0])[:, None, None])
        first, second = plain.shape(batch), other.shape(loud)
        assert torch.equal(first[0], second[0])
        torch.testing.assert_close(first[1], second[1], atol=1e-6, rtol=1e-5)  # the scale is divided out


def test_the_first_rollout_is_scaled_by_itself_and_constant_rewards_stay_finite() -> None:
    nothing = torch.zeros(1, 4, 2)
    every = torch.ones(1, 4, 2, dtype=torch.bool)
    batch = Transitions(nothing, nothing, nothing + 3, every, ~every, nothing, nothing, nothing, nothing)
    assert NormalizeRewards(clip=5.0).bind().shape(batch).tolist() == [[[5.0] * 2] * 4]  # variance 0: cut


def test_clip_and_gamma_may_differ_between_members() -> None:
    batches, both = rollouts(2), NormalizeRewards().bind()
    object.__setattr__(both, "clip", PerMember([0.5, 1.0]))
    object.__setattr__(both, "gamma", PerMember([0.5, 0.9]))
    alone = [NormalizeRewards(gamma=g, clip=c).bind() for g, c in ((0.5, 0.5), (0.9, 1.0))]
    for batch in batches:
        found, single = both.shape(batch), [part.shape(batch) for part in alone]
        assert all(torch.equal(found[m], single[m][m]) for m in range(P))
