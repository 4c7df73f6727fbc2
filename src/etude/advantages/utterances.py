"""Credit of utterances by a critic of whole turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.fields import WholeNumber
from etude.core.slots import TokenAdvantages
from etude.core.worlds import World

if TYPE_CHECKING:
    from etude.core.method import Method


class UtteranceAdvantages(TokenAdvantages):
    """The advantage of an utterance at each of its tokens, less what the text before the token lets expect.

        A[b,t] = (A(s, a) - b(s, a^{<t})) B / n   on the n of B rows that were said at stored states, 0 on whole games

    A is what a learner offers ('utterance_advantage'), b what another one does ('prefix_baseline'), 0 without one. By
    B / n the loss, a mean over B rows, is one over those n.

    Args:
        warmup: training steps in which nothing has an advantage, so that the critic learns alone.

    Shapes: offers [B], of the baseline [B, T] -> [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(offers={"utterance_advantage": torch.tensor([2.0, 0.0])}, unfinished=torch.tensor([True, False]))
    >>> rows.action_mask = torch.ones(2, 2).bool()
    >>> UtteranceAdvantages(warmup=0).bind()(rows).tolist()
    [[4.0, 4.0], [0.0, 0.0]]
    """

    of_unfinished: ClassVar[bool] = True
    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    warmup: WholeNumber = 20

    def objection(self, method: Method) -> str | None:
        if not any(hasattr(part, "offers_utterance_advantage") for part in method.slots()["learners"]):
            return "gives utterances what a critic says of them, and there is none: set learners=utterance-critic."
        return None

    def initial_state(self) -> dict[str, Any]:
        return {"steps": 0}

    def after_update(self, batch: TokenBatch) -> None:
        self.state["steps"] += 1

    def __call__(self, batch: TokenBatch) -> Tensor:
        utterance = batch.offers["utterance_advantage"]
        found = utterance[:, None].expand(batch.action_mask.shape)
        if self.state["steps"] < self.warmup or batch.unfinished is None:
            return torch.zeros_like(found)
        if (baseline := batch.offers.get("prefix_baseline")) is not None:
            found = found - baseline.to(found)
        anew = batch.unfinished
        return found * (batch.action_mask & anew[:, None]) * (len(anew) / anew.sum())
