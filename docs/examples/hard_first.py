"""Hard first: GRPO in which a group counts for as much as it was failed.

Changes GRPO in one place: rows are weighted by the share of their group that was wrong, w = 1 - mean r, so that
problems which are nearly always solved move the policy less.
"""

from torch import Tensor

from etude.advantages.group import group_mean
from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.slots import Filter
from etude.methods.rlvr.grpo import grpo


class FailureShare(Filter):
    """w = 1 - mean r of the row's group, for rewards in [0, 1]."""

    def weigh(self, batch: TokenBatch) -> Tensor:
        return 1 - group_mean(batch.scores, batch.group)


hard_first = grpo.replace(
    id="hard-first",
    filters=(FailureShare(),),
    claim=Claim(
        statement="Weighing problems by how often they are failed beats GRPO.",
        bed="enumerable/twin",
        baseline="grpo",
        measures=(Measure(name="area", smallest=0.02), Measure(name="end", role="mechanism")),
        equal=("steps",),
    ),
)
