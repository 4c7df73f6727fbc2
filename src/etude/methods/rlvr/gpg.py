"""GPG: group policy gradient (arXiv:2504.02546).

Changes GRPO in four places:

1. plain policy gradient: no ratio, no clip, no KL, one update per batch;
2. advantages are not divided by the group's standard deviation (F_norm = 1);
3. groups whose rewards are all equal add nothing but dilute the mean: of B groups M are such, so advantages are
   multiplied by alpha = B / (B - M);
4. when fewer than 60 % of the groups of a batch are of use, they are kept and others drawn in place of the rest.

    loss = -alpha / (sum_i |y_i|) sum_i sum_t (r_i - mean r) log pi(y_{i,t})

The published code adds 1e-5 to (B - M) / B; here alpha is exact. It also draws whole further batches and fills up with
groups that teach nothing, which only the denominator sees; here only missing groups are drawn.
"""

from typing import ClassVar

import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, GroupMean, equal_groups
from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.fields import Count, Probability
from etude.core.slots import Filter, TokenAdvantages
from etude.methods.rlvr.grpo import grpo
from etude.objectives.policy_gradient import PolicyGradient


class ValidGroups(TokenAdvantages):
    """alpha times other advantages: alpha = B / (B - M), M of the batch's B groups having equal rewards only.

    The gradient of the mean over all groups becomes that of the mean over the groups that teach something. With M = 0
    alpha is 1; with M = B every advantage is 0 and stays so.

    Args:
        of: the advantages that are multiplied.

    Shapes: as `of`, [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([1.0, 0.0, 1.0, 1.0]), group=torch.tensor([0, 0, 1, 1]), once=lambda: None)
    >>> rows.sampled, rows.action_mask = torch.ones(4, dtype=torch.bool), torch.ones(4, 1)
    >>> ValidGroups()(rows).tolist()
    [[1.0], [-1.0], [0.0], [0.0]]
    """

    of: TokenAdvantages = GroupAdvantage(centre=GroupMean(), scale=None)

    def __call__(self, batch: TokenBatch) -> Tensor:
        return self.of(batch) / max(valid_share(batch), 1e-12)

    def returns(self, batch: TokenBatch) -> Tensor | None:
        return self.of.returns(batch)


class EnoughValid(Filter):
    """Keeps a batch of which at least `share` of the groups have unequal rewards; of any other, only those groups.

    The loop then draws new problems in place of what is missing, which are judged in the same way.

    Args:
        share: beta_th; 0.6 in the paper's mathematics runs, 0.4 in one of its vision runs.
        rounds: how often at most to sample more problems for one step.

    Shapes: scores, group [B] -> [B].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([1.0, 0.0, 1.0, 1.0]), group=torch.tensor([0, 0, 1, 1]), once=lambda: None)
    >>> EnoughValid(share=0.6).weigh(rows).tolist(), EnoughValid(share=0.5).weigh(rows).tolist()
    ([1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0])
    """

    resample: ClassVar[bool] = True
    share: Probability = 0.6
    rounds: Count = 3

    def weigh(self, batch: TokenBatch) -> Tensor:
        if valid_share(batch) >= self.share:
            return torch.ones_like(batch.scores)
        return (~equal_groups(batch.scores, batch.group)).to(batch.scores.dtype)


def valid_share(batch: TokenBatch) -> float:
    """Share of the batch's groups whose rewards are not all equal."""
    equal = equal_groups(batch.scores, batch.group)
    return len(set(batch.group[~equal].tolist())) / len(set(batch.group.tolist()))


gpg = grpo.replace(
    id="gpg",
    title="GPG: A Simple and Strong Reinforcement Learning Baseline for Model Reasoning",
    paper="arXiv:2504.02546",
    advantages=ValidGroups(),
    filters=(EnoughValid(share=0.6),),
    objective=PolicyGradient(),
    aggregation="token-mean",
    claim=Claim(
        statement="Plain policy gradient, corrected for groups that teach nothing, beats GRPO.",
        bed="language/compose-medium",
        baseline="grpo",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps", "completions"),
    ),
)
