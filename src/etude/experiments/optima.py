"""Exact gradients on small bandits: how near to the regularised optimum a method's loss leads, without sampling."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.complete import complete_token
from etude.core.kinds import TokenMethod
from etude.loops.bandit import Bandit
from etude.loops.credit import loss
from etude.policies.tabular import SoftmaxTree


class Bandits:
    """Softmax policies over responses that earn uniform rewards in [0, 1], all drawn with one seed.

    `first` is the table of log-probabilities that training begins with, and `best` [X, Y] the logarithm of what
    maximises E[r] - beta KL(pi || pi_first), both of X prompts with Y responses.
    """

    def __init__(self, prompts: int, responses: int, beta: float, seed: int) -> None:
        self.policy = SoftmaxTree(prompts, responses, spread=1.0, seed=seed)
        rewards = torch.rand(prompts, responses, generator=torch.Generator().manual_seed(seed + 1)).double()
        self.bandit = Bandit(self.policy, rewards)
        self.first = self.policy.table().detach()
        self.best = (self.first[0, :, 0] + rewards / beta).log_softmax(-1)

    def settle(self, method: TokenMethod, updates: int, rate: float, batch: Callable[[int], TokenBatch]) -> float:
        """KL(pi || pi*) after Adam's updates of the method's loss on `batch(update)`."""
        complete = complete_token(method)
        optimizer = torch.optim.Adam([self.policy.logits[0]], rate)
        for update in range(updates):
            rows = batch(update)
            assert rows.prompt is not None and rows.response is not None
            optimizer.zero_grad()
            said = self.policy.rows(0, rows.prompt, rows.response, self.policy.table())
            value: Tensor = loss(complete, rows, said, self.policy.length)
            value.backward()
            optimizer.step()
        return self.away()

    def away(self) -> float:
        """KL(pi || pi*) in nats, mean over the prompts."""
        logp = self.policy.logp().detach()[0]
        return float((logp.exp() * (logp - self.best)).sum(-1).mean())


def every_pair(bandit: Bandit, table: Tensor) -> TokenBatch:
    """A group for every two different responses to each prompt, two rows each, as the policy of a table says them."""
    prompts, responses = bandit.rewards.shape
    two = torch.combinations(torch.arange(responses)).flatten()
    prompt, response = torch.arange(prompts).repeat_interleave(len(two)), two.repeat(prompts)
    said = bandit.policy.rows(0, prompt, response, table)
    return bandit.batch(prompt, response, said, said.logp, torch.arange(len(prompt)) // 2)
