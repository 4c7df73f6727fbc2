"""Critics of states: what is to come, whatever is done there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from etude.core.critic_slots import Backup
from etude.core.encoder_slots import encoder_of
from etude.core.population import Population
from etude.core.replay_slots import Traced
from etude.learners.backups import Bootstrap, FromValue
from etude.learners.q import Critics, QFunctions

if TYPE_CHECKING:
    from gymnasium import Space

    from etude.core.method import Method


class StateCritics(Critics):
    """`Critics` that read what is seen alone: actions may be given, and change nothing.

    Shapes: seen [P, N, D] -> [P, M, N, K].
    """

    def forward(self, seen: Tensor, actions: Tensor | None = None) -> Tensor:
        return super().forward(seen)

    def traced(self, seen: Tensor, actions: Tensor | None = None) -> Traced | None:
        return super().traced(seen)


class VFunctions(QFunctions):
    """V(s) by `count` networks: all of `QFunctions` but that no action is read.

        target = r + discount V(s')

    Shapes: observations [P, N, D] -> [P, M, N, K].

    >>> import torch
    >>> from etude.core.population import Member
    >>> from gymnasium.spaces import Discrete
    >>> critics = VFunctions().build((3,), Discrete(4), Population([Member(0), Member(1)]))
    >>> critics(torch.zeros(2, 5, 3)).shape
    torch.Size([2, 1, 5, 1])
    """

    of_states: ClassVar[bool] = True
    backup: Backup = Bootstrap(FromValue())

    def objection(self, method: Method) -> str | None:
        policy, encoder = method.slots()["policy"], encoder_of(method)
        if not isinstance(getattr(self.backup, "rule", None), FromValue):
            return "says what states are worth, whatever is done there: set critic.backup.rule=from-value."
        if policy is not None and policy.made_of_critic:
            return f"says nothing of actions, of which {type(policy).__name__} takes the best: set another policy."
        if encoder is not None:
            return f"reads what is seen, and {encoder.name} stands before it: leave it out."
        return super().objection(method)

    def build(self, shape: tuple[int, ...], actions: Space[Any], population: Population) -> nn.Module:
        return self._built(shape, 0, 0, population)

    def _network(self, shape: tuple[int, ...], size: int, choices: int, each: Population) -> nn.Module:
        body, width = self.network.build(shape, each, "critic")
        return StateCritics(body, self.head.layer(each, "critic.head", width, 0, self.last), 0, self.head.size)
