"""Values for every token."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.fields import NonNegative, Positive
from etude.core.learners import Critic
from etude.core.part import Need
from etude.core.transitions import Transitions

if TYPE_CHECKING:
    from etude.core.method import Method


class TokenCritic(Critic):
    """A value head on the policy's last hidden state, trained by (optionally clipped) squared error.

        loss = coefficient / 2 * max((V - R)^2, (V_old + clip(V - V_old, -clip, clip) - R)^2)

    as in the PPO implementations (arXiv:2005.12729); with clip None plain squared error. V at token t is the value
    of the text before t.

    Shapes: values, returns [B, T] -> [B, T].

    A value that has moved further than the clip is charged for what the clip left it short of:

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(values=torch.tensor([[0.0]]), returns=torch.tensor([[1.0]]))
    >>> TokenCritic(coefficient=0.5, clip=0.5).loss(rows, Rows(values=torch.tensor([[1.0]]))).tolist()
    [[0.0625]]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.VALUES})
    coefficient: NonNegative = 0.5
    clip: Positive | None = 0.2

    def objection(self, method: Method) -> str | None:
        users = [part for path, part in method.parts().items() if path.split(".")[0] == "advantages"]
        if not any("values" in part.needs for part in users):
            return "has no returns to learn from: they come with advantages that use values (--with gae)."
        return None

    def loss(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        return value_loss(batch, policy, self.coefficient, self.clip)


def value_loss(
    batch: TokenBatch | Transitions, policy: TokenLogProbs, coefficient: float, clip: float | None
) -> Tensor:
    """The formula of `TokenCritic`, element by element."""
    assert policy.values is not None and batch.values is not None and batch.returns is not None
    error = (policy.values - batch.returns) ** 2
    if clip is not None:
        near = batch.values + (policy.values - batch.values).clamp(-clip, clip)
        error = torch.maximum(error, (near - batch.returns) ** 2)
    return coefficient / 2 * error
