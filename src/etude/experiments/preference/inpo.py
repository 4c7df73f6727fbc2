"""The claim of INPO: random preferences without an order, exact rounds, and the exact gain of whoever knows the policy.

Each seed draws, for every prompt, a reference and a matrix P of how likely each response is preferred to each other,
whose log-odds are normal, so that many triples go round in a circle. In a round every ordered pair (y, y') weighs
pi_t(y) pi_t(y') P(y > y'), and the loss is minimised by exact gradients. Iterative DPO has the same pairs, and the
reference for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.complete import complete_token
from etude.core.kinds import TokenMethod
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs, variant
from etude.experiments.cells import recorded, spread
from etude.experiments.optima import every_pair
from etude.loops.bandit import Bandit
from etude.loops.credit import loss
from etude.policies.tabular import SoftmaxTree

TAU, ETA = 0.1, 0.3
PROMPTS, RESPONSES, ROUNDS, UPDATES, RATE = 4, 10, 10, 60, 0.1
NAME, OWN = "exploitability", "INPO's exploitability"


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Exploitability after all rounds."""
    own, other = (spread(partial(settled, method), seeds) for method in arms())
    start = {NAME: [exploitability(*game(seed)) for seed in seeds]}
    return pairs(seeds, {NAME: own, OWN: own}, {NAME: other}, start=start)


def arms() -> tuple[TokenMethod, TokenMethod]:
    """INPO, and DPO with the same weight of the reference."""
    return variant("inpo", {"objective.link.beta": ETA}), variant("dpo", {"objective.beta": TAU})


def game(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first policy's log-probabilities [X, Y], the reference's, which are the same, and P [X, Y, Y]."""
    draw = torch.Generator().manual_seed(seed)
    odds = 2 * torch.randn(PROMPTS, RESPONSES, RESPONSES, generator=draw).double().triu(1)
    first = (0.5 * torch.randn(PROMPTS, RESPONSES, generator=draw).double()).log_softmax(-1)
    return first, first, (odds - odds.mT).sigmoid()


def exploitability(logp: Tensor, reference: Tensor, preference: Tensor) -> float:
    """max over pi' of J(pi', pi) - J(pi, pi), mean over the prompts.

    The best answer to pi is ref exp(P(y > pi) / tau), up to its normaliser, whose logarithm times tau is the maximum.
    """
    wins = (preference * logp.exp()[:, None]).sum(-1)  # P(y > pi) [X, Y]
    best = TAU * torch.logsumexp(reference + wins / TAU, -1)
    own = (logp.exp() * (wins - TAU * (logp - reference))).sum(-1)
    return float((best - own).mean())


def settled(method: TokenMethod, seed: int) -> float:
    """Exploitability after all rounds of a method."""
    matters = [method.to_json(), PROMPTS, RESPONSES, ROUNDS, UPDATES, RATE, TAU, seed]
    return recorded(f"exact {method.id} {seed}", matters, lambda: _settled(method, seed))


def _settled(method: TokenMethod, seed: int) -> float:
    torch.set_num_threads(1)
    first, reference, preference = game(seed)
    policy = SoftmaxTree(PROMPTS, RESPONSES)
    policy.logits[0].data.copy_(first[:, None])
    for _ in range(ROUNDS):
        improve(method, policy, reference, preference)
    return exploitability(policy.logp().detach()[0], reference, preference)


def improve(
    method: TokenMethod, policy: SoftmaxTree, reference: Tensor, preference: Tensor, updates: int = UPDATES
) -> None:
    """A round: the loss on all pairs of the policy as it is, minimised from there with an optimizer of its own."""
    batch, whole = labelled(policy, reference, preference), complete_token(method)
    assert batch.prompt is not None and batch.response is not None
    optimizer = torch.optim.Adam([policy.logits[0]], RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    for _ in range(updates):
        optimizer.zero_grad()
        said = policy.rows(0, batch.prompt, batch.response, policy.table())
        loss(whole, batch, said, policy.length).backward()
        optimizer.step()
        schedule.step()


def labelled(policy: SoftmaxTree, reference: Tensor, preference: Tensor) -> TokenBatch:
    """Every two responses twice, once with each as the winner, weighing as often as they are drawn and labelled so."""
    bandit = Bandit(policy, torch.zeros(reference.shape, dtype=torch.float64))
    once = every_pair(bandit, policy.table().detach())
    assert once.prompt is not None and once.response is not None
    count = len(once)
    batch = once.rows(torch.arange(count).repeat(2))
    wins = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64).view(2, 2).repeat_interleave(count // 2, 0).flatten()
    two = once.response.view(-1, 2).repeat(2, 1)
    asked = once.prompt.view(-1, 2)[:, 0].repeat(2)
    first_wins = torch.arange(len(two)) < count // 2
    better, worse = torch.where(first_wins[:, None], two, two.flip(1)).unbind(1)
    chance = policy.probs().detach()[0]
    weight = 2 * chance[asked, better] * chance[asked, worse] * preference[asked, better, worse]
    prompt, response = batch.prompt, batch.response
    assert prompt is not None and response is not None
    return batch.replace(
        group=torch.arange(len(two)).repeat_interleave(2), episode=torch.arange(len(batch)), scores=wins,
        weights=weight.repeat_interleave(2) * len(batch), reference_logp=reference[prompt, response][:, None],
        advantages=torch.zeros_like(batch.rewards),
    )  # fmt: skip
