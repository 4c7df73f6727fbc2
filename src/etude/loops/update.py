"""One batch's optimizer steps: minibatches, micro-batches, one denominator, and the checks on the way."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import EtudeError, InvariantError
from etude.core.rows import split_groups
from etude.core.stages import OWN
from etude.core.streams import Stream
from etude.loops.agreement import comparable, compare, gap_sums, of_version, probed
from etude.loops.language_report import divergences
from etude.loops.lessons import Lesson, Minibatch, Piece
from etude.loops.lockstep import in_step, pass_along
from etude.loops.losses import (
    heads,
    loss_terms,
    per_row,
    skips,
    useful_rows,
    weighed,
    with_factors,
    with_held_tokens,
    with_shares,
)
from etude.loops.movement import LEAST, still
from etude.loops.noise import Noise
from etude.loops.tally import Tally, on_host
from etude.loops.together import add_gradients, check_alike, from_first, listed, spread, tallied
from etude.loops.token_learning import TokenLearners
from etude.loops.weighing import Weighing
from etude.loops.whole_batch import evaluate_all
from etude.optimizers.model import Halves, ModelStepper
from etude.policies.language import LanguagePolicy
from etude.policies.micro_batches import micro_batches
from etude.policies.snapshots import Snapshot
from etude.runtime.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from etude.core.complete import CompleteTokenMethod


class Updater:
    """Takes a policy's optimizer steps.

    Args:
        budget: padded tokens that a micro-batch holds; memory decides, results do not depend on it.
        length: completion limit, the denominator of 'fixed-length'.
        learners: the networks beside the policy; those of `method` if not given.
        ranks: who takes these steps too, each on a part of the rows.
    """

    def __init__(
        self, policy: LanguagePolicy, method: CompleteTokenMethod, steps: int, budget: int, length: int,
        learners: TokenLearners | None = None, ranks: Ranks = ALONE,
    ) -> None:  # fmt: skip
        self.ranks = ranks
        self.learners = learners or TokenLearners(method, policy, Stream(0), steps)
        self.policy, self.steps, self.budget, self.length = policy, steps, budget, length
        if method.reads_value_head:
            policy.add_value_head()
        self.turn, self.steppers = OWN, dict[str, ModelStepper]()
        self.restart(method)
        self.step = 0
        self.halved = self.told_still = False
        self.still: str | None = None
        self.row_loss: Tensor | None = None
        self.first_half: tuple[list[Tensor], float] | None = None
        self.noise, self.gaps, self.weighing = Noise(), list[Tensor](), Weighing()
        self.older: Sequence[Snapshot] = ()  # the weights that sampled, where they are not the present ones

    @property
    def stepper(self) -> ModelStepper:
        """What takes the present steps."""
        return self.steppers[self.turn]

    def restart(self, method: CompleteTokenMethod, turn: str = OWN) -> None:
        """Begin with a fresh optimizer, as the method has it, of the policy and the heads that are on it now."""
        self.steppers[turn] = ModelStepper(method.optimizer, self._trained(), self.policy.updated)

    def run(self, method: CompleteTokenMethod, batch: TokenBatch, step: int, stream: Stream) -> dict[str, float]:
        """Train on a batch; returns what to report. Raises InvariantError or NonFiniteError."""
        return self.run_together([Lesson(method, batch)], step, stream)

    def run_together(
        self, lessons: Sequence[Lesson], step: int, stream: Stream, fresh: bool = True
    ) -> dict[str, float]:  # fmt: skip
        """Train on the rows of several players at once, each step along the sum of their gradients.

        Args:
            fresh: whether the policy is still the one that sampled.
        """
        tally, first = Tally(), lessons[0].method
        self.step, before = step, self.policy.weights.mark()
        self.stepper.begin(step, str(step))
        moved = False
        present = self.ranks.told(not self.older)[0]  # the first rank's alone are the older weights
        for lesson in lessons:
            lesson.begin()
            if comparable(lesson.method):
                told = self.policy, lesson.method, lesson.batch, self.budget
                compare(probed(*told, self.older, fresh and present), self.noise, self.policy, tally)
        for epoch in range(first.epochs):
            cut = [lesson.pieces(stream.split("minibatches", epoch)) for lesson in lessons]
            for number, rows in enumerate(zip_longest(*cut)):
                newest = fresh and epoch == 0 and number == 0 and present
                pieces = [lesson.at(own) for lesson, own in zip(lessons, rows) if own is not None]
                moved |= self._step(pieces, step, newest, tally)
                for piece in pieces:
                    piece.close()
        for lesson in lessons:
            lesson.end()
        check_alike(self.ranks, now := self.policy.weights.mark(), step)
        if moved and now == before:
            raise InvariantError(
                f"The update of step {step} had a gradient but left every weight as it was: the optimizer does not "
                "hold the policy's parameters, or the learning rate is too small for the dtype."
            )
        if self.still and not self.told_still:  # not before it is known that something moved
            self.told_still = True
            warnings.warn(self.still, stacklevel=2)
        return tally.means()

    def _step(self, pieces: Sequence[Piece], step: int, fresh: bool, tally: Tally) -> bool:
        """One optimizer step on a minibatch; False if there was nothing to learn or it was skipped."""
        lesson = Minibatch(self, pieces, fresh, tally)
        found = self.stepper.step(lesson, pieces[0].method.optimizer.rate(step, self.steps))
        if "gradient_norm" not in found:
            return False
        if bool(found["skipped_steps"]):
            tally.count("skipped_steps")
            return False
        norm, rate = float(found["gradient_norm"]), float(found["learning_rate"])
        if norm > 0 and rate > 0:
            self._watch(lesson.movement.share(), rate, step, tally)
        tally.add("gradient_norm", norm)
        tally.add("learning_rate", rate)
        return norm > 0 and rate > 0

    def accumulate(self, method: CompleteTokenMethod, batch: TokenBatch, fresh: bool, tally: Tally) -> bool:
        """Add up the gradient over micro-batches; False if no row has anything to teach."""
        batch = with_shares(method, batch, self.length)
        if method.token_weights or any(part.where for part in method.regularizers):
            current = self._current(method, batch, fresh)
            current.learning_rate = self.stepper.lr * method.optimizer.rate(self.step, self.steps)
            if current.entropy is not None:
                tally.add_tensor("entropy_before", current.entropy, batch.action_mask)
            factors = from_first(
                self.ranks, lambda: [part(batch, current) for part in method.token_weights], batch.scores
            )
            batch = with_held_tokens(method, with_factors(method, batch, factors), current)
            shown = {f"tokens_kept/{part.name}": factor for part, factor in zip(method.token_weights, factors)}
            shown |= {f"tokens_held/{k}": v for k, v in batch.regularizer_shares.items()}
            for name, factor in shown.items():
                tally.add_tensor(name, (factor != 0).float(), batch.action_mask)
        useful = useful_rows(method, batch)
        tally.add("rows_skipped", len(batch) - len(useful), len(batch))
        idle = batch.action_counts.sum() - batch.action_counts[useful].sum()
        for name in method.objective.zero_without_advantage if skips(method) else ():
            tally.add(name, 0.0, idle)
        if not len(useful):
            return False
        with self.ranks.agreed():
            mine, own = self._differentiate(method, batch, useful, fresh)
        if self.row_loss is not None:
            spread(self.ranks, self.row_loss, mine)
        add_gradients(self.ranks, self._trained())
        if self.first_half is not None:
            self.ranks.sum(self.first_half[0])
        tally.merge(tallied(self.ranks, own))
        done = sum(self.ranks.told(len(mine)))
        gaps, apart = on_host(listed(self.ranks, self.gaps), listed(self.ranks, self.weighing.apart))
        compare(gaps, self.noise, self.policy, tally)
        self.weighing.check(apart, self.step)
        tally.add("loss", 0.0, 1.0)
        if done != len(useful):
            raise InvariantError(
                f"{done} of {len(useful)} rows reached the gradient: rows were lost in micro-batching."
            )
        return True

    def _differentiate(
        self, method: CompleteTokenMethod, batch: TokenBatch, useful: Tensor, fresh: bool
    ) -> tuple[Tensor, Tally]:
        """Add up the gradient of this rank's part of the useful rows; which those are, and what they report."""
        self.first_half, own, mine = None, Tally(), []
        self.gaps.clear()
        self.weighing.apart.clear()
        everything = torch.arange(len(batch), device=batch.tokens.device)
        for number, half in enumerate(split_groups(batch, 2, None) if method.optimizer.halves else [everything]):
            if number:
                found = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self._trained()]
                self.first_half = found, 1 - len(half) / len(batch)
            rows = half[torch.isin(half, useful)]
            part = self.ranks.mine(batch, rows, method.objective.couples == "group")
            mine.append(part[: self._backward(method, batch, part, rows, fresh, own)])
        return torch.cat(mine), own

    def _backward(
        self, method: CompleteTokenMethod, batch: TokenBatch, rows: Tensor, everyones: Tensor, fresh: bool, tally: Tally
    ) -> int:  # fmt: skip
        """Add the gradient of this rank's of everyone's rows; how many they are."""
        needs = method.needs("objective", "regularizers", "critic").union(*(head.needs for head in heads(method)))
        part, done = batch.rows(rows), 0
        whole_groups = method.objective.couples == "group"
        for piece in in_step(self.ranks, micro_batches(self.policy, part, self.budget, whole_groups)):
            if piece is None:  # others have more
                pass_along(self.policy, self.learners, method, batch.rows(everyones), needs, self.budget)
                continue
            micro = part.rows(piece, trim=True)
            out = self.learners.said(self.policy.evaluate_together(micro, needs))
            if fresh and comparable(method) and not self.policy.sampler_is_more_precise:
                truncated = method.experience.truncates_distribution
                self.gaps.append(gap_sums(micro, out, truncated, self.policy.version))
            self.weighing.owe(batch, rows[piece])
            self._loss(method, micro, out, tally, rows[piece]).backward()
            done += len(piece)
        return done

    def _trained(self) -> list[Any]:
        return [*self.policy.parameters(), *self.learners.parameters()]

    def halves(self) -> Halves | None:
        """The gradients of two halves of the minibatch, where the optimizer asked for them and there are two."""
        if self.first_half is None:
            return None
        begun, share = self.first_half
        whole = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._trained()]
        return [b / share for b in begun], [(g - b) / (1 - share) for g, b in zip(whole, begun)], share

    def _loss(
        self, method: CompleteTokenMethod, batch: TokenBatch, policy: TokenLogProbs, tally: Tally, rows: Tensor
    ) -> Tensor:
        mask, summands = batch.action_mask, loss_terms(method, batch, policy)
        self.weighing.watch(summands["objective"].values)
        if self.row_loss is not None:
            self.row_loss[rows] = per_row(summands["objective"].values.detach(), mask)
        known, learned = method.objective.zero_without_advantage, "/learned" if skips(method) else ""
        found = method.objective.metrics(batch, policy)
        for name, value in divergences(batch, policy, method.experience).items():
            if name not in found:
                tally.add_tensor(name + learned, value, mask & batch.sampled[:, None])
        for name, value in found.items():
            if name in known:
                tally.add_tensor(name, value * weighed(batch), mask)
            else:
                tally.add_tensor(name + learned, value, mask)
        for name, term in summands.items():
            if name != "objective":
                tally.add_tensor(name, term.values, mask)
        if policy.entropy is not None:
            tally.add_tensor("entropy" + learned, policy.entropy, mask)
        loss = sum((term.total for term in summands.values()), torch.zeros_like(batch.scores[0]))
        tally.add("loss", loss.detach().double(), 0.0)  # a share of the step's loss; counted once, per step
        return loss

    @torch.no_grad()
    def _current(self, method: CompleteTokenMethod, batch: TokenBatch, fresh: bool) -> TokenLogProbs:
        """The current policy on a whole minibatch, without gradient; fresh samples carry their own log-probs."""
        wanted = method.needs("token_weights").union(*(p.where.needs for p in method.regularizers if p.where))
        known = {"entropy": batch.entropy, "hidden": batch.hidden}
        recorded = {k: v for k, v in known.items() if k in wanted and v is not None}
        own = method.experience.samples and not method.experience.truncates_distribution
        sampled = batch.action_mask & batch.sampled[:, None]
        own = own and torch.equal(of_version(batch, self.policy.version), sampled)
        if fresh and own and recorded.keys() == wanted:
            return TokenLogProbs(
                batch.behaviour_logp, recorded.get("entropy"), hidden=recorded.get("hidden"), head=batch.head
            )  # fmt: skip
        policy = evaluate_all(self.policy, batch, wanted, self.budget, self.ranks)
        if "hidden" in wanted:
            policy.head = self.policy.head(batch.temperature)
        return policy

    def _watch(self, share: float, rate: float, step: int, tally: Tally) -> None:
        """Report how many weights moved; if they are too few, `run` says so at its end, once."""
        tally.add("weights_moved", share)
        if share < LEAST and self.still is None:
            self.still = still(share, rate, step)

    def halve(self, batch: TokenBatch, tally: Tally) -> None:
        """Out of memory: half the micro-batch, once."""
        self.stepper.clear()
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
