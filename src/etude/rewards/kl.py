"""Staying near a reference policy, paid for in reward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.fields import Count, NonNegative, Positive
from etude.core.part import Need
from etude.core.slots import TokenReward
from etude.objectives.links import Link
from etude.objectives.pairs import ReferencePolicy

if TYPE_CHECKING:
    from etude.core.method import Method


class KLPenalty(TokenReward):
    """r[b,t] = -coefficient * (log pi - log reference) of each sampled token (arXiv:2203.02155, eq. 2).

    Its sum over a completion is an unbiased estimate of -coefficient * KL(pi || reference) for the prompt. As a
    reward it carries no gradient of its own: the policy gradient does.

    Shapes: [B, T], 0 outside the action mask; nats times the coefficient.

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(behaviour_logp=torch.tensor([[-1.0]]), reference_logp=torch.tensor([[-3.0]]))
    >>> rows.action_mask = torch.tensor([[True]])
    >>> KLPenalty(coefficient=0.5).shape(rows).tolist()
    [[-1.0]]
    """

    judges: ClassVar[bool] = False
    uses_behaviour: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({Need.REFERENCE_LOGP})
    coefficient: NonNegative = 0.05

    def objection(self, method: Method) -> str | None:
        if (other := _counts_it_too(method)) is None:
            return None
        return (
            f"takes the divergence from the reference off the reward, and {other}, so that it would count twice: "
            "leave one of them out."
        )

    def shape(self, batch: TokenBatch) -> Tensor:
        assert batch.reference_logp is not None
        return -self.coefficient * (batch.behaviour_logp - batch.reference_logp) * batch.action_mask


def _counts_it_too(method: Method) -> str | None:
    """What else holds a method with one of these penalties near its reference, as half of a sentence."""
    inside = [(path.partition(".")[0], part) for path, part in method.parts().items()]
    paid = [type(part).__name__ for slot, part in inside if slot == "rewards" and isinstance(part, KLPenalty)]
    learned = [part for slot, part in inside if slot == "objective"]
    if Need.REFERENCE_LOGP in method.needs("regularizers"):
        return "a regularizer adds it to the loss"
    if len(paid) > 1:
        return f"{len(paid)} rewards do ({' and '.join(paid)})"
    if any(isinstance(part, ReferencePolicy) for part in learned):
        regressed = [part.name for part in learned if isinstance(part, Link) and not part.orders]
        return f"objective.link={regressed[0]} makes log(pi / reference) equal to rewards" if regressed else None
    return None


class AdaptiveKLPenalty(KLPenalty):
    """As `KLPenalty`, with a coefficient that follows the divergence it leads to (arXiv:1909.08593, section 2.2).

    With KL the mean over the n episodes of a batch of the sum over their tokens of log pi - log reference,

        e = clip(KL / target - 1, -0.2, 0.2),    coefficient <- coefficient (1 + e n / horizon)

    for the next batch.

    Args:
        coefficient: where it begins.
        target: nats of a completion.
        horizon: episodes in which a divergence that is far off changes the coefficient by a fifth.

    Shapes: [B, T], 0 outside the action mask; nats times the coefficient.

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(behaviour_logp=torch.tensor([[-1.0]]), reference_logp=torch.tensor([[-3.0]]), once=lambda: None)
    >>> rows.action_mask = torch.tensor([[True]])
    >>> part = AdaptiveKLPenalty(coefficient=0.5, target=1.0, horizon=1).bind()
    >>> part.shape(rows).tolist(), part.state["coefficient"]
    ([[-1.0]], 0.6)
    """

    coefficient: Positive = 0.2
    target: Positive = 6.0
    horizon: Count = 10_000

    def initial_state(self) -> dict[str, Any]:
        return {"coefficient": self.coefficient}

    def shape(self, batch: TokenBatch) -> Tensor:
        assert batch.reference_logp is not None
        return self.paid((batch.behaviour_logp - batch.reference_logp) * batch.action_mask, batch)

    def paid(self, away: Tensor, batch: TokenBatch) -> Tensor:
        """[B, T] for nats away [B, T]; the coefficient follows them."""
        coefficient: float = self.state["coefficient"]
        episodes = len(batch.action_mask) if (once := batch.once()) is None else len(once[0])
        error = float(away.double().sum()) / max(1, episodes) / self.target - 1
        self.state["coefficient"] = coefficient * (1 + min(max(error, -0.2), 0.2) * episodes / self.horizon)
        return -coefficient * away
