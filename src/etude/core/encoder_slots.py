"""The slot of what stands before policy and critic, and what its network offers them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from torch import Tensor

from etude.core.replay_slots import ReplayLearner

if TYPE_CHECKING:
    from etude.core.method import Method


class Encoding(Protocol):
    """The network of an encoder.

    `width` is that of its features, `joined` that of what it makes of them and an action; 0 where the critic says the
    values of all choices, for which it reads features alone.
    """

    width: int
    joined: int

    def __call__(self, seen: Tensor) -> Tensor:
        """What is seen [P, N, ...] -> features [P, N, width], which the policy reads."""
        ...

    def join(self, features: Tensor, actions: Tensor) -> Tensor:
        """Features and actions [P, N, A] in units -> [P, N, joined], which the critic reads."""
        ...


class ReplayEncoder(ReplayLearner, abstract=True):
    """What stands before policy and critic: they read what it makes of observations and actions.

    Who acts has it too: its network, an `Encoding`, belongs to the actor.
    """

    by_critic: ClassVar[bool] = False
    """Whether the gradient of the critic's loss reaches it (`ReplayReading.critic_loss`); the policy's never does."""


def encoder_of(method: Method) -> ReplayEncoder | None:
    """The learner of a method that is an encoder."""
    return next((part for part in method.slots()["learners"] if isinstance(part, ReplayEncoder)), None)
