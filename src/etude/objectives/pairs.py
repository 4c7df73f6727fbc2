"""Objectives on pairs of answers: which pairs, what an answer is implicitly worth, and a link on the difference.

    m(y, y') = D(y) - D(y'),    loss = link(m, r(y) - r(y'))

y is the better answer of a pair. DPO, IPO, SimPO, ORPO, RRHF, REBEL, CoPG and INPO differ in D and in the link alone.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from etude.advantages.group import episode_sum
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import ConfigError
from etude.core.fields import NonNegative, Positive
from etude.core.part import Need, Part
from etude.core.slots import TokenObjective
from etude.objectives.links import Link, Logistic
from etude.objectives.sequence import sequence_sum

# Which pairs


class Couples(NamedTuple):
    """Pairs of answers: numbers of the better ones [N], of the worse ones [N], and the group [N] that each is of.

    `whose` [E] is the group of every answer, groups being numbered from 0.
    """

    better: Tensor
    worse: Tensor
    group: Tensor
    whose: Tensor


def extremes(scores: Tensor, group: Tensor, number: Tensor | None = None) -> Couples:
    """The best and the worst answer of each group; of equal ones the last and the first.

    Args:
        number: [E] by which the last and the first are known, wherever answers stand: of equal ones a batch takes the
            same ones however it is cut; None: as they stand.

    >>> extremes(torch.tensor([0.5, 0.9, 0.1]), torch.tensor([7, 7, 7]))[:2]
    (tensor([1]), tensor([2]))
    """
    _, whose, counts = torch.unique(group, return_inverse=True, return_counts=True)
    order = torch.arange(len(scores), device=scores.device) if number is None else torch.argsort(number)
    order = order[torch.argsort(scores[order], stable=True)]
    order = order[torch.argsort(whose[order], stable=True)]  # groups one after the other, worst answer first
    ends = counts.cumsum(0)
    return Couples(order[ends - 1], order[ends - counts], torch.arange(len(counts), device=group.device), whose)


class Choice(Part, abstract=True):
    """Which answers to a problem are compared."""

    slot = "choice"

    def __call__(self, scores: Tensor, group: Tensor, number: Tensor | None = None) -> Couples:
        """Pairs of answers with these scores [E] that belong to the groups [E]; `number` as of `extremes`."""
        raise NotImplementedError


class BestAndWorst(Choice):
    """The best answer of a group against the worst.

    Shapes: scores, group [E] -> one pair of each group.

    >>> pairs = BestAndWorst()(torch.tensor([0.0, 2.0, 1.0]), torch.zeros(3))
    >>> pairs.better.tolist(), pairs.worse.tolist()
    ([1], [0])
    """

    def __call__(self, scores: Tensor, group: Tensor, number: Tensor | None = None) -> Couples:
        return extremes(scores, group, number)


class AllPairs(Choice):
    """Every two answers of a group, once.

    Shapes: scores, group [E] -> n (n - 1) / 2 pairs of each group of n.

    >>> pairs = AllPairs()(torch.tensor([0.0, 2.0, 1.0]), torch.zeros(3))
    >>> pairs.better.tolist(), pairs.worse.tolist()
    ([1, 2, 1], [0, 0, 2])
    """

    def __call__(self, scores: Tensor, group: Tensor, number: Tensor | None = None) -> Couples:
        _, whose = torch.unique(group, return_inverse=True)
        first, second = (whose[:, None] == whose[None]).triu(1).nonzero().unbind(1)
        turned = scores[second] > scores[first]
        better, worse = torch.where(turned, second, first), torch.where(turned, first, second)
        return Couples(better, worse, whose[first], whose)


# What log pi is divided by


class Denominator(Part, abstract=True):
    """A policy q that log pi is held against.

    Args:
        weight: a of a log q. Several denominators should have weights that add up to 1.
    """

    slot = "denominators"
    weight: Positive = 1.0

    def logp(self, batch: TokenBatch) -> Tensor:
        """log q [B, T] of the batch's tokens."""
        raise NotImplementedError


class ReferencePolicy(Denominator):
    """The method's reference: the policy at the start, where it is frozen. Shapes: log q [B, T].

    >>> ReferencePolicy().weight
    1.0
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.REFERENCE_LOGP})

    def logp(self, batch: TokenBatch) -> Tensor:
        assert batch.reference_logp is not None
        return batch.reference_logp


class BehaviourPolicy(Denominator):
    """The policy that the answers were sampled from: that at the start of a step, where they are fresh.

    Shapes: log q [B, T].

    >>> BehaviourPolicy(weight=0.5).weight
    0.5
    """

    uses_behaviour: ClassVar[bool] = True

    def logp(self, batch: TokenBatch) -> Tensor:
        return batch.behaviour_logp


# What an answer is implicitly worth


class ImplicitReward(Part, abstract=True):
    """D(y): what an answer is worth by the policy's own account."""

    slot = "of"

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """D [B] in nats, with gradient, the same on all rows of an episode."""
        raise NotImplementedError


class LogRatio(ImplicitReward):
    """D(y) = log pi(y) - sum_k a_k log q_k(y), of whole answers or per token.

    Args:
        denominators: the q_k with their weights a_k; empty: log pi(y) itself, as SimPO and RRHF have it.
        per_token: whether D is divided by |y|, as in SimPO and in length-normalised DPO (arXiv:2411.15124).

    Shapes: returns [B], nats, per token if so.

    Raises: ConfigError for two denominators that are the same policy, or whose weights exceed 1 together.

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(reference_logp=torch.tensor([[-2.0, -2.0]]), action_mask=torch.ones(1, 2), once=lambda: None)
    >>> rows.action_counts = torch.tensor([2])
    >>> said = TokenLogProbs(torch.tensor([[-1.0, -1.5]]))
    >>> LogRatio()(rows, said).tolist(), LogRatio(denominators=(), per_token=True)(rows, said).tolist()
    ([1.5], [-1.25])
    """

    denominators: tuple[Denominator, ...] = (ReferencePolicy(),)
    per_token: bool = False

    def check(self) -> None:
        kinds = [part.name for part in self.denominators]
        if len(set(kinds)) < len(kinds):
            raise ConfigError(f"LogRatio.denominators must be different policies, got {' and '.join(kinds)}.")
        total = sum(part.weight for part in self.denominators)
        if total > 1 + 1e-9:
            raise ConfigError(
                f"LogRatio divides by {' and '.join(kinds)} with weights that add up to {total:g}: a log-ratio has one "
                "denominator, or several whose weights add up to 1; set denominators.0.weight and the others'."
            )

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        ratio = policy.logp
        for part in self.denominators:
            ratio = ratio - part.weight * part.logp(batch)
        value = episode_sum(sequence_sum(ratio, batch), batch)
        return value / lengths(batch).to(value) if self.per_token else value


class LogOdds(ImplicitReward):
    """D(y) = log(P / (1 - P)), P = exp(mean log pi) over the tokens of y: ORPO's (arXiv:2403.07691, eq. 4).

    Shapes: returns [B].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(action_mask=torch.ones(1, 2), action_counts=torch.tensor([2]), once=lambda: None)
    >>> round(LogOdds()(rows, TokenLogProbs(torch.tensor([[0.75, 0.75]]).log())).exp().item(), 4)
    3.0
    """

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        mean = mean_logp(batch, policy)
        return mean - torch.log(-torch.expm1(mean.clamp(max=-1e-6)))  # an answer that is certain has finite odds


def lengths(batch: TokenBatch) -> Tensor:
    """[B] sampled tokens of each row's episode, at least 1."""
    return episode_sum(batch.action_counts, batch).clamp(min=1)


def mean_logp(batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
    """[B] mean log pi over the tokens of each row's episode."""
    total = episode_sum(sequence_sum(policy.logp, batch), batch)
    return total / lengths(batch).to(total)


# The objective


class PairLoss(TokenObjective):
    """weight link(m, r(y) - r(y')) of pairs of answers to a problem, plus nll times -log pi of the best one's tokens.

        m = D(y) - D(y')

    A group's loss is the mean over its pairs; of links that only ask which is better, over those whose scores differ.
    `dpo` is what it is with its defaults, and has a class of its own.

    Shapes: returns [B], each group's loss on all its rows, so that the mean over rows is the mean over groups of equal
    size.

    Args:
        link: what is minimised of the margin.
        of: D, what an answer is implicitly worth.
        choice: which answers are compared.
        weight: of the link.
        nll: of the mean -log pi per token of a group's best answer, where one is better.

    Two answers that the policy raised and lowered by a nat each, with IPO's link:

    >>> from types import SimpleNamespace as Rows
    >>> from etude.objectives.links import SquaredToConstant
    >>> rows = Rows(scores=torch.tensor([1.0, 0.0]), group=torch.zeros(2), action_mask=torch.ones(2, 1))
    >>> rows.episode, rows.once = None, lambda: None  # every row is an episode of its own
    >>> rows.reference_logp = torch.tensor([[-2.0], [-1.0]])
    >>> PairLoss(link=SquaredToConstant(beta=0.5))(rows, TokenLogProbs(torch.tensor([[-1.0], [-2.0]]))).tolist()
    [1.0, 1.0]
    """

    couples: ClassVar[Literal["row", "group"]] = "group"
    per_row: ClassVar[bool] = True
    link: Link = Logistic()
    of: ImplicitReward = LogRatio()
    choice: Choice = BestAndWorst()
    weight: Positive = 1.0
    nll: NonNegative = 0.0

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        compared = self._compared(batch, policy)
        loss = self._of_pairs(compared, self.link(compared.margin, compared.gap))
        loss = loss if self.weight == 1 else self.weight * loss
        if self.nll:
            loss = loss + self.nll * self._of_best(batch, policy)
        return loss[compared.place]

    def metrics(self, batch: TokenBatch, policy: TokenLogProbs) -> dict[str, Tensor]:
        """Of pairs that differ. `margin`: m, in nats. `preference_accuracy`: those above 0, 1/2 where none differ."""
        compared = self._compared(batch, policy)
        right = compared.mean((compared.margin > 0).to(compared.margin), differing=True)
        right = torch.where(compared.mean((compared.gap > 0).to(right), differing=False) > 0, right, 0.5)
        return {"margin": compared.mean(compared.margin, differing=True)[compared.place],
                "preference_accuracy": right[compared.place]}  # fmt: skip

    def _compared(self, batch: TokenBatch, policy: TokenLogProbs) -> Compared:
        value = self.of(batch, policy)
        (value, scores, group), number, whose = answers_of(batch, value, batch.scores, batch.group)
        pairs = self.choice(scores, group, number)
        gap = (scores[pairs.better] - scores[pairs.worse]).to(value)
        place = pairs.whose if whose is None else pairs.whose[whose]
        return Compared(value[pairs.better] - value[pairs.worse], gap, pairs.group, place)

    def _of_pairs(self, compared: Compared, loss: Tensor) -> Tensor:
        """[G] the loss of each group, of the losses [N] of pairs."""
        return compared.mean(loss, self.link.orders)

    def _of_best(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """[G] mean -log pi per token of each group's best answer; 0 where all are equally good."""
        (mean, scores, group), number, _ = answers_of(batch, mean_logp(batch, policy), batch.scores, batch.group)
        pairs = extremes(scores, group, number)
        return torch.where(scores[pairs.better] > scores[pairs.worse], -mean[pairs.better], 0.0)


class Compared(NamedTuple):
    """Pairs: margins, gaps and groups [N]; `place` [B] is the group of every row."""

    margin: Tensor
    gap: Tensor
    group: Tensor
    place: Tensor

    def mean(self, values: Tensor, differing: bool) -> Tensor:
        """[G] mean of values [N] over the pairs of each group, of those alone that differ if so; 0 where none are."""
        size = self.total(torch.ones_like(values), differing)
        return self.total(values, differing) / size.clamp(min=1)

    def total(self, values: Tensor, differing: bool) -> Tensor:
        """[G] their sum."""
        counts = self.gap > 0 if differing else torch.ones_like(self.gap, dtype=torch.bool)
        groups = int(self.place.max()) + 1
        return values.new_zeros(groups).index_add(0, self.group, torch.where(counts, values, 0.0))


def answers_of(batch: TokenBatch, *values: Tensor) -> tuple[list[Tensor], Tensor | None, Tensor | None]:
    """Values [B] of rows as values [E] of their episodes, the episodes' numbers [E], and the episode [B] of every row.

    The last is None where every row is an episode, and so are the numbers where none are known.
    """
    if (once := batch.once()) is None:
        return list(values), batch.episode, None
    first, whose = once
    assert batch.episode is not None
    return [v[first] for v in values], batch.episode[first], whose
