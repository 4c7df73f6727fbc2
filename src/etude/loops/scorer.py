"""Score: all of a language step that needs frozen models and rewards only, from rows to scored rows."""

from __future__ import annotations

from collections import Counter

import torch

from etude.core.batches import TokenBatch
from etude.core.kinds import TokenMethod
from etude.core.slots import Context
from etude.core.task import LanguageTask
from etude.loops.credit import scored
from etude.loops.recorded import recorded_entropies, recorded_hidden
from etude.loops.token_learning import TokenLearners, own_needs
from etude.loops.whole_batch import evaluate_all, reference_all, reference_values_all
from etude.policies.language import LanguagePolicy
from etude.rewards.scoring import NO_REWARD


class Scorer:
    """Says what rows are worth. The policy is only read, at the weights that sampled the rows.

    Args:
        dropped: counts rows that are left out, by reason.
    """

    def __init__(self, task: LanguageTask, policy: LanguagePolicy, dropped: Counter[str]) -> None:
        self.task, self.policy, self.dropped = task, policy, dropped

    def score(
        self, method: TokenMethod, batch: TokenBatch, context: Context, budget: int, learners: TokenLearners
    ) -> TokenBatch:  # fmt: skip
        """Rows with all that parts need to give credit, and with rewards.

        Args:
            budget: padded tokens of a micro-batch.
            learners: of the policy; what they offer is in `batch.offers` before the rows are rewarded.
        """
        if "reference_logp" in method.needs():
            batch.reference_logp = self._reference(method, batch, budget)
        if "reference_values" in method.needs():
            batch.reference_values = reference_values_all(self.policy, batch, budget)
        batch, episodes = self._shown(method, batch, context, budget), batch.episodes
        wholes = batch.wholes()
        batch.solved = torch.tensor([bool(self.task.success(e.whole)) for e in episodes], device=self.policy.device)
        learners.offer(batch)
        batch = scored(method, batch, context)
        if self.task.judged_by_reward:
            batch.solved = batch.scores.new_tensor([self.task.success(e.whole) for e in batch.episodes]).bool()
        why = [e.info["dropped"] == NO_REWARD for e in wholes if "dropped" in e.info]
        self.dropped.update({"no_reward": sum(why), "failed_reward": len(why) - sum(why)})
        return batch

    def _reference(self, method: TokenMethod, batch: TokenBatch, budget: int) -> torch.Tensor:
        """[B, T] reference log-probabilities; 0 on probes, of which only rewards could ask for them."""
        probes = torch.tensor([e.probe for e in batch.episodes], device=batch.tokens.device)
        if not bool(probes.any()) or "reference_logp" in method.needs("rewards"):
            return reference_all(self.policy, batch, budget)
        found, own = torch.zeros_like(batch.behaviour_logp), (~probes).nonzero()[:, 0]
        found[own] = reference_all(self.policy, batch.rows(own), budget).to(found)
        return found

    def _shown(self, method: TokenMethod, batch: TokenBatch, context: Context, budget: int) -> TokenBatch:
        """The rows with the entropies and states that their tokens were sampled from, where parts need them."""
        if "entropy" in context.record and (entropy := recorded_entropies(batch)) is not None:
            batch.entropy = entropy
        elif "entropy" in method.needs("rewards", "filters", "advantages"):
            batch.entropy = evaluate_all(self.policy, batch, {"entropy"}, budget).entropy
            assert batch.entropy is not None
        if "hidden" in method.needs("rewards", "filters") | own_needs(method):
            return with_hidden(self.policy, batch, budget)
        if "hidden" in context.record and (recorded := recorded_hidden(batch)) is not None:
            return with_hidden(self.policy, batch, budget, recorded)
        return batch


def with_hidden(
    policy: LanguagePolicy, batch: TokenBatch, budget: int, hidden: torch.Tensor | None = None
) -> TokenBatch:  # fmt: skip
    """The batch with the states that predict its tokens, as the sampler recorded them, and the head that does."""
    hidden = recorded_hidden(batch) if hidden is None else hidden
    if hidden is None:
        hidden = evaluate_all(policy, batch, {"hidden"}, budget).hidden
        assert hidden is not None
    return batch.replace(hidden=hidden, head=policy.head(batch.temperature))
