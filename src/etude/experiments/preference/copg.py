"""The claim of CoPG: bandits, answers of a random distribution, and exact gradients.

Each seed draws rewards, a reference and for every prompt a distribution mu of the data, which may have most of its
weight on bad responses. Every two responses are a pair that weighs as often as mu draws it. The baselines are policy
gradients of R = r - beta log pi/ref on the same data, sum_y mu(y) (R(y) - b) grad log pi(y), with b the mean reward
under mu, or 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from etude.core.kinds import TokenMethod
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs, variant
from etude.experiments.cells import recorded, spread
from etude.experiments.optima import Bandits, every_pair

BETA = 0.5
PROMPTS, RESPONSES, UPDATES, RATE = 4, 5, 400, 0.05
KL = "KL to the optimum"
ZERO, OWN = f"{KL} against no baseline", "CoPG's KL to the optimum"


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """KL(pi || pi*) after as many updates of each."""
    own = spread(partial(settled, variant("copg", {"objective.link.beta": BETA})), seeds)
    mean, zero = (spread(partial(followed, baseline), seeds) for baseline in ("mean reward", "none"))
    start = {KL: [bandits(seed).away() for seed in seeds]}
    return pairs(seeds, {KL: own, ZERO: own, OWN: own}, {KL: mean, ZERO: zero}, start=start)


def bandits(seed: int) -> Bandits:
    """A seed's rewards and first policy."""
    return Bandits(PROMPTS, RESPONSES, BETA, seed)


def behaviour(seed: int) -> Tensor:
    """mu [X, Y] of a seed: normal logits of standard deviation 1.5."""
    draw = torch.Generator().manual_seed(seed + 2)
    return (1.5 * torch.randn(PROMPTS, RESPONSES, generator=draw).double()).softmax(-1)


def settled(method: TokenMethod, seed: int) -> float:
    """KL(pi || pi*) after updates of a method's loss on all pairs."""
    matters = [method.to_json(), PROMPTS, RESPONSES, UPDATES, RATE, seed]
    return recorded(f"exact {method.id} {seed}", matters, lambda: _settled(method, seed))


def _settled(method: TokenMethod, seed: int) -> float:
    torch.set_num_threads(1)
    given, mu = bandits(seed), behaviour(seed)
    batch = every_pair(given.bandit, given.first)
    assert batch.prompt is not None and batch.response is not None
    chance = mu[batch.prompt, batch.response].view(-1, 2).prod(1).repeat_interleave(2)
    batch = batch.replace(weights=chance * len(batch))
    return given.settle(method, UPDATES, RATE, lambda _: batch)


def followed(baseline: str, seed: int) -> float:
    """KL(pi || pi*) after updates along a policy gradient with a baseline."""
    matters = [baseline, PROMPTS, RESPONSES, BETA, UPDATES, RATE, seed]
    return recorded(f"exact policy gradient {baseline} {seed}", matters, lambda: _followed(baseline, seed))


def _followed(baseline: str, seed: int) -> float:
    torch.set_num_threads(1)
    given, mu = bandits(seed), behaviour(seed)
    optimizer = torch.optim.Adam([given.policy.logits[0]], RATE)
    rewards, first = given.bandit.rewards, given.first[0, :, 0]
    held = (mu * rewards).sum(-1, keepdim=True) if baseline == "mean reward" else 0.0
    for _ in range(UPDATES):
        logp = given.policy.logp()[0]
        worth = rewards - BETA * (logp.detach() - first)
        optimizer.zero_grad()
        (-(mu * (worth - held) * logp).sum(-1).mean()).backward()
        optimizer.step()
    return given.away()
