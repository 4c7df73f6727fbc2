"""The claim of P2R: UCBVI on labels made of comparisons, against UCBVI that sees rewards; and von Neumann winners.

Every seed draws a Garnet. An episode is a trajectory, and its utility is the sum of its rewards; with counts of states
and actions as features it is linear. UCBVI plans with what is surely not too little, r + what is unknown of r + a bonus
for rare transitions. One arm knows the reward of what it has tried. The other is told a number for each whole episode
by an `Interface`, which asks for comparisons only where what it knows does not decide, and plans with the rewards that
these numbers imply. They are shifted by a constant, which changes no policy.

In the second part what is compared are the states in which two copies of a policy end. Preferences are drawn, with
circles in them; each copy is told only whether it won, and what is looked at is the average of all policies of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from etude.core.population import Member, Population
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs
from etude.methods.preference.p2r import label_of
from etude.tasks.tabular.finite import FiniteMDP, greedy, optimal_return
from etude.tasks.tabular.garnet import Garnet

TASK, EPISODES, BONUS = Garnet(states=6, actions=3, branching=3, limit=8), 3000, 0.1
PRECISION, COMPARISONS, SCALE = 0.5, 1000, 2.0
GAME, ROUNDS, ALIKE = Garnet(states=5, actions=2, branching=2, limit=3), 10_000, 1e-9


@dataclass
class Interface:
    """Answers what a trajectory is worth, above a fixed one, by comparisons of the two (arXiv:2306.14111, algorithm 1).

    Utilities are w . phi. All w that agree with the labels so far lie in an ellipsoid around their ridge regression:
    of those with |w|^2 <= D and sum (w . d - x)^2 <= b, b = precision^2 / 4, where d = phi - phi_0 and x is its label,

        (w - w_hat)^T A (w - w_hat) <= b + ridge D - (what w_hat leaves),    A = ridge I + sum d d^T.

    Where no two of them differ by 2 precision on a trajectory, w_hat answers. Otherwise people compare it.

    Args:
        first: phi_0 [D].
        precision: eps_0. comparisons: m of each trajectory that is compared.
        scale: differences of utility are divided by it in the link, a sigmoid. bound: labels lie within it.

    `labels` has the labels by trajectory. Random numbers are those of `random`.
    """

    first: Tensor
    precision: float
    comparisons: int
    scale: float
    bound: float
    random: np.random.Generator
    labels: dict[tuple[float, ...], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = len(self.first)
        self.ridge = self.precision**2 / (4 * size)
        self.matrix = self.ridge * torch.eye(size, dtype=torch.float64)
        self.moment, self.squares = torch.zeros(size, dtype=torch.float64), 0.0
        self._solve()

    def answer(self, phi: Tensor, utility: float, first_utility: float) -> float:
        """The label of a trajectory [D]; the true utilities are only shown to whoever compares."""
        key, d = tuple(phi.tolist()), phi - self.first
        if key in self.labels:
            return self.labels[key]
        if self.radius * math.sqrt(float(d @ self.inverse @ d)) < self.precision:
            return float(self.estimate @ d)
        wins = self.random.binomial(self.comparisons, 1 / (1 + math.exp((first_utility - utility) / self.scale)))
        x = label_of(wins / self.comparisons, self.scale, self.bound)
        self.labels[key] = x
        self.matrix, self.moment = self.matrix + torch.outer(d, d), self.moment + x * d
        self.squares += x * x
        self._solve()
        return x

    def _solve(self) -> None:
        """w_hat, and how far from it others agree with the labels."""
        self.inverse = torch.linalg.inv(self.matrix)
        self.estimate = self.inverse @ self.moment
        left = self.squares - float(self.estimate @ self.moment)
        slack = self.precision**2 / 4 + self.ridge * len(self.first) - max(0.0, left)
        self.radius = math.sqrt(max(slack, self.precision**2 / 4))

    def unknown(self) -> Tensor:
        """[D] how much more each feature may be worth than w_hat says, but for what all are worth more."""
        size = len(self.first)
        away = torch.eye(size, dtype=torch.float64) - 1 / size
        spread: Tensor = (away @ self.inverse * away).sum(-1).clamp(min=0).sqrt()
        return self.radius * spread


class Played(NamedTuple):
    """Regret of every episode [episodes, P], and how many trajectories were compared before it ended."""

    regret: Tensor
    compared: Tensor


class UCBVI:
    """Optimistic value iteration on counted transitions, members [P] side by side (arXiv:1703.05449).

    Args:
        bonus: c of c H / sqrt(n), n visits of a state and action.
    """

    def __init__(self, mdp: FiniteMDP, bonus: float) -> None:
        assert mdp.horizon is not None
        self.mdp, self.bonus, self.horizon = mdp, bonus, mdp.horizon
        self.counts = torch.zeros_like(mdp.transitions)

    def plan(self, rewards: Tensor) -> Tensor:
        """The policy [P, H, S, A] that is best by rewards [P, S, A] and what may be."""
        visits = self.counts.sum(-1)
        moves = self.counts / visits.clamp(min=1)[..., None]
        extra = rewards + self.bonus * self.horizon / visits.clamp(min=1).sqrt()
        most: Tensor = rewards.amax((1, 2)).clamp(min=1.0)
        value = torch.zeros_like(rewards[..., 0])
        policy: list[Tensor] = []
        for left in range(1, self.horizon + 1):
            q = extra + (moves * value[:, None, None]).sum(-1)
            limit = (left * most)[:, None, None].expand_as(q)
            q = torch.where(visits > 0, torch.minimum(q, limit), limit)
            value, policy = q.amax(-1), [greedy(q), *policy]
        return torch.stack(policy, 1)

    def play(self, policy: Tensor, uniform: Tensor) -> Tensor:
        """An episode by numbers in [0, 1) [P, H + 1]: counts of states and actions [P, S, A]."""
        everyone, last = torch.arange(len(uniform)), self.mdp.start.shape[0] - 1
        phi = torch.zeros_like(self.mdp.rewards)
        state = (self.mdp.start.cumsum(0) <= uniform[:, :1]).sum(-1).clamp(max=last)
        for h in range(self.horizon):
            action = policy[everyone, h, state].argmax(-1)
            bounds = self.mdp.transitions[everyone, state, action].cumsum(-1)
            following = (bounds <= uniform[:, h + 1, None]).sum(-1).clamp(max=last)
            phi[everyone, state, action] += 1
            self.counts[everyone, state, action, following] += 1
            state = following
        return phi


def regret(seeds: Sequence[int], episodes: int, by_comparison: bool) -> Played:
    """What each episode's policy is expected to miss."""
    mdp = TASK.mdp(seeds, horizon=True)
    learner, best = UCBVI(mdp, BONUS), optimal_return(mdp)
    members, shape = Population([Member(seed) for seed in seeds]), mdp.rewards.shape[1:]
    uniform = members.draw("play", of=lambda g: torch.rand(episodes + 1, learner.horizon + 1, generator=g).double())
    anyhow = members.draw("first", of=lambda g: torch.rand(learner.horizon, *shape, generator=g).double())
    first = learner.play(greedy(anyhow), uniform[:, -1]).flatten(1)
    utility = mdp.rewards.flatten(1)
    told = [
        Interface(first[k], PRECISION, COMPARISONS, SCALE, 2.0 * learner.horizon, s.split("people").numpy)
        for k, s in enumerate(members.streams)
    ]
    missed, compared = [], []
    for k in range(episodes):
        policy = learner.plan(imagined(told, shape) if by_comparison else mdp.rewards)
        missed.append(best - mdp.mean(mdp.evaluate_stages(policy)[:, 0]))
        phi = learner.play(policy, uniform[:, k]).flatten(1)
        if by_comparison:
            truth, before = ((utility * x).sum(-1).tolist() for x in (phi, first))
            for one, x, u, u0 in zip(told, phi, truth, before):
                one.answer(x, u, u0)
        compared.append([float(len(one.labels)) for one in told])
    return Played(torch.stack(missed), torch.tensor(compared))


def imagined(told: Sequence[Interface], shape: torch.Size) -> Tensor:
    """Rewards [P, S, A] that the labels imply, with what is unknown of them."""
    return torch.stack([(one.estimate + one.unknown()).view(shape) for one in told])


# Preferences that need not come from a utility


def preferences(seeds: Sequence[int]) -> Tensor:
    """M [P, S, S], what it is worth that one's copy ends in the first state and the other in the second, M = -M^T."""
    members, size = Population([Member(seed) for seed in seeds]), GAME.states
    drawn = members.draw("preferences", of=lambda g: 2 * torch.rand(size, size, generator=g).double() - 1).triu(1)
    return drawn - drawn.mT


def endings(mdp: FiniteMDP, policy: Tensor) -> Tensor:
    """[P, S] the chance that an episode of a policy [P, H, S, A] ends in each state."""
    at = mdp.start.expand(len(policy), -1)
    for h in range(policy.shape[1]):
        at = ((at[..., None] * policy[:, h])[..., None] * mdp.transitions).sum((1, 2))
    return at


def exploitability(mdp: FiniteMDP, preference: Tensor, ends: Tensor) -> Tensor:
    """[P] what the best answer to endings [P, S] wins on average; at least 0, and 0 for a von Neumann winner alone."""
    value = (preference * ends[:, None]).sum(-1)
    for _ in range(mdp.horizon or 0):
        value = (mdp.transitions * value[:, None, None]).sum(-1).amax(-1)
    return mdp.mean(value)


def self_play(mdp: FiniteMDP, preference: Tensor, seeds: Sequence[int], rounds: int) -> Tensor:
    """Endings [P, S] of the average policy of a copy, both of which Hedge in every state on outcomes alone.

    A copy that ended in s and won (+1) or lost (-1) takes that over its chance of s, for s, and 0 for other states;
    backwards through the transitions that were counted so far this is what each action was worth, and

        pi ~ exp(rate sum of these),    rate = 2 sqrt(log A / rounds).
    """
    members, horizon = Population([Member(seed) for seed in seeds]), mdp.horizon or 0
    size, actions = mdp.rewards.shape[1:]
    rate, everyone = 2.0 * math.sqrt(math.log(actions) / rounds), torch.arange(len(seeds))
    counts = torch.full_like(mdp.transitions, ALIKE)
    total = mdp.rewards.new_zeros(2, len(seeds), horizon, size, actions)
    average = mdp.rewards.new_zeros(len(seeds), size)
    uniform = members.draw("game", of=lambda g: torch.rand(rounds, 2, 2 * horizon + 2, generator=g).double())
    for n in range(rounds):
        policies = (rate * total).softmax(-1)
        average += endings(mdp, policies[0]) / rounds
        model = FiniteMDP(counts / counts.sum(-1, keepdim=True), mdp.rewards, mdp.start, horizon=horizon)
        ends = [_ending(mdp, policies[c], uniform[:, n, c], counts) for c in (0, 1)]
        won = torch.where(uniform[:, n, 0, -1] < 0.5 + preference[everyone, ends[0], ends[1]] / 2, 1.0, -1.0)
        for c, sign in ((0, 1.0), (1, -1.0)):
            chance = endings(model, policies[c])[everyone, ends[c]] + rate
            value = torch.zeros_like(average)
            value[everyone, ends[c]] = sign * won.to(value) / chance
            for h in reversed(range(horizon)):
                q = (model.transitions * value[:, None, None]).sum(-1)
                total[c, :, h] += q
                value = (policies[c, :, h] * q).sum(-1)
    return average


def _ending(mdp: FiniteMDP, policy: Tensor, uniform: Tensor, counts: Tensor) -> Tensor:
    """[P] where an episode ends, by numbers [P, 2 H + 2]; its transitions are counted."""
    everyone, last = torch.arange(len(policy)), mdp.start.shape[0] - 1
    state = (mdp.start.cumsum(0) <= uniform[:, :1]).sum(-1).clamp(max=last)
    for h in range(policy.shape[1]):
        chosen = (policy[everyone, h, state].cumsum(-1) <= uniform[:, 2 * h + 1, None]).sum(-1)
        action = chosen.clamp(max=policy.shape[-1] - 1)
        bounds = mdp.transitions[everyone, state, action].cumsum(-1)
        following = (bounds <= uniform[:, 2 * h + 2, None]).sum(-1).clamp(max=last)
        counts[everyone, state, action, following] += 1
        state = following
    return state


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Regret of both arms over the later half, comparisons by half, and how far averages are from winners."""
    torch.set_num_threads(1)
    mine, rewarded = (regret(seeds, EPISODES, by_comparison) for by_comparison in (True, False))
    half = EPISODES // 2
    early, late = mine.compared[half - 1], mine.compared[-1]
    game, preference = GAME.mdp(seeds, horizon=True), preferences(seeds)
    alike = torch.full_like(game.rewards, 1 / GAME.actions)[:, None].expand(-1, GAME.limit, -1, -1)
    ends = self_play(game, preference, seeds, ROUNDS)
    after, before = (exploitability(game, preference, e).tolist() for e in (ends, endings(game, alike)))
    return pairs(
        seeds,
        {
            "regret": mine.regret[half:].mean(0).tolist(), "compared later": ((late - early) / late).tolist(),
            "exploitability": after, "compared": late.tolist(), "regret over all": mine.regret.mean(0).tolist(),
        },
        {
            "regret": rewarded.regret[half:].mean(0).tolist(), "exploitability": before,
            "regret over all": rewarded.regret.mean(0).tolist(),
        },
        start={"regret": rewarded.regret[0].tolist()},
        budgets={"episodes": ([float(EPISODES)] * len(seeds), [float(EPISODES)] * len(seeds))},
    )  # fmt: skip
