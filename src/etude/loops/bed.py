"""From samples of an enumerable policy to the batches, credit and losses that a method's parts make of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from etude.core.batches import Episode, Problem, Segment, TokenBatch, TokenLogProbs
from etude.core.method import Method
from etude.core.slots import GroupReward, TokenReward
from etude.loops.losses import loss_terms, per_row, with_factors, with_shares
from etude.policies.tabular import SoftmaxTree
from etude.rewards.scoring import finite, outcomes, rescored


class Bed:
    """Turns samples of an enumerable policy into the batches that parts work on.

    Args:
        rewards: [X, Y] in float64, X prompts and Y responses.
        problems: what each prompt is called; None: numbers.
    """

    def __init__(self, policy: SoftmaxTree, rewards: Tensor, problems: Sequence[Problem] | None = None) -> None:
        self.policy, self.rewards = policy, rewards
        self.problems = problems or [Problem(f"enumerable/{x}", str(x)) for x in range(policy.prompts)]
        self._episodes: dict[tuple[int, int], Episode] = {}

    def batch(
        self, prompt: Tensor, response: Tensor, logp: TokenLogProbs, reference_logp: Tensor | None = None
    ) -> TokenBatch:  # fmt: skip
        """Rows of responses [B] to prompts [B] (group: the prompt); `logp`: what the policy that sampled says."""
        mask = self.policy.mask[response]
        scores = self.rewards[prompt, response]
        pairs = zip(prompt.tolist(), response.tolist())
        return TokenBatch(
            tokens=self.policy.tokens[response], attention_mask=mask, action_mask=mask,
            behaviour_logp=logp.logp.detach(), rewards=torch.zeros_like(logp.logp.detach()), group=prompt,
            weights=torch.ones_like(scores), scores=scores, truncated=torch.zeros_like(scores, dtype=torch.bool),
            reference_logp=reference_logp, solved=scores >= 1, episodes=[self._episode(x, y) for x, y in pairs],
        )  # fmt: skip

    def _episode(self, x: int, y: int) -> Episode:
        if (x, y) not in self._episodes:
            size = int(self.policy.mask[y].sum())
            path = self.policy.tokens[y, :size].tolist()
            said = Segment("assistant", " ".join(map(str, path)), path, [1] * size, [0.0] * size)
            said.reward = float(self.rewards[x, y])
            self._episodes[x, y] = Episode(self.problems[x], [said], x)
        return self._episodes[x, y]

    def credit(self, method: Method, batch: TokenBatch, member: int = 0, context: Any = None) -> TokenBatch:
        """Rewards, filters and advantages of the method, as its loop for language models would compute them."""
        if "hidden" in method.needs("rewards", "filters", "advantages"):
            prompt, response = batch.group, self._responses(batch)
            batch = batch.replace(head=self.policy.head(member))
            batch.extras["hidden"] = self.policy.hidden(prompt, response)
        if "entropy" in method.needs("rewards", "filters", "advantages"):
            said = self.policy.rows(
                member, batch.group, self._responses(batch), self.policy.table().detach(), frozenset({"entropy"})
            )
            assert said.entropy is not None
            batch.extras["entropy"] = said.entropy
        batch = self._score(method, batch, context)
        if not len(batch):
            return batch
        for part in method.parts().values():
            part.before_update(batch)
        for filtering in method.filters:
            batch = batch.replace(weights=batch.weights * filtering.weigh(batch))
        batch = batch.rows((batch.weights != 0).nonzero()[:, 0])
        if not len(batch):
            return batch
        nothing = torch.zeros_like(batch.rewards)
        return batch.replace(advantages=nothing if method.advantages is None else method.advantages(batch))

    def _score(self, method: Method, batch: TokenBatch, context: Any) -> TokenBatch:
        for episode in batch.episodes:  # rows of the same response share one
            episode.info.pop("dropped", None)
        batch, judged = outcomes(batch, method.rewards, context)
        table, total = batch.scores, torch.zeros_like(batch.scores)
        placed = torch.zeros_like(batch.rewards)
        last = (batch.action_mask.sum(1) - 1)[:, None]
        for place, part in enumerate(method.rewards):
            if isinstance(part, GroupReward):
                change = rescored(part, batch.replace(scores=total, rewards=placed)) - total
                shaped = torch.zeros_like(placed).scatter(1, last, change[:, None])
            elif isinstance(part, TokenReward) and part.name == "task-reward":
                change = table * part.weight  # type: ignore[attr-defined]
                shaped = finite(part, batch, torch.zeros_like(placed).scatter(1, last, change[:, None]))
            elif isinstance(part, TokenReward):
                shaped = finite(part, batch, part.shape_in(batch.replace(scores=total, rewards=placed), context))
                change = shaped.sum(1)
            else:
                change = judged[place].nan_to_num(0.0).to(table)
                shaped = torch.zeros_like(placed).scatter(1, last, change[:, None])
            total, placed = total + change, placed + shaped
        return batch.replace(scores=total, rewards=placed)

    def _responses(self, batch: TokenBatch) -> Tensor:
        """[B] numbers of the rows' responses."""
        same = (batch.tokens[:, None] == self.policy.tokens) & (batch.action_mask[:, None] == self.policy.mask)
        return same.all(-1).int().argmax(1)

    def loss(self, method: Method, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """The method's loss on a credited minibatch, token weights included."""
        batch = with_shares(method, batch, self.policy.length)
        batch = with_factors(method, batch, [part(batch, policy) for part in method.token_weights])
        terms = loss_terms(method, batch, policy)
        if "row_loss" in batch.extras:
            batch.extras["row_loss"].copy_(per_row(terms["objective"].values.detach(), batch.action_mask))
        return torch.stack([term.total for term in terms.values()]).sum()
