"""MD-VI and DA-VI on tables, hundreds at once, and what errors in their backups come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from etude.core.population import Member, Population
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs
from etude.tasks.tabular.finite import FiniteMDP, greedy
from etude.tasks.tabular.garnet import Garnet

GAMMA, ITERATIONS, EARLY = 0.9, 500, 50
KL, ENTROPY = 1.0, 0.01
"""The best of 0.01, 0.1 and 1 for soft value iteration, seeds 0 to 11; KL of 0.1 to 10 all do."""
Noise = Callable[[int, Tensor], Tensor]
"""The error [P, S, A] of backup k, given what is said to follow, [P, S]."""


class Iterate(NamedTuple):
    """A policy as logarithms of its chances, and the values that its step led to, [P, S, A] both."""

    logs: Tensor
    q: Tensor


def chances(logs: Tensor, q: Tensor, kl: float, entropy: float) -> Tensor:
    """argmax_pi <pi, q> - kl KL(pi || exp(logs)) + entropy H(pi), as logarithms [..., A].

        pi ~ exp((kl logs + q) / (kl + entropy)),   where both are 0 the first of the best

    >>> chances(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.0, 2.0]), kl=1.0, entropy=1.0).exp()
    tensor([0.2689, 0.7311])
    """
    if kl + entropy == 0:
        return greedy(q).log()
    return ((kl * logs + q) / (kl + entropy)).log_softmax(-1)


def worth(logs: Tensor, before: Tensor, q: Tensor, kl: float, entropy: float) -> Tensor:
    """<pi, q> - kl KL(pi || pi') + entropy H(pi) [...] of logarithms [..., A]."""
    pi = logs.exp()
    value = (pi * q).sum(-1)
    if kl:
        value = value - kl * (pi * (logs - before)).sum(-1)
    return value - entropy * (pi * logs).sum(-1) if entropy else value


def uniform(mdp: FiniteMDP) -> Tensor:
    """Logarithms of equal chances, [P, S, A]."""
    return torch.zeros_like(mdp.rewards).log_softmax(-1)


def mirror_descent(
    mdp: FiniteMDP, kl: float, entropy: float, noise: Noise, iterations: int, type_2: bool = False
) -> Iterator[Iterate]:
    """MD-VI from equal chances and q = 0 (arXiv:2003.14089, eq. 5).

        pi_{k+1} = G_{pi_k}(q_k),   q_{k+1} = r + gamma P (<pi_{k+1}, q_k> - kl KL + entropy H) + error_{k+1}

    Args:
        type_2: whether the second line leaves the regularisers out.
    """
    logs, q = uniform(mdp), torch.zeros_like(mdp.rewards)
    for k in range(iterations):
        before, logs = logs, chances(logs, q, kl, entropy)
        value = worth(logs, before, q, *((0.0, 0.0) if type_2 else (kl, entropy)))
        q = mdp.backup(value) + noise(k, value)
        yield Iterate(logs, q)


def dual_averaging(mdp: FiniteMDP, kl: float, entropy: float, noise: Noise, iterations: int) -> Iterator[Iterate]:
    """DA-VI: the softmax of an average h of all values so far; the same policies for the same errors (proposition 1).

    entropy = 0:  h_k = k / (k + 1) h_{k-1} + 1 / (k + 1) q_k,   pi_{k+1} = softmax((k + 1) h_k / kl)
    otherwise:    h_k = b h_{k-1} + (1 - b) q_k,   pi_{k+1} = softmax(h_k / entropy),   b = kl / (kl + entropy)
    """
    before, q = uniform(mdp), torch.zeros_like(mdp.rewards)
    h = torch.zeros_like(q)
    for k in range(iterations):
        share = 1 / (k + 1) if entropy == 0 else entropy / (kl + entropy)
        h = (1 - share) * h + share * q
        logs = (h * ((k + 1) / kl) if entropy == 0 else h / entropy).log_softmax(-1)
        value = worth(logs, before, q, kl, entropy)
        q, before = mdp.backup(value) + noise(k, value), logs
        yield Iterate(logs, q)


def sampled(mdp: FiniteMDP, seeds: Sequence[int]) -> Noise:
    """gamma (v(s') - P v) of one next state s' for each state and action, drawn anew in every backup.

    Every arm meets the same draws.
    """
    bounds, members = mdp.transitions.cumsum(-1), Population([Member(s) for s in seeds])
    last, shape = mdp.rewards.shape[1] - 1, mdp.rewards.shape[1:]

    def noise(k: int, value: Tensor) -> Tensor:
        drawn = members.draw("backup", k, of=lambda g: torch.rand(shape, generator=g, dtype=torch.float64))
        there = (bounds <= drawn[..., None]).sum(-1).clamp(max=last)
        found = value.gather(1, there.flatten(1)).view_as(drawn)
        return mdp.gamma * (found - (mdp.transitions * value[:, None, None]).sum(-1))

    return noise


def errors(mdp: FiniteMDP, iterates: Iterator[Iterate], at: Sequence[int]) -> list[list[float]]:
    """Mean over the states of V* - V of the policy after so many iterations, for each of `at`, [P] each."""
    best, found = mdp.optimal().amax(-1), []
    for k, (logs, _) in enumerate(iterates, 1):
        if k in at:
            found.append((best - mdp.evaluate(logs.exp())).mean(-1).tolist())
    return found


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """A Garnet for each seed; every rule from the same sampled backups."""
    mdp, at = Garnet().mdp(seeds, gamma=GAMMA), (EARLY, ITERATIONS)

    def run(kl: float, entropy: float) -> list[list[float]]:
        return errors(mdp, mirror_descent(mdp, kl, entropy, sampled(mdp, seeds), ITERATIONS), at)

    (early, late), plain, soft = run(KL, 0.0), run(0.0, 0.0), run(0.0, ENTROPY)
    backups = [float(ITERATIONS * mdp.rewards[0].numel())] * len(seeds)
    return pairs(
        seeds,
        {"error": late, "error, entropy alone": late, "error after 50": early},
        {"error": plain[1], "error, entropy alone": soft[1], "error after 50": plain[0]},
        budgets={"backups": (backups, backups)},
    )
