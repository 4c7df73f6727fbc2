"""EMPG: credit of a whole episode, weighed turn by turn by how sure the policy was (arXiv:2509.09265).

Changes GRPO in one place, the advantages. A turn t of episode i has the entropy H[i,t], the mean over its tokens of
-sum_v p(v) log p(v) when they were sampled; h is H brought to [0, 1] over all turns of the batch. Then

    g[i,t] = exp(-k h[i,t]) / mean exp(-k h),    f[i,t] = exp(-k' h[i,t+1]), 0 for the last turn,

    A[i,t] = A_i g[i,t] + zeta f[i,t] - mean over all turns of the same,

so that sure turns get more of what the episode was worth, unsure ones less, and turns that lead to sure ones a bonus.
Means over turns count turns, not tokens. The reason: for a softmax E |d log p / d z|^2 = 1 - sum_v p(v)^2, so unsure
turns have the larger gradients otherwise.

zeta is tuned by task in the paper; 0.05 is what it begins from. `dapo --set advantages=turn-weights` with
`advantages.factors=entropy-factors` is the paper's DAPO+EMPG.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, GroupMean, GroupStd
from etude.advantages.turns import TurnFactors, Turns, TurnWeights
from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.fields import NonNegative
from etude.core.part import Need
from etude.methods.rlvr.grpo import grpo


class EntropyFactors(TurnFactors):
    """g and zeta f of EMPG, from the mean entropy of each turn (arXiv:2509.09265, section 3).

    Shapes: entropies [N] -> factors [N], bonuses [N].

    Args:
        k: how much unsure turns count less.
        ahead: k', how much less it is worth to lead to one.
        bonus: zeta, in units of advantages.

    Two turns of one episode, the first sure and the second as unsure as any in the batch:

    >>> found = factors(torch.tensor([0.0, 2.0]), torch.tensor([1, -1]), k=1.0, ahead=1.0, bonus=0.05)
    >>> [[round(x, 4) for x in values.tolist()] for values in found]
    [[1.4621, 0.5379], [0.0184, 0.0]]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ENTROPY})
    k: NonNegative = 1.0
    ahead: NonNegative = 1.0
    bonus: NonNegative = 0.05

    def __call__(self, batch: TokenBatch, turns: Turns) -> tuple[Tensor, Tensor]:
        assert batch.entropy is not None
        entropy = turns.means(batch.entropy.to(batch.scores))
        return factors(entropy, turns.following, self.k, self.ahead, self.bonus)


def factors(entropy: Tensor, following: Tensor, k: float, ahead: float, bonus: float) -> tuple[Tensor, Tensor]:
    """Factors [N] and bonuses [N] of turns with these entropies [N], `following` [N] as in `Turns`."""
    low, high = entropy.min(), entropy.max()
    h = (entropy - low) / (high - low + 1e-8)
    g = (-k * h).exp()
    sure = (-ahead * h[following.clamp(min=0)]).exp()
    return g / g.mean(), bonus * torch.where(following >= 0, sure, 0.0)


empg = grpo.replace(
    id="empg",
    title="Harnessing Uncertainty: Entropy-Modulated Policy Gradients for Long-Horizon LLM Agents",
    paper="arXiv:2509.09265",
    advantages=TurnWeights(
        of=GroupAdvantage(centre=GroupMean(), scale=GroupStd()),
        factors=EntropyFactors(k=1.0, ahead=1.0, bonus=0.05),
    ),
    claim=Claim(
        statement="Weighing turns by how sure the policy was, and paying those that lead to sure ones, wins more games "
        "than GRPO in as many steps.",
        bed="language/api-world",
        baseline="grpo",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps", "completions"),
        paper_effect="3.3 points over DAPO on Deep Search with 32B; more on WebShop and ALFWorld at 1.5B and 7B",
    ),
)
