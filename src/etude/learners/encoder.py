"""Features of images that the critic's loss shapes, and that the policy reads as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from etude.core.encoder_slots import ReplayEncoder
from etude.core.learners import Learning
from etude.core.population import Population
from etude.core.replay_slots import ReplayReading
from etude.core.step_slots import Network
from etude.learners.q import action_sizes
from etude.optimizers.adam import Adam
from etude.policies.control.inputs import SizedCNN
from etude.policies.control.networks import Plain

if TYPE_CHECKING:
    from gymnasium import Space

    from etude.core.method import Method


class Encoded(Plain):
    """What is seen [P, N, ...] as features [P, N, width]; beside actions [P, N, A] they are [P, N, joined]."""

    def __init__(self, body: nn.Module, width: int, joined: int) -> None:
        super().__init__()
        self.body, self.width, self.joined = body, width, joined

    def forward(self, seen: Tensor) -> Tensor:
        found: Tensor = self.body(seen)
        return found

    def join(self, features: Tensor, actions: Tensor) -> Tensor:
        """Side by side."""
        return torch.cat([features, actions], -1)


class CriticEncoder(ReplayEncoder):
    """Features by a network that learns by the critic's loss alone; the policy reads them without gradient.

        loss = that of the critic, through Q(f(s), a)

    as in SAC+AE (arXiv:1910.01741) and DrQ (arXiv:2004.13649). In a group of `order` with the critic,
    `order=[["critic","critic-encoder"],"policy"]`, both step from one loss, computed once. What follows is seen by the
    slow copy (`learning.target`) as in those two, without one by the network itself as in DrQ-v2 (arXiv:2107.09645).

    Shapes: images [P, N, C, H, W] or vectors [P, N, D] -> [P, N, width].

    >>> from etude.core.population import Member
    >>> from gymnasium.spaces import Box
    >>> encoder = CriticEncoder().build((3, 7, 7), Box(-1.0, 1.0, (2,)), Population([Member(0)]))
    >>> features = encoder(torch.zeros(1, 5, 3, 7, 7))
    >>> features.shape, encoder.join(features, torch.zeros(1, 5, 2)).shape
    (torch.Size([1, 5, 128]), torch.Size([1, 5, 130]))
    """

    by_critic: ClassVar[bool] = True
    network: Network = SizedCNN()
    learning: Learning = Learning(Adam(lr=3e-4))

    def objection(self, method: Method) -> str | None:
        critic = method.slots()["critic"]
        if self.sampling is not None or getattr(critic, "sampling", None) is not None:
            return "learns by the critic's loss on the rows of the method: set sampling, and leave out that of both."
        return super().objection(method)

    def about_target(self) -> str | None:
        return None

    def build(self, shape: tuple[int, ...], actions: Space[Any], population: Population) -> Encoded:
        choices, size = action_sizes(actions)
        body, width = self.network.build(shape, population, "encoder")
        return Encoded(body, width, 0 if choices else width + size)

    def loss(self, read: ReplayReading) -> Tensor:
        return read.critic_loss()
