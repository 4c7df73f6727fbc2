"""A critic that says each channel of its value through a map, and a target that averages where values are ordinary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from torch import Tensor

from etude.core.critic_slots import QHead, Rule
from etude.core.errors import ConfigError
from etude.core.fields import Interval, Positive
from etude.core.part import Need
from etude.core.replay_slots import ReplayReading
from etude.core.sampling_slots import Sampling
from etude.learners.backups import Argmax, Bootstrap
from etude.learners.heads import Direct
from etude.methods.value.map_dqn.decompositions import Decomposition, Polar
from etude.methods.value.map_dqn.maps import LogLinMap, ValueMap

if TYPE_CHECKING:
    from etude.core.method import Method


class Channels(Direct):
    """L numbers, f_j of the value of each channel of the reward (arXiv:2203.07171, eq. 6).

        Q = sum_j lambda_j f_j^-1(q_j),   target_j = f_j(r_j + discount clip(f_j^-1(q_j'), 0, most))

    All channels follow the choice that is best by their sum.

    Args:
        decomposition: of the reward into channels.
        maps: f, of the channels in turn.
        most: the largest value of a channel: 1 / (1 - gamma) where its rewards are at most 1.

    Shapes: outputs [..., L] -> values [...].

    >>> head = Channels(decomposition=Polar(), maps=(LogLinMap(),))
    >>> head.mean(torch.tensor([[0.5, 0.0]])).item()  # 2 is won and 1 is lost
    1.0
    >>> reward, discount = torch.tensor([[1.0]]), torch.tensor([[0.5]])
    >>> head.target(reward, discount, torch.tensor([[[0.5, 0.5]]])).tolist()  # 1 + 1 is won, and 1 is lost
    [[[0.5, 0.0]]]
    """

    bounded_by: ClassVar[tuple[str, ...]] = ("most",)
    decomposition: Decomposition = Polar()
    maps: tuple[ValueMap, ...] = (LogLinMap(),)
    most: Positive = 25.0

    def check(self) -> None:
        if not self.maps or self.size % len(self.maps):
            raise ConfigError(
                f"Channels.maps must go round in {self.size} channels, got {len(self.maps)} of them: give one for all, "
                "or one for each."
            )

    def objection(self, method: Method) -> str | None:
        slots = method.slots()
        critic, policy = slots["critic"], slots["policy"]
        own = critic.sampling or slots["sampling"]
        horizon = own.horizon if isinstance(own, Sampling) else own
        if not policy.made_of_critic:
            return "says values of choices that all channels make together: set policy=from-critic."
        if horizon.length != 1:
            return "divides the reward of one step, and gets sums of several: set sampling.horizon=one-step."
        if critic.count > 1 or critic.scale is not None or Need.ESTIMATE in critic.learning.optimizer.needs:
            return (
                "has targets that are mapped: set critic.count=1 and critic.learning.optimizer=adam, and leave out "
                "critic.scale."
            )
        return None

    @property
    def size(self) -> int:
        return len(self.decomposition.weights)

    def bounds(self) -> Tensor:
        weights = torch.tensor(self.decomposition.weights)
        most = torch.ones(1, 1) * self.most
        return torch.cat([most * weights.clamp(max=0.0).sum(), most * weights.clamp(min=0.0).sum()], 1)

    def ordinary(self, outputs: Tensor) -> Tensor:
        """f_j^-1 of [P, ..., L]."""
        return torch.stack([f.inverse(y) for f, y in zip(self._each(), outputs.unbind(-1))], -1)

    def mapped(self, values: Tensor) -> Tensor:
        """f_j of [P, ..., L]."""
        return torch.stack([f.forward(x) for f, x in zip(self._each(), values.unbind(-1))], -1)

    def _each(self) -> tuple[ValueMap, ...]:
        return self.maps * (self.size // len(self.maps))

    def total(self, values: Tensor) -> Tensor:
        """sum_j lambda_j of [..., L]."""
        return (values * values.new_tensor(self.decomposition.weights)).sum(-1)

    def within(self, values: Tensor) -> Tensor:
        """Values that a channel can have, [P, ..., L]."""
        return values.clamp(0.0, self.most)

    def mean(self, outputs: Tensor) -> Tensor:
        return self.total(self.ordinary(outputs))

    def returns(self, rewards: Tensor, discounts: Tensor, outputs: Tensor) -> Tensor:
        """r_j + discount Q_j', [P, N, L]."""
        following = self.within(self.ordinary(outputs))
        return self.decomposition.split(rewards) + discounts[..., None] * following

    def target(self, rewards: Tensor, discounts: Tensor, outputs: Tensor) -> Tensor:
        return self.mapped(self.returns(rewards, discounts, outputs))


class AveragedBootstrap(Bootstrap):
    """f_j(Q_j + share (U_j - Q_j)): samples are averaged before they are mapped (arXiv:2203.07171, eq. 8 to 10).

    Of a map that bends, the mean of f(U) is not f of the mean U: a step of `share` in ordinary values first, then one
    of the optimizer in mapped ones. Where nothing is random, `share=1` does.

    Args:
        share: beta_reg; the learning rate plays beta_f.

    Shapes: [P, 1, N, L] -> [P, N, L].

    >>> from types import SimpleNamespace as Rows
    >>> from etude.core.critic_slots import Following
    >>> class Said(Rule):
    ...     def __call__(self, read): return Following(torch.tensor([[[[0.0]]]]))  # a value of 1
    >>> from etude.methods.value.map_dqn.decompositions import Whole
    >>> read = Rows(batch=Rows(rewards=torch.tensor([[1.0]]), discounts=torch.tensor([[1.0]]), actions=None),
    ...             outputs=lambda at, actions: torch.tensor([[[[0.0]]]]))
    >>> AveragedBootstrap(Said(), share=0.5).target(read, Channels(Whole())).item()  # 1.5, halfway from 1 to 2
    0.25
    """

    rule: Rule = Argmax()
    share: Annotated[float, Interval(gt=0, le=1)] = 0.1

    def objection(self, method: Method) -> str | None:
        head = method.slots()["critic"].head
        if not isinstance(head, Channels):
            return f"averages values of channels, and {type(head).__name__} has none: set critic.head=channels."
        return super().objection(method)

    def target(self, read: ReplayReading, head: QHead) -> Tensor:
        batch = read.batch
        assert isinstance(head, Channels) and batch.discounts is not None
        with torch.enable_grad():  # the pass that the loss reads
            said = read.outputs("here", batch.actions)
        own = head.within(head.ordinary(said.detach()[:, 0]))
        returns = head.returns(batch.rewards, batch.discounts, self.following(read))
        return head.mapped(own + self.share * (returns - own))
