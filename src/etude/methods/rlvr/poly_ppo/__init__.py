"""Polychromic PPO: reward sets of completions for being right and different (arXiv:2509.25424).

Set RL maximises E[f(s, tau_1, ..., tau_n)] over sets of n independent rollouts from a state s. Its gradient is
E[(f - b) sum_i sum_t grad log pi(a_t^i | s_t^i)]: every rollout of a set shares the set's advantage. The polychromic
objective is

    f(s, tau_1, ..., tau_n) = (1/n sum_i R(tau_i)) * d(s, tau_1, ..., tau_n),

R the return from s on, scaled to [0, 1], and d the share of the rollouts that are distinct (by the task's `signature`).
Changes PPO in three places:

1. on each of a few seed rollouts, N continuations are sampled from each of p states (`Vine`);
2. of the N, M random sets of n < N are scored with f; the advantage of a set is f minus the mean of the M scores, that
   of a continuation the mean over the sets that it is in. It takes the place of GAE for the action at the state and the
   W after it (`Polychromic`); what is in no set keeps GAE. Then all advantages are standardised over the batch;
3. a penalty 0.01 KL(pi_old || pi) for every state (`OldPolicyKL`). The expectation over the actions is estimated from
   the one that was taken, exp(d) - d - 1 with d = log pi - log pi_old, which is unbiased for it.

The paper's numbers: N = 8, n = 4, M = 4, p = 2, W = 5, clip 0.2, GAE 0.95, two epochs. Here a step is a token. With all
sets instead of M (`sets` large enough) the estimate has the expectation (N - n)/n grad E[f]: the baseline contains each
set's own score.

This is the version for tokens. The paper's grid worlds of control (MiniGrid, BabyAI; sets of visited rooms or cells as
signatures, a simulator that is reset to a state) are not in here, nor is its bonus for rare actions.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any, ClassVar

import torch
from torch import Tensor

from etude.advantages.returns import GAE, standardized
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.draws import children, uniforms
from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative, WholeNumber
from etude.core.method import Method
from etude.core.slots import TokenAdvantages, TokenRegularizer
from etude.methods.foundation.ppo import ppo
from etude.methods.rlvr.poly_ppo.vine import Vine
from etude.regularizers.kl import kl_estimate


class Polychromic(TokenAdvantages):
    """Set advantages for the first tokens of continuations, another estimate of the advantage everywhere else.

    Args:
        of: the other estimate; not standardised by itself.
        sets: M, random sets of each state's continuations; all sets if there are no more than that.
        set_size: n, continuations in a set.
        window: W, tokens after a continuation's first that get the set advantage too.
        lowest, highest: the returns that are scaled to 0 and 1 (clipped beyond).
        standardize: whether all advantages of the batch get mean 0 and standard deviation 1.

    Shapes: [B, T]. States that fewer than `set_size` continuations are left of keep the other estimate.

    Of four continuations two were paid; in sets {0, 1} and {2, 3} both are distinct, so f = 1/2 * 1 and 1/2 * 1/2:

    >>> sets = torch.tensor([[[True, True, False, False], [False, False, True, True]]])
    >>> scores = polychromic(torch.tensor([[[1.0, 0.0, 1.0, 0.0]]]), torch.tensor([[0, 1, 2, 2]]), sets)
    >>> scores.tolist(), set_advantages(scores, sets)[0].tolist()
    ([[0.5, 0.25]], [[0.125, 0.125, -0.125, -0.125]])
    """

    of: TokenAdvantages = GAE(gamma=1.0, lam=0.95, standardize=False)
    sets: Count = 4
    set_size: Count = 4
    window: WholeNumber = 5
    lowest: float = 0.0
    highest: float = 1.0
    standardize: bool = True

    def check(self) -> None:
        if self.highest <= self.lowest:
            raise ConfigError(f"Polychromic.highest must be above lowest, {self.lowest}, got {self.highest}.")

    def objection(self, method: Method) -> str | None:
        size = getattr(method.slots().get("experience"), "continuations", None)
        if size is None:
            return "compares sets of continuations of one state, and nothing samples them: use Vine (experience=vine)."
        if size <= self.set_size:
            return f"needs more continuations than a set has: set experience.continuations above {self.set_size}."
        return None

    def __call__(self, batch: TokenBatch) -> Tensor:
        advantages = self.of(batch)
        rows = _by_vine(batch)
        if rows.shape[1] >= self.set_size:
            found, inside = self._of_sets(batch, rows)
            near = batch.action_mask & (batch.action_mask.cumsum(1) <= self.window + 1)
            advantages = torch.where(near & inside[:, None], found[:, None], advantages)
        return standardized(advantages, batch.action_mask) if self.standardize else advantages

    def returns(self, batch: TokenBatch) -> Tensor | None:
        return self.of.returns(batch)

    def _of_sets(self, batch: TokenBatch, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[B] set advantages, and which rows have one; `rows` [S, N] of each state, -1 where there is none."""
        real = rows >= 0
        kinds = [e.info.get("signature", "") for e in batch.episodes]
        number = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
        kind = torch.tensor([number[k] for k in kinds], device=rows.device)
        returns = ((batch.scores - self.lowest) / (self.highest - self.lowest)).clamp(0, 1)
        assert batch.draw is not None
        sets = chosen_sets(real, batch.draw[rows], self.sets, self.set_size)
        scores = polychromic(returns[rows][:, None].expand(sets.shape), kind[rows], sets)
        credit, inside = set_advantages(scores, sets)
        found, has = torch.zeros_like(batch.scores), torch.zeros_like(batch.sampled)
        found[rows[inside]], has[rows[inside]] = credit[inside].to(found), True
        return found, has


def chosen_sets(real: Tensor, draw: Tensor, count: int, size: int) -> Tensor:
    """[S, M, N] which of each state's continuations (those that are `real` [S, N]) are in each of M sets.

    Number m of their draws [S, N] puts the continuations in an order; the first of it are set m.
    Every set is a uniformly random one of `size`; all of them, in order, if there are no more than `count`. A set for
    which too few continuations are left is empty.
    """
    states, number = real.shape
    if comb(number, size) <= count:
        sets = torch.zeros(comb(number, size), number, dtype=torch.bool)
        sets.scatter_(1, torch.tensor(list(combinations(range(number), size))), True)
        found = sets.to(real.device).expand(states, -1, -1)
        return found & (found <= real[:, None]).all(-1, keepdim=True)
    numbers = uniforms(children(draw.flatten(), "set"), 0, count).view(count, states, number)
    keys = numbers.transpose(0, 1)
    first = keys.masked_fill(~real[:, None], 2.0).argsort(-1)[..., :size]
    found = torch.zeros_like(keys, dtype=torch.bool).scatter(2, first, True)
    return found & (real.sum(1) >= size)[:, None, None]


def polychromic(returns: Tensor, kinds: Tensor, sets: Tensor) -> Tensor:
    """[S, M] f of every set: mean return times share of distinct continuations; 0 for an empty set.

    Shapes: returns [S, M, N] (or [S, 1, N]), kinds [S, N] equal numbers for equal signatures, sets [S, M, N] bool.
    """
    size = sets.sum(-1).clamp(min=1)
    earlier = torch.ones(kinds.shape[1], kinds.shape[1], dtype=torch.bool, device=kinds.device).tril(-1)
    same = (kinds[:, :, None] == kinds[:, None, :]) & earlier
    repeated = (same[:, None] & sets[:, :, None, :]).any(-1) & sets
    return (returns * sets).sum(-1) / size * (sets & ~repeated).sum(-1) / size


def set_advantages(scores: Tensor, sets: Tensor) -> tuple[Tensor, Tensor]:
    """[S, N] mean over the sets that a continuation is in of (score - mean score), and whether it is in any.

    Shapes: scores [S, M], sets [S, M, N].
    """
    used = sets.any(-1)
    mean = (scores * used).sum(1, keepdim=True) / used.sum(1, keepdim=True).clamp(min=1)
    times = sets.sum(1)
    return ((scores - mean)[:, :, None] * sets).sum(1) / times.clamp(min=1), times > 0


def _by_vine(batch: TokenBatch) -> Tensor:
    """[S, N] rows that continue each state, -1 where one was lost."""
    members: dict[Any, list[int]] = {}
    for row, (group, episode) in enumerate(zip(batch.group.tolist(), batch.episodes)):
        if "vine" in episode.info:
            members.setdefault((group, episode.info["vine"]), []).append(row)
    width = max(map(len, members.values()), default=0)
    padded = [rows + [-1] * (width - len(rows)) for rows in members.values()]
    return torch.tensor(padded, dtype=torch.long, device=batch.tokens.device).view(len(padded), width)


class OldPolicyKL(TokenRegularizer):
    """coefficient * KL(pi_old || pi) for every state, estimated from the token that pi_old took, in nats.

    Shapes: [B, T]. With pi = 2 pi_old, k3 = 2 - 1 - log 2:

    >>> from types import SimpleNamespace as Rows
    >>> rows, policy = Rows(behaviour_logp=torch.tensor([[0.25]]).log()), TokenLogProbs(torch.tensor([[0.5]]).log())
    >>> round(OldPolicyKL(coefficient=1.0)(rows, policy).item(), 4)
    0.3069
    """

    uses_behaviour: ClassVar[bool] = True
    coefficient: NonNegative = 0.01

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        return self.coefficient * kl_estimate(batch.behaviour_logp, policy.logp, "k3")


poly_ppo = ppo.replace(
    id="poly-ppo",
    title="Polychromic Objectives for Reinforcement Learning",
    paper="arXiv:2509.25424",
    experience=Vine(size=2, states=2, continuations=8),
    advantages=Polychromic(sets=4, set_size=4, window=5),
    regularizers=(OldPolicyKL(coefficient=0.01),),
    problems=8,
    claim=Claim(
        statement="Rewarding sets for being right and different gives a higher pass@32 than PPO at equal completions, "
        "and no lower pass@1.",
        task="compose",
        setting="a start that is right once in twenty",
        measures=(
            Measure(name="pass@32", smallest=0.03),
            Measure(name="pass@1", margin=-0.05, smallest=0.03),
            Measure(name="pass@8", role="mechanism", smallest=0.03),
            Measure(name="distinct right answers", role="mechanism", smallest=0.2, bounds=(0.0, None)),
        ),
        equal=("completions",),
        learned_on="pass@1",
        paper_effect="Goto success 80.2% against 46.2% (PPO); FourRooms 92.4% against 89.2%.",
    ),
)
