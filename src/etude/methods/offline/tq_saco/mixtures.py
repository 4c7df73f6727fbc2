"""Mixtures of several values, any of which must be right (REM, arXiv:1907.04543)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from etude.core.critic_slots import Following, Rule
from etude.core.replay_slots import ReplayReading
from etude.learners.backups import Bootstrap
from etude.learners.heads import Huber, SeveralReturns
from etude.learners.q import QFunctions

if TYPE_CHECKING:
    from etude.core.method import Method


class SeveralValues(SeveralReturns):
    """K values, whose mean counts where it acts.

    Shapes: outputs [..., K] -> values [...].

    >>> SeveralValues(count=2).mean(torch.tensor([[1.0, 4.0]])).item()
    2.5
    """


def mixture(read: ReplayReading, outputs: Tensor) -> Tensor:
    """[..., 1] of K values [P, ..., K], by shares that each member draws anew in every update, the same all along it.

        alpha_k = u_k / sum_j u_j,    u_k uniform in [0, 1]

    >>> from types import SimpleNamespace as Rows
    >>> read = Rows(normal=lambda purpose, like: torch.tensor([[0.0, -0.6744897501960817]]))  # u = 1/2, 1/4
    >>> round(mixture(read, torch.tensor([[[3.0, 6.0]]])).item(), 5)
    4.0
    """
    uniform = torch.special.ndtr(read.normal("mixture", outputs.flatten(1, -2)[:, 0]))
    shares: Tensor = uniform / uniform.sum(-1, keepdim=True)
    return (outputs * shares.view(len(shares), *[1] * (outputs.dim() - 2), -1)).sum(-1, keepdim=True)


class BestMixture(Rule):
    """The choice of which the mixture is worth most, and that mixture.

    Shapes: outputs [P, M, N, 1].

    >>> from types import SimpleNamespace as Rows
    >>> said = torch.tensor([[3.0, 6.0], [5.0, 1.0]]).view(1, 1, 1, 2, 2)  # of two choices, two values each
    >>> even = Rows(normal=lambda purpose, like: torch.zeros(1, 2), outputs=lambda at, copy: said)
    >>> BestMixture()(even).outputs.item()
    4.5
    """

    def __call__(self, read: ReplayReading) -> Following:
        return Following(mixture(read, read.outputs("next", copy=True)).amax(-2))


class MixedQFunctions(QFunctions):
    """K values of every choice by one network; what learns is a mixture of them that is drawn anew in every update.

    Shapes: observations [P, N, D] -> [P, 1, N, A, K].

    >>> MixedQFunctions().head.size
    200
    """

    head: SeveralValues = SeveralValues()
    backup: Bootstrap = Bootstrap(BestMixture())
    error: Huber = Huber()

    def objection(self, method: Method) -> str | None:
        policy = method.slots()["policy"]
        if not isinstance(self.backup.rule, BestMixture):
            return f"learns a mixture, which {type(self.backup.rule).__name__} does not ask about: set another critic."
        if policy is not None and not policy.made_of_critic:
            return f"is for choices that it makes itself, and {type(policy).__name__} does: set policy=from-critic."
        if self.scale is not None or self.penalties:
            return "has a mixture's error alone: leave out critic.scale and critic.penalties."
        return super().objection(method)

    def loss(self, read: ReplayReading) -> Tensor:
        with torch.no_grad():
            target = self.targets(read)
        outputs = mixture(read, read.outputs("here", read.batch.actions))
        each = self.error(outputs, target).sum(-1)
        if read.wants_errors:
            read.tell(self._errors(outputs, target, each))
        importance = self.importance(read)
        return (each if importance is None else each * importance[:, None]).mean(2).sum(1)
