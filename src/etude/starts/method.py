"""My method: GRPO in which long completions count for less.

Changes GRPO in one place. The advantage of row i is divided by the square root of its number of tokens,

    A'_it = A_it / sqrt(sum_t m_it),

so that a long answer moves the policy less for each of its tokens.
"""

from __future__ import annotations

from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.fields import Positive
from etude.core.slots import Filter
from etude.methods.rlvr.grpo import grpo


class ShorterFirst(Filter):
    """w_i = (sum_t m_it)^-power.

    Args:
        power: 0 would leave all rows alike.

    Shapes: weights [B].
    """

    # what can be set, with its range: --set filters.shorter-first.power=1
    power: Positive = 0.5

    def weigh(self, batch: TokenBatch) -> Tensor:
        # a part returns a new tensor and leaves the batch alone
        return batch.action_mask.sum(-1).clamp(min=1).float() ** -self.power


# the difference from its parent; `etude methods show my_method.py` prints it
my_method = grpo.replace(id="my-method", filters=(*grpo.filters, ShorterFirst()))
