"""From samples of an enumerable policy to the batches that parts work on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.episodes import Episode, Problem, Segment
from etude.core.method import Method
from etude.policies.tabular import SoftmaxTree


class Bandit:
    """Makes batches of samples of an enumerable policy; what they earn is known from a table.

    Args:
        rewards: [X, Y] in float64, X prompts and Y responses.
        problems: what each prompt is called; None: numbers.
    """

    def __init__(self, policy: SoftmaxTree, rewards: Tensor, problems: Sequence[Problem] | None = None) -> None:
        self.policy, self.rewards = policy, rewards
        self.problems = problems or [Problem(f"enumerable/{x}", str(x)) for x in range(policy.prompts)]
        self._said: dict[tuple[int, int], Segment] = {}

    def batch(
        self, prompt: Tensor, response: Tensor, logp: TokenLogProbs, reference_logp: Tensor | None = None,
        group: Tensor | None = None,
    ) -> TokenBatch:  # fmt: skip
        """Rows of responses [B] to prompts [B]; `logp`: what the policy that sampled says; `group`: None: the prompt.

        `scores` are what the table pays, until the method's rewards say what rows are worth.
        """
        mask = self.policy.mask[response]
        scores = self.rewards[prompt, response]
        group = prompt if group is None else group
        pairs = zip(prompt.tolist(), response.tolist(), group.tolist())
        return TokenBatch(
            tokens=self.policy.tokens[response], attention_mask=mask, action_mask=mask,
            behaviour_logp=logp.logp.detach(), proximal_logp=logp.logp.detach(),
            rewards=torch.zeros_like(logp.logp.detach()), group=group,
            weights=torch.ones_like(scores), scores=scores, truncated=torch.zeros_like(scores, dtype=torch.bool),
            reference_logp=reference_logp, solved=scores >= 1, prompt=prompt, response=response,
            episode=torch.arange(len(scores)),
            episodes=[Episode(self.problems[x], [self._segment(x, y)], g) for x, y, g in pairs],
        )  # fmt: skip

    def shown(self, method: Method, batch: TokenBatch, member: int = 0) -> TokenBatch:
        """The rows with the states and entropies that a member's policy has now, where parts need them for credit."""
        needs = method.needs("rewards", "filters", "advantages") & {"hidden", "entropy"}
        if not needs:
            return batch
        assert batch.prompt is not None and batch.response is not None
        table = self.policy.table().detach()
        now = self.policy.rows(member, batch.prompt, batch.response, table, needs)
        return batch.replace(hidden=now.hidden, head=now.head, entropy=now.entropy)

    def _segment(self, x: int, y: int) -> Segment:
        """What was said, once for all rows that say it: nothing writes on it."""
        if (x, y) not in self._said:
            size = int(self.policy.mask[y].sum())
            path = self.policy.tokens[y, :size].tolist()
            segment = Segment("assistant", " ".join(map(str, path)), path, [1] * size, [0.0] * size)
            segment.reward = float(self.rewards[x, y])
            self._said[x, y] = segment
        return self._said[x, y]
