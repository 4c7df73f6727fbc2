"""How far two rewards are apart that policies are to learn from: the EPIC distance (arXiv:2006.13900).

A reward R(s, a, s') is made canonical, which takes out what no policy's rank depends on, a potential and a constant,

    C(R)(s, a, s') = R(s, a, s') + E[gamma R(s', A, S') - R(s, A, S') - gamma R(S, A, S')],

A and S, S' drawn from whatever is chosen, and the distance of two is sqrt((1 - rho) / 2), rho Pearson's correlation of
the two over transitions: 0 where one is the other times a positive number, 1 where it is minus the other.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SAMPLES = 512
"""States and actions that expectations are taken over."""
Reward = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of observations [..., D], actions [..., A] and what followed [..., D]: [...]."""


def pearson_distance(one: Tensor, other: Tensor, weights: Tensor | None = None) -> float:
    """sqrt((1 - rho) / 2) of two numbers of each of N things, which count as `weights` say, all alike if None.

    Raises: ValueError where one of them is the same everywhere, so that it correlates with nothing.

    >>> x = torch.tensor([1.0, 2.0, 4.0])
    >>> pearson_distance(x, 3 * x - 5), pearson_distance(x, -x)
    (0.0, 1.0)
    """
    mass = torch.ones_like(one, dtype=torch.float64) if weights is None else weights.double()
    mass = mass.flatten() / mass.sum()
    x, y = (v.double().flatten() - (mass * v.double().flatten()).sum() for v in (one, other))
    sizes = [float((mass * v.square()).sum()) for v in (x, y)]
    if min(sizes) <= 1e-24:
        raise ValueError("A reward that is the same everywhere has no distance to others: canonical, it says nothing.")
    rho = float((mass * x * y).sum()) / (sizes[0] * sizes[1]) ** 0.5
    return float(max(0.0, min(1.0, (1 - rho) / 2)) ** 0.5)


def canonical_table(
    rewards: Tensor, gamma: float, states: Tensor | None = None, actions: Tensor | None = None
) -> Tensor:
    """C(R) of a table [..., S, A, S].

    Args:
        states, actions: what S and S', and A, are drawn by, [S] and [A]; uniformly if None.

    >>> canonical_table(torch.tensor([[[1.0, 3.0]], [[0.0, 2.0]]]), gamma=1.0).flatten().tolist()
    [-0.5, 0.5, -0.5, 0.5]
    """
    count, choices = rewards.shape[-1], rewards.shape[-2]
    d = rewards.new_full((count,), 1 / count) if states is None else states.to(rewards)
    p = rewards.new_full((choices,), 1 / choices) if actions is None else actions.to(rewards)
    mean = torch.einsum("...sat,a,t->...s", rewards, p, d)  # of leaving each state
    whole = (mean * d).sum(-1)
    return rewards + gamma * mean[..., None, None, :] - mean[..., :, None, None] - gamma * whole[..., None, None, None]


def epic_of_tables(one: Tensor, other: Tensor, gamma: float, coverage: Tensor | None = None) -> float:
    """The distance of two tables [S, A, S].

    Args:
        coverage: how much each transition counts, [S, A, S]; all alike if None.

    >>> from etude.evaluation.epic import epic_of_tables
    >>> r = torch.arange(8.0).view(2, 2, 2) ** 2
    >>> potential = torch.tensor([3.0, -1.0])
    >>> shaped = 2 * r + 0.9 * potential - potential[:, None, None] + 7
    >>> round(epic_of_tables(r, shaped, gamma=0.9), 6), round(epic_of_tables(r, -r, gamma=0.9), 6)
    (0.0, 1.0)
    """
    return pearson_distance(canonical_table(one, gamma), canonical_table(other, gamma), coverage)


def canonical(
    reward: Reward, observations: Tensor, actions: Tensor, following: Tensor, others: tuple[Tensor, Tensor],
    gamma: float,
) -> Tensor:  # fmt: skip
    """C(R) of N transitions, [N]; expectations are means over K `others`, states [K, D] and actions [K, A].

    From a state every one of these is led to once, by the action beside it. Both ends of a transition are left for the
    same ones, so that a potential is taken out exactly, however few there are.
    """
    states, done = others

    def leaving(begin: Tensor) -> Tensor:
        """E R(s, A, S') of states [N, D]."""
        shape = (len(begin), len(states))
        return reward(
            begin[:, None].expand(*shape, -1), done[None].expand(*shape, -1), states[None].expand(*shape, -1)
        ).mean(1)

    found = reward(observations, actions, following)
    return found + gamma * leaving(following) - leaving(observations) - gamma * leaving(states).mean()


def epic_distance(
    one: Reward, other: Reward, observations: Tensor, actions: Tensor, following: Tensor, gamma: float,
    generator: torch.Generator | None = None, samples: int = SAMPLES,
) -> float:  # fmt: skip
    """The distance of two rewards over N transitions, [N, D], [N, A] and [N, D].

    Args:
        generator: of the states, and of the actions apart from them, that are drawn from these transitions for
            expectations; None: torch's own.

    >>> x = torch.linspace(-1, 1, 50)[:, None]
    >>> paid = lambda s, a, t: s[..., 0] * a[..., 0] + t[..., 0]
    >>> again = lambda s, a, t: 3 * paid(s, a, t) + 0.5 * t[..., 0] ** 2 - s[..., 0] ** 2 + 4
    >>> round(epic_distance(paid, again, x, x.flip(0), x.roll(1, 0), gamma=0.5), 5)
    0.0
    """
    count = min(samples, len(observations))
    drawn = [torch.randperm(len(observations), generator=generator)[:count] for _ in range(2)]
    others = observations[drawn[0]], actions[drawn[1]]
    found = [canonical(r, observations, actions, following, others, gamma) for r in (one, other)]
    return pearson_distance(*found)
