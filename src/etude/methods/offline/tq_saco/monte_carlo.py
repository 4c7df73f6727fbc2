"""What episodes of logs went on to earn, as what values learn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from etude.core.critic_slots import Backup, QHead
from etude.core.log_slots import has_column
from etude.core.replay_slots import ReplayReading

if TYPE_CHECKING:
    from etude.core.method import Method


class MonteCarlo(Backup):
    """y = what the row's episode went on to earn, discounted.

    Shapes: [P, N] -> [P, N, K].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> from etude.learners.heads import Scalar
    >>> batch = Rows(offers={"returns_to_go": torch.tensor([[3.0, -1.0]])})
    >>> MonteCarlo().target(Rows(batch=batch), Scalar()).tolist()
    [[[3.0], [-1.0]]]
    """

    def objection(self, method: Method) -> str | None:
        experience = method.slots()["experience"]
        if experience is not None and experience.acts:
            return "learns what whole episodes earned, which of steps just made nobody knows: set experience=logged."
        if not has_column(method, "returns_to_go"):
            return "asks what rows went on to earn, which no row says: set transforms=returns-to-go."
        return None

    def target(self, read: ReplayReading, head: QHead) -> Tensor:
        earned = read.batch.offers["returns_to_go"]
        nothing = earned.new_zeros(())
        return head.target(earned, nothing.expand_as(earned), nothing.expand(*earned.shape, head.size))
