"""One batch's optimizer steps: minibatches, micro-batches, one denominator, and the checks on the way."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import EtudeError, InvariantError, NonFiniteError
from etude.core.method import Method
from etude.core.streams import Stream
from etude.experience.rows import micro_batches, split_groups
from etude.objectives.aggregation import token_weights
from etude.policies.language import LanguagePolicy, fingerprint

MAX_BAD_STEPS = 3
"""Optimizer steps in a row that may be skipped for non-finite numbers before the run stops."""
GAP = {torch.float32: 2e-3, torch.float64: 1e-6, torch.bfloat16: 0.1}
"""Largest mean |log-probability gap| between sampler and trainer, by the coarser of their dtypes."""


@dataclass
class Tally:
    """Sums of what is reported, over the micro-batches of a step."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, total: float, count: float = 1.0) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + total
        self.counts[name] = self.counts.get(name, 0.0) + count

    def count(self, name: str) -> None:
        """Report how often this happened."""
        self.sums[name], self.counts[name] = self.sums.get(name, 0.0) + 1, 1.0

    def merge(self, other: Tally) -> None:
        """Add what another tally holds."""
        for name, total in other.sums.items():
            self.add(name, total, other.counts[name])

    def add_tensor(self, name: str, value: Tensor, mask: Tensor) -> None:
        on = value.detach()[mask] if value.dim() > 1 else value.detach()
        self.add(name, float(on.sum()), on.numel())

    def means(self) -> dict[str, float]:
        return {k: v / max(self.counts[k], 1e-12) for k, v in self.sums.items()}


class Updater:
    """Takes a policy's optimizer steps.

    Args:
        budget: padded tokens of one micro-batch; memory decides, results do not depend on it.
        length: completion limit, the denominator of 'fixed-length'.
    """

    def __init__(self, policy: LanguagePolicy, method: Method, steps: int, budget: int, length: int) -> None:
        assert method.optimizer is not None
        self.policy, self.steps, self.budget, self.length = policy, steps, budget, length
        if "values" in method.needs():
            policy.add_value_head()
        self.optimizer = method.optimizer.build(policy.parameters())
        self.rate = float(self.optimizer.param_groups[0]["lr"])
        self.bad_steps = 0
        self.halved = False

    def run(self, method: Method, batch: TokenBatch, step: int, stream: Stream) -> dict[str, float]:
        """Train on a batch; returns what to report. Raises InvariantError or NonFiniteError."""
        tally = Tally()
        before = fingerprint(self.policy.parameters())
        moved = False
        for epoch in range(method.epochs):
            order = stream.split("minibatches", epoch).numpy if method.minibatches > 1 else None
            for number, rows in enumerate(split_groups(batch, method.minibatches, order)):
                fresh = epoch == 0 and number == 0
                moved |= self._step(method, batch.rows(rows), step, fresh, tally)
        if moved and fingerprint(self.policy.parameters()) == before:
            raise InvariantError(
                f"The update of step {step} had a gradient but left every weight as it was: the optimizer does not "
                "hold the policy's parameters, or the learning rate is too small for the dtype."
            )
        return tally.means()

    def _step(self, method: Method, batch: TokenBatch, step: int, fresh: bool, tally: Tally) -> bool:
        """One optimizer step on a minibatch; False if there was nothing to learn or it was skipped."""
        self.optimizer.zero_grad(set_to_none=True)
        used, attempt = None, Tally()
        with suppress(torch.OutOfMemoryError):
            used = self._accumulate(method, batch, fresh, attempt)
        if used is None:  # outside the handler, whose traceback would keep the tensors alive
            self._halve(batch, tally)
            return self._step(method, batch, step, fresh, tally)
        tally.merge(attempt)
        if not used:
            return False
        parameters = [p for p in self.policy.parameters() if p.grad is not None]
        limit = method.optimizer.clip()
        norm = torch.nn.utils.clip_grad_norm_(parameters, torch.inf if limit is None else limit)
        if not bool(torch.isfinite(norm)):
            self._skip(batch, step, tally)
            return False
        self.bad_steps = 0
        rate = self.rate * method.optimizer.rate(step, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.policy.updated()
        tally.add("gradient_norm", float(norm))
        tally.add("learning_rate", rate)
        return float(norm) > 0 and rate > 0

    def _accumulate(self, method: Method, batch: TokenBatch, fresh: bool, tally: Tally) -> bool:
        """Add up the gradient over micro-batches; False if no row has anything to teach."""
        weights = token_weights(method.aggregation, batch.action_mask, self.length) * batch.weights[:, None]
        row_weights = batch.weights / len(batch)
        needs = method.needs()
        if method.token_weights:
            current = self._current(method, batch, fresh, needs)
            for part in method.token_weights:
                weights = weights * part(batch, current)
        batch = batch.replace(extras={**batch.extras, "weights": weights, "row_weights": row_weights})
        rows = self._useful(method, batch)
        tally.add("rows_skipped", len(batch) - len(rows), len(batch))
        if not len(rows):
            return False
        batch, done = batch.rows(rows), 0
        coupled = method.objective.couples == "group"
        for piece in micro_batches(batch, self.budget, coupled):
            micro = batch.rows(piece, trim=True)
            out = self.policy.evaluate(micro, needs)
            if fresh and method.experience.samples:
                self._compare(micro, out, getattr(method.experience, "truncates", False), tally)
            self._loss(method, micro, out, tally).backward()
            done += len(piece)
        tally.add("loss", 0.0, 1.0)
        if done != len(batch):
            raise InvariantError(f"{done} of {len(batch)} rows reached the gradient: rows were lost in micro-batching.")
        return True

    def _useful(self, method: Method, batch: TokenBatch) -> Tensor:
        """Rows that can have a gradient: with zero advantage and nothing else in the loss, none."""
        everything = torch.arange(len(batch), device=batch.tokens.device)
        if not method.objective.vanishes_with_advantage or method.regularizers or method.critic:
            return everything
        return ((batch.advantages * batch.extras["weights"]) != 0).any(1).nonzero()[:, 0]

    def _loss(self, method: Method, batch: TokenBatch, policy: TokenLogProbs, tally: Tally) -> Tensor:
        mask, weights = batch.action_mask, batch.extras["weights"]
        per_token = method.objective(batch, policy)
        if per_token.dim() == 1:
            loss = (per_token * batch.extras["row_weights"]).sum()
        else:
            loss = torch.where(mask, per_token * weights, 0.0).sum()
        for name, value in method.objective.metrics(batch, policy).items():
            tally.add_tensor(name, value, mask)
        for part in method.regularizers:
            term = part(batch, policy)
            loss = loss + torch.where(mask, term * weights, 0.0).sum()
            tally.add_tensor(f"regularizer/{part.name}", term, mask)
        if method.critic is not None:
            error = method.critic.loss(batch, policy)
            loss = loss + torch.where(mask, error * weights, 0.0).sum()
            tally.add_tensor("value_loss", error, mask)
        if policy.entropy is not None:
            tally.add_tensor("entropy", policy.entropy, mask)
        tally.add("loss", float(loss.detach()), 0.0)  # a share of the step's loss; counted once, per step
        return loss

    @torch.no_grad()
    def _current(self, method: Method, batch: TokenBatch, fresh: bool, needs: Any) -> TokenLogProbs:
        """The current policy on a whole minibatch, without gradient; fresh samples carry their own log-probs."""
        wanted = frozenset().union(*(p.needs for p in method.token_weights))
        recorded = batch.extras.get("entropy")
        own = method.experience.samples and not getattr(method.experience, "truncates", False)
        if fresh and own and (not wanted or (wanted == {"entropy"} and recorded is not None)):
            return TokenLogProbs(batch.behaviour_logp, recorded)
        return evaluate_all(self.policy, batch, wanted, self.budget)

    def _compare(self, batch: TokenBatch, policy: TokenLogProbs, truncated: bool, tally: Tally) -> None:
        """Invariant 1: the sampler's log-probabilities are the trainer's."""
        gap = (policy.logp.detach() - batch.behaviour_logp)[batch.action_mask]
        # what top-p or top-k leaves is likelier than under the policy; only the other way round is it a fault
        gap = gap.clamp(min=0) if truncated else gap.abs()
        tally.add("logp_gap", float(gap.sum()), gap.numel())
        bound = GAP[torch.bfloat16 if self.policy.shadow or self.policy.autocast else self.policy.model.dtype]
        if not float(gap.mean()) <= bound:
            raise InvariantError(
                f"Fresh samples have log-probabilities that differ by {float(gap.mean()):.3g} nats per token on "
                f"average (largest {float(gap.max()):.3g}) between sampling and training; at most {bound:g} is "
                "rounding. The sampler used other weights, another temperature or a truncated distribution, or tokens "
                "were changed after sampling. Nothing was updated with this batch."
            )

    def _skip(self, batch: TokenBatch, step: int, tally: Tally) -> None:
        self.bad_steps += 1
        tally.count("skipped_steps")
        if self.bad_steps >= MAX_BAD_STEPS:
            error = NonFiniteError(
                f"The gradient was not finite in {self.bad_steps} optimizer steps in a row (step {step}); each was "
                "skipped. Lower the learning rate (--set optimizer.lr=...) or look at the rewards of the last batch."
            )
            error.batch = {"tokens": batch.tokens, "action_mask": batch.action_mask, "rewards": batch.rewards}
            raise error

    def _halve(self, batch: TokenBatch, tally: Tally) -> None:
        """Out of memory: half the micro-batch, once."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.halved:
            longest = int(batch.lengths.max())
            raise EtudeError(
                f"Out of memory with micro-batches of {self.budget} tokens (longest row: {longest}); set a smaller "
                "--micro-tokens, or --gradient-checkpointing."
            )
        self.halved, self.budget = True, max(1, self.budget // 2)
        tally.count("out_of_memory")
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


@torch.no_grad()
def evaluate_all(policy: LanguagePolicy, batch: TokenBatch, needs: Any, budget: int) -> TokenLogProbs:
    """The policy on a whole batch, without gradient, micro-batch by micro-batch."""
    return _gather(batch, budget, lambda micro: policy.evaluate(micro, needs))


@torch.no_grad()
def reference_all(policy: LanguagePolicy, batch: TokenBatch, budget: int) -> Tensor:
    """[B, T] reference log-probabilities of a whole batch."""
    return _gather(batch, budget, lambda micro: TokenLogProbs(policy.reference_logp(micro))).logp


def _gather(batch: TokenBatch, budget: int, evaluate: Any) -> TokenLogProbs:
    found: dict[str, Tensor] = {}
    for piece in micro_batches(batch, budget, whole_groups=False):
        out = evaluate(batch.rows(piece, trim=True))
        for name, value in vars(out).items():
            if value is not None:
                whole = found.setdefault(name, value.new_zeros(*batch.tokens.shape, *value.shape[2:]))
                whole[piece, : value.shape[1]] = value
    return TokenLogProbs(**found)
