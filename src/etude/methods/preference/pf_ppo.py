"""PF-PPO: policy filtration, of several responses to a prompt only those whose rank says something (arXiv:2409.06957).

A reward model is most reliable at the extremes of its score. Changes PPO-RLHF in four places:

1. five responses to each prompt, N = 5;
2. they are ranked by the reward model, and those that are learned from are drawn with chances that belong to ranks, so
   that what is improved is the filtered policy. Chances are weights w over their sum, rank 1 being the best:

       best-of-ranks      1, 0, ..., 0                                                                        (BoN)
       best-random-ranks  N - 1, 1, ..., 1: the best as often as all others                              (BR, this one)
       best-worst-ranks   1, 0, ..., 0, 1                                                                      (BW)
       equal-ranks        1, 1, ..., 1: several responses, and no filter                                    (PPO-M)

3. the reward model's score is normalised by the mean and the deviation of all scores so far;
4. a nat of distance costs 0.01.

There are two placements. `rank-filter` (this one, the release's `filter`) keeps two of the N responses before anything
is learned: with BR the best and one other at random, with BW the best and the worst. The release computes advantages
first and standardises those of what is left, which is the same: GAE looks at one response at a time.
`rank-reweighting` (its `reweight`) draws as many responses as there are from the scored ones whose advantages were
standardised over all of them, in the release anew for every minibatch, here once a step. The release's weights for
N = 5, 0.4 and 0.1, are BR's once normalised.

Which filter suits a reward model is said by `evaluation.rank_fit`: how well a line from the model's scores to what
responses are worth fits those that the filter keeps. Programs from examples, after the paper's task, are
`--task stack-machine --set task.asks=examples`; the claim is about `digest`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from etude.advantages.group import of_episodes
from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.draws import children, uniforms
from etude.core.fields import Count
from etude.core.part import Part
from etude.core.slots import Filter
from etude.experience.groups import Groups
from etude.methods.preference.ppo_rlhf import ppo_rlhf
from etude.rewards.control import NormalizedScores
from etude.rewards.kl import KLPenalty
from etude.rewards.model import RewardModel

if TYPE_CHECKING:
    from collections.abc import Sequence


class RankShares(Part, abstract=True):
    """How likely a response is to be drawn for its rank among those to a prompt."""

    slot = "ranks"

    def of(self, count: int) -> list[int]:
        """Weights of `count` ranks, the best one's first."""
        raise NotImplementedError


class BestOfRanks(RankShares):
    """The best one alone.

    >>> BestOfRanks().of(3)
    [1, 0, 0]
    """

    def of(self, count: int) -> list[int]:
        return [1] + [0] * (count - 1)


class BestRandomRanks(RankShares):
    """The best one as often as all others together.

    >>> BestRandomRanks().of(3), BestRandomRanks().of(1)
    ([2, 1, 1], [1])
    """

    def of(self, count: int) -> list[int]:
        return [max(1, count - 1)] + [1] * (count - 1)


class BestWorstRanks(RankShares):
    """The best and the worst one, as often.

    >>> BestWorstRanks().of(3), BestWorstRanks().of(1)
    ([1, 0, 1], [1])
    """

    def of(self, count: int) -> list[int]:
        return [1] if count == 1 else [1] + [0] * (count - 2) + [1]


class EqualRanks(RankShares):
    """All as often.

    >>> EqualRanks().of(3)
    [1, 1, 1]
    """

    def of(self, count: int) -> list[int]:
        return [1] * count


class RankFilter(Filter):
    """Draws `draws` of the responses to each prompt with chances that belong to their ranks, one from each part.

    The chances, added up from the best rank to the worst, are cut into `draws` equal parts, and from each part one
    response is drawn: of two draws by `best-random-ranks` the first is always the best and the second another one. A
    response that is drawn k times weighs k times as much as one that is drawn once; weights are 1 on average. Ranks are
    of the scores before a part compared responses, ties in the order in which they were sampled; any increasing
    function of the scores leaves what is drawn as it is.

    Args:
        ranks: the chances.
        draws: for each prompt; None: as many as it has responses.

    Shapes: scores, group [B] -> weights [B].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([0.5, 3.0, 1.0]), group=torch.zeros(3), outcomes=None, draw=None)
    >>> rows.once = lambda: None
    >>> RankFilter(ranks=BestWorstRanks()).weigh(rows).tolist()
    [1.0, 1.0, 0.0]
    """

    ranks: RankShares = BestRandomRanks()
    draws: Count | None = 2

    def weigh(self, batch: TokenBatch) -> Tensor:
        scores = batch.scores if batch.outcomes is None else batch.outcomes
        keys = torch.arange(len(scores), device=scores.device) if batch.draw is None else batch.draw
        drawn = of_episodes(self._counts, batch, scores, keys)
        weights: Tensor = drawn * ((drawn > 0).sum() / drawn.sum())
        return weights.to(batch.scores.dtype)

    def places(self, numbers: Tensor) -> Tensor:
        """[D, P] where in the chances [0, 1] the draws of P prompts lie, of uniform numbers [D, P]."""
        return (torch.arange(len(numbers), device=numbers.device)[:, None] + numbers) / len(numbers)

    def _counts(self, scores: Tensor, keys: Tensor, group: Tensor) -> Tensor:
        """[N] how often each response is drawn, by the keys of all responses to its prompt, whatever their order."""
        _, whose, sizes = group.unique(return_inverse=True, return_counts=True)
        together = keys.new_zeros(len(sizes)).index_add(0, whose, keys >> 8)
        best_first = scores.argsort(descending=True, stable=True)
        best_first = best_first[whose[best_first].argsort(stable=True)]
        found = torch.zeros(len(scores), dtype=torch.float64, device=scores.device)
        for count in sizes.unique().tolist():
            own = sizes == count
            rows = best_first[own[whose[best_first]]].view(-1, count)
            numbers = uniforms(children(together[own], self.name), 0, self.draws or count)
            found[rows] = self._drawn(self.ranks.of(count), self.places(numbers)).double()
        return found

    def _drawn(self, weights: Sequence[int], places: Tensor) -> Tensor:
        """[P, N] how often each rank is drawn at places [D, P]."""
        edges = torch.tensor(weights, dtype=torch.float64, device=places.device).cumsum(0)
        ranks = torch.searchsorted(edges, places.T.contiguous() * edges[-1], right=True).clamp(max=len(weights) - 1)
        return torch.nn.functional.one_hot(ranks, len(weights)).sum(1)


class RankReweighting(RankFilter):
    """As `RankFilter`, with draws that know nothing of each other, from responses that have their advantages.

    What is not drawn counts in the mean and the deviation by which advantages were standardised.

    Shapes: scores, group [B] -> weights [B].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([0.5, 3.0, 1.0]), group=torch.zeros(3), outcomes=None, draw=None)
    >>> rows.once = lambda: None
    >>> RankReweighting(ranks=BestOfRanks()).weigh(rows).tolist()
    [0.0, 1.0, 0.0]
    """

    late: ClassVar[bool] = True
    draws: Count | None = None

    def places(self, numbers: Tensor) -> Tensor:
        return numbers


pf_ppo = ppo_rlhf.replace(
    id="pf-ppo",
    title="Policy Filtration in RLHF to Fine-Tune LLM for Code Generation",
    paper="arXiv:2409.06957",
    experience=Groups(size=5),
    rewards=(RewardModel(), NormalizedScores(), KLPenalty(coefficient=0.01)),
    filters=(RankFilter(ranks=BestRandomRanks(), draws=2),),
    claim=Claim(
        statement="Of five responses to a prompt the best and one other, by a weak reward model, teach more than all.",
        bed="preference/digest-weak",
        baseline="pf-ppo",
        changes={
            "rewards.reward-model.model": "{proxy}", "optimizer.lr": 1e-3, "problems": 32,
            "rewards.kl-penalty.coefficient": 0.01,
        },
        baseline_changes={
            "rewards.reward-model.model": "{proxy}", "optimizer.lr": 1e-3, "problems": 32,
            "rewards.kl-penalty.coefficient": 0.01, "filters.rank-filter.ranks": "equal-ranks",
            "filters.rank-filter.draws": 5,
        },
        measures=(
            Measure(name="end", smallest=0.2),
            Measure(name="area", role="mechanism", smallest=0.3),
            Measure(name="last:reward/reward-model", role="mechanism", smallest=0.1, bounds=(None, None)),
        ),
        equal=("completions",),
        paper_effect="7 B: HumanEval 82.9 (BR) and 82.4 (BW) against 80.2 of PPO-M and 75.8 of BoN; MBPP 75.9 and 76.2 "
        "against 75.0; LeetCode 33.0 and 30.4 against 29.8",
    ),
)  # fmt: skip
