"""The claim of IPO: pairs that are always the same way round, on random bandits, with exact gradients.

A seed's bandits have responses whose rewards say which of two is preferred, always. Every pair has been seen, and both
losses are minimised to where they stay: DPO's nowhere, IPO's near the reference, as near as beta says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from etude.core.kinds import TokenMethod
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs, variant
from etude.experiments.cells import recorded, spread
from etude.experiments.optima import Bandits, every_pair

BETA = 1.0
PROMPTS, RESPONSES, UPDATES, RATE = 4, 6, 300, 0.1
KL, RIGHT = "KL to the reference", "pairs told apart"


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """KL(pi || ref) and the share of pairs that the policy has the right way round, after as many updates."""
    arms = (
        variant("ipo", {"objective.link.beta": BETA, **(arm or {})}),
        variant("dpo", {"objective.beta": BETA, **(baseline or {})}),
    )
    found = [spread(partial(settled, method), seeds) for method in arms]
    figures = [{name: [f[name] for f in each] for name in (KL, RIGHT)} for each in found]
    return pairs(seeds, *figures, start={RIGHT: [at_first(seed)[RIGHT] for seed in seeds]})


def settled(method: TokenMethod, seed: int) -> dict[str, float]:
    """What is true of a seed's policy after all updates on all pairs."""
    matters = [method.to_json(), PROMPTS, RESPONSES, UPDATES, RATE, seed]
    return recorded(f"exact {method.id} {seed}", matters, lambda: _settled(method, seed))


def _settled(method: TokenMethod, seed: int) -> dict[str, float]:
    torch.set_num_threads(1)
    given = Bandits(PROMPTS, RESPONSES, BETA, seed)
    batch = every_pair(given.bandit, given.first)
    given.settle(method, UPDATES, RATE, lambda _: batch)
    return now(given)


def at_first(seed: int) -> dict[str, float]:
    """What is true of a seed's first policy."""
    return now(Bandits(PROMPTS, RESPONSES, BETA, seed))


def now(given: Bandits) -> dict[str, float]:
    """KL(pi || ref), mean over the prompts, and the share of pairs whose better answer gained on the other."""
    logp, first = given.policy.logp().detach()[0], given.first[0, :, 0]
    gain, rewards = logp - first, given.bandit.rewards
    better = rewards[:, :, None] > rewards[:, None, :]
    right = (gain[:, :, None] > gain[:, None, :])[better]
    return {KL: float((logp.exp() * gain).sum(-1).mean()), RIGHT: float(right.double().mean())}
