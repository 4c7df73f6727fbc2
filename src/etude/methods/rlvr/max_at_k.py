"""max@k policy gradient: training for best-of-k sampling, off-policy (arXiv:2510.23393).

Changes GRPO in four places. The objective is max@k = E[max of k rewards], for rewards of any kind (pass@k if 0 and 1):

1. a completion's reward becomes what it adds to the maximum over the k-subsets I of its group of n,

       r~_i = 1/C(n, k) sum_{I containing i} max_I r,

   whose sum_i r~_i grad log pi(y_i) is unbiased for grad max@k; r~ is then standardised over the group as in GRPO;
2. a batch is learned from three times. Before every inner update r~ is computed anew, each subset weighing
   1 + sum_{l in I} delta_l, the first order of the product of its ratios, with delta = pi/pi_old - 1 of whole
   completions (detached);
3. 0.01 KL to the first policy;
4. k = 4 of n = 8 (the paper's k goes up to 8).

Standardised r~ takes the place of the advantage in PPO's clipped surrogate. Its ratio in front already weighs
completion i by 1 + delta_i, so by default delta_i is left out of the bracket: to first order the product is the
estimate above, and the group's mean is subtracted under the same ratio. `own_ratio="twice"` keeps it in both places,
which is how "r~ is the reward of GRPO" reads word for word; that estimate is off in the first order. What is ours
besides: a delta above 1 counts as 1, where a first order means nothing any more; groups whose rewards are all equal
get 0, since standardising what delta alone makes of them would be noise of full size.

Other members of the family: `max_at_k.replace(objective=ClippedSurrogate())` is the on-policy "BoN mean";
`BestOfGroup`, with advantages that neither centre nor scale, gives BoN-max-mean and BoN-max-second;
`MaxAtK(baseline=...)` the leave-one-out forms of PKPO (arXiv:2505.15201).
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from etude.advantages.group import (
    TOKENS,
    GroupMean,
    GroupStd,
    episode_sum,
    equal_groups,
    group_mean,
    group_size,
    group_sum,
    of_episodes,
    scaled,
)
from etude.advantages.order_statistics import max_at_k as contributions
from etude.advantages.order_statistics import of_groups
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.fields import Count, NonNegative, Positive
from etude.core.method import Method
from etude.core.slots import GroupReward
from etude.core.worlds import World
from etude.methods.rlvr.grpo import grpo
from etude.objectives.policy_gradient import ClippedSurrogate
from etude.objectives.sequence import sequence_log_ratio
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference


class MaxAtK(GroupReward):
    """r~_i: what completion i adds to max@k of its group (`advantages/order_statistics.py`).

    Args:
        k: samples of which the best counts.
        baseline: 'none'; 'leave-one-out' subtracts the mean maximum of k of the others, which makes it
            n/(n-k) (r~_i - mean r~); 'leave-one-out-1' lets each subset lose the maximum of its other k - 1 members, so
            that only completions that are the best of a subset gain. All three are unbiased for grad max@k.

    Shapes: scores, group [B] -> [B].

    The maxima of the pairs of 0, 3 and 6 are 3, 6 and 6:

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([0.0, 3.0, 6.0]), group=torch.zeros(3), once=lambda: None)
    >>> MaxAtK(k=2).rescore(rows).tolist()
    [3.0, 3.0, 4.0]
    """

    k: Count = 4
    baseline: Literal["none", "leave-one-out", "leave-one-out-1"] = "none"

    def objection(self, method: Method) -> str | None:
        size = method.completions
        if size is not None and size < self.k + (self.baseline == "leave-one-out"):
            return f"takes the best of k={self.k}, for which experience.size = {size} is too small."
        return None

    def rescore(self, batch: TokenBatch) -> Tensor:
        return of_episodes(self._of_scores, batch, batch.scores)

    def _of_scores(self, scores: Tensor, group: Tensor) -> Tensor:
        """[B] from the scores of completions."""
        own = contributions(scores, group, self.k)
        size = group_size(group).to(own)
        if self.baseline == "leave-one-out":
            return (own - group_mean(own, group)) * size / (size - self.k).clamp(min=1)
        if self.baseline == "leave-one-out-1" and self.k > 1:  # the (k-1)-subsets of the others, C(n, k-1) / C(n, k)
            fewer = contributions(scores, group, self.k - 1)
            others = group_sum(fewer, group) / (self.k - 1) - fewer
            return own - others * self.k / (size - self.k + 1).clamp(min=1)
        return own


class BestOfGroup(GroupReward):
    """Only the best completion of a group is rewarded: with its reward minus the group's `baseline`.

    'mean' is BoN-max-mean; 'second', minus the second best reward, BoN-max-second, unbiased for the maximum of the
    whole group. Of equal rewards the last is the best. For advantages that neither centre nor scale.

    Shapes: scores, group [B] -> [B].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([1.0, 5.0, 3.0]), group=torch.zeros(3), once=lambda: None)
    >>> [BestOfGroup(baseline=baseline).rescore(rows).tolist() for baseline in ("mean", "second")]
    [[0.0, 2.0, 0.0], [0.0, 2.0, 0.0]]
    """

    baseline: Literal["mean", "second"] = "mean"

    def rescore(self, batch: TokenBatch) -> Tensor:
        best = of_episodes(lambda scores, group: of_groups(self._only_best, group, scores), batch, batch.scores)
        return best.to(batch.scores.dtype)

    def _only_best(self, scores: Tensor) -> Tensor:
        r, order = scores.sort(dim=1, stable=True)
        base = r.mean(1) if self.baseline == "mean" else r[:, max(0, r.shape[1] - 2)]
        gain = (r[:, -1] - base)[:, None]
        return torch.zeros_like(r).scatter(1, order[:, -1:], torch.where(r[:, :1] == r[:, -1:], 0.0, gain))


class OffPolicyMaxAtK(ClippedSurrogate):
    """PPO's clipped surrogate with advantages made anew before every update: standardised off-policy r~ (see above).

    At the policy that sampled they are those of `MaxAtK` and GRPO. Needs `MaxAtK` with the same k among the rewards.

    Args:
        k: samples of which the best counts.
        own_ratio: whether a completion's own ratio counts 'once', in front of the clip, or 'twice', in r~ as well.
        reach: largest delta.
        epsilon: added to the group's standard deviation.

    Shapes: scores [B]; returns [B, T].

    Of two completions worth 0 and 6, the first has become four times as likely: their pair, the only one, counts twice.

    >>> delta = torch.tensor([4.0 - 1, 0.0]).clamp(max=OffPolicyMaxAtK(reach=1.0).reach)
    >>> contributions(torch.tensor([0.0, 6.0]), torch.zeros(2), 2, delta).tolist()
    [12.0, 12.0]
    """

    worlds: ClassVar[frozenset[World]] = TOKENS
    couples: ClassVar[Literal["row", "group"]] = "group"
    vanishes_with_advantage: ClassVar[bool] = False
    k: Count = 4
    own_ratio: Literal["once", "twice"] = "once"
    reach: Positive = 1.0
    epsilon: NonNegative = 1e-6

    def objection(self, method: Method) -> str | None:
        parts = [part for part in method.slots().get("rewards", ()) if isinstance(part, MaxAtK)]
        if not any(part.baseline == "none" for part in parts):
            return "weighs the subsets of rewards.max-at-k (baseline 'none') anew; put that among the rewards."
        if all(part.k != self.k for part in parts):
            return f"weighs subsets of k = {self.k} anew, and rewards.max-at-k has k = {parts[0].k}: set both alike."
        return None

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        return super().__call__(batch.replace(advantages=self.advantages(batch, policy)), policy)

    def advantages(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """[B, T] under the policy as it is now, detached."""
        centre, scale = GroupMean(), GroupStd(self.epsilon)
        worth = self.worth(batch, policy)
        assert batch.outcomes is not None
        advantages = of_episodes(lambda r, group: scaled(r, group, centre, scale), batch, worth)
        equal = equal_groups(batch.outcomes, batch.group)
        return torch.where(equal, 0.0, advantages)[:, None] * batch.action_mask

    def worth(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """[B] r~ of the completions, weighed by how far the policy has moved; at no distance `batch.scores`."""
        assert batch.outcomes is not None
        log_ratio = episode_sum(sequence_log_ratio(batch, policy).detach(), batch)
        delta = log_ratio.clamp(max=20).expm1().clamp(max=self.reach).to(batch.outcomes.dtype)
        return of_episodes(self._weighed, batch, batch.outcomes, delta)

    def _weighed(self, scores: Tensor, delta: Tensor, group: Tensor) -> Tensor:
        """[B] r~ from the scores of completions and how far the policy has moved on each."""
        moved = contributions(scores, group, self.k, delta)
        return moved if self.own_ratio == "twice" else moved - delta * contributions(scores, group, self.k)


max_at_k = grpo.replace(
    id="max-at-k",
    title="The Best of N Worlds: Aligning Reinforcement Learning with Best-of-N Sampling via max@k Optimisation",
    paper="arXiv:2510.23393",
    rewards=(*grpo.rewards, MaxAtK(k=4)),
    objective=OffPolicyMaxAtK(low=0.2, high=0.2),
    regularizers=(KLToReference(coefficient=0.01),),
    reference=Frozen(),
    epochs=3,
    claim=Claim(
        statement="max@64 ends higher than with GRPO and with rewards for the best of a group only, at equal samples; "
        "with three inner updates off-policy weights beat on-policy ones.",
        task="enumerable",
        setting="enumerable, rare rewards",
        measures=(
            Measure(name="max@64 against grpo", smallest=0.02),
            Measure(name="max@64 against on-policy max@4", smallest=0.02),
            Measure(name="max@64 against BoN-max-second", smallest=0.02),
            Measure(name="max@64 against BoN-max-mean", role="mechanism", smallest=0.02),
            Measure(name="max@64 against own ratio twice", role="mechanism", smallest=0.02),
            Measure(name="max@1", role="mechanism", smallest=0.02),
        ),
        learned_on="max@1",
        paper_effect="CodeContests max@128 0.718 against 0.693 with on-policy weights; MBPP 0.710 against 0.673.",
    ),
)
