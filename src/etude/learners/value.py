"""What states are worth, learned from what actions are worth that were done there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor, nn

from etude.core.critic_slots import Error, Reduction
from etude.core.encoder_slots import encoder_of
from etude.core.fields import Interval
from etude.core.learners import Learning
from etude.core.log_slots import ReplayValue
from etude.core.population import Population
from etude.core.replay_slots import ReplayReading
from etude.core.step_slots import Initializer, Network
from etude.learners.heads import Scalar
from etude.learners.v import StateCritics
from etude.objectives.reductions import Min
from etude.optimizers.adam import Adam
from etude.policies.control.initializers import FanIn
from etude.policies.control.replay import WIDE

if TYPE_CHECKING:
    from gymnasium import Space

    from etude.core.method import Method


class Expectile(Error):
    """|tau - 1(u < 0)| u^2, u = target - prediction: above tau = 1/2 the larger ones count more (arXiv:2110.06169).

    Shapes: [..., K] -> [..., K].

    >>> Expectile(tau=0.75)(torch.tensor([0.0, 0.0]), torch.tensor([2.0, -2.0])).tolist()
    [3.0, 1.0]
    """

    tau: Annotated[float, Interval(gt=0, lt=1)] = 0.7

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        above = target - prediction
        return torch.where(above < 0, 1 - self.tau, self.tau) * above.square()


class ValueFunction(ReplayValue):
    """V(s), towards what the critics' slow copies say of the actions that were done.

        loss = mean error(V(s), of Q'(s, a))

    Args:
        of: one value from those of several critics.
        error: how far V is from it; `expectile` learns what the better of them are worth.

    Shapes: observations [P, N, D] -> [P, 1, N, 1].

    >>> from etude.core.population import Member
    >>> from gymnasium.spaces import Box
    >>> value = ValueFunction().build((3,), Box(-1.0, 1.0, (1,)), Population([Member(0), Member(1)]))
    >>> value(torch.zeros(2, 5, 3)).shape
    torch.Size([2, 1, 5, 1])
    """

    network: Network = WIDE
    of: Reduction = Min()
    error: Error = Expectile()
    last: Initializer = FanIn()
    learning: Learning = Learning(Adam(lr=3e-4))

    def objection(self, method: Method) -> str | None:
        critic, encoder = method.slots()["critic"], encoder_of(method)
        if critic is None or critic.of_states:
            return "learns from what actions are worth, and nobody says it: set critic=q-functions."
        if critic.head.size > 1 or self.error.compares != "numbers":
            return "learns one number: set critic.head=scalar and value.error=expectile."
        if encoder is not None:
            return f"reads what is seen, and {encoder.name} stands before it: leave it out."
        return super().objection(method)

    def about_target(self) -> str | None:
        return None

    def build(self, shape: tuple[int, ...], actions: Space[Any], population: Population) -> nn.Module:
        each, head = population.each(1, "value"), Scalar()
        body, width = self.network.build(shape, each, "value")
        return StateCritics(body, head.layer(each, "value.head", width, 0, self.last), 0, 1)

    def worth(self, outputs: Tensor) -> Tensor:
        return outputs[:, 0, :, 0]

    def loss(self, read: ReplayReading) -> Tensor:
        return self.errors(read).mean(1)

    def errors(self, read: ReplayReading) -> Tensor:
        """[P, N] how far V is from it at each row, with gradient."""
        with torch.no_grad():
            target = self.of(read.values(read.outputs("here", read.batch.actions, copy=True)), read)
        said = read.state_outputs("here")
        return self.error(said, target[:, None, :, None]).sum(-1).sum(1)
