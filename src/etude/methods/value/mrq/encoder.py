"""The encoder of MR.Q: features from which a linear layer tells what comes next, so that values are nearly linear."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn

from etude.core.encoder_slots import ReplayEncoder
from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative
from etude.core.learners import Learning, Target
from etude.core.population import Population
from etude.core.replay_slots import ReplayReading
from etude.core.sampling_slots import Horizon, Sampling
from etude.core.step_slots import Initializer, Network
from etude.experience.sampling import Window
from etude.learners.heads import CrossEntropy, TwoHot
from etude.methods.value.mrq.actions import relaxed
from etude.optimizers.adam import AdamW
from etude.policies.control.activations import elu
from etude.policies.control.initializers import Xavier
from etude.policies.control.networks import GAIN, MLP, Linear, Plain

if TYPE_CHECKING:
    from gymnasium import Space

START = Xavier(gain=GAIN)
NORMED = MLP(hidden=(512, 512, 512), activation="elu", layer_norm=True, affine=False, initializer=START)
"""Three layers of 512, each normalised without parameters before its activation."""


class Representation(Plain):
    """z_s = states(s), z_sa = last(pairs([z_s, elu(actions(a))])), and what a linear layer tells from z_sa.

    Shapes: seen [P, N, D], actions [P, N, A] -> z_s [P, N, width], z_sa [P, N, joined].
    """

    def __init__(
        self, states: nn.Module, width: int, actions: Linear, pairs: nn.Module, last: Linear, model: Linear
    ) -> None:
        super().__init__()
        self.states, self.actions, self.pairs, self.last, self.model = states, actions, pairs, last, model
        self.width, self.joined = width, model.weight.shape[1]

    def forward(self, seen: Tensor) -> Tensor:
        found: Tensor = self.states(seen)
        return found

    def join(self, features: Tensor, actions: Tensor) -> Tensor:
        """z_sa."""
        found: Tensor = self.last(self.pairs(torch.cat([features, elu(self.actions(actions))], -1)))
        return found

    def tell(self, features: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Whether the step ends the episode [P, N], what z_s follows [P, N, width], logits of its reward [P, N, K]."""
        told = self.model(self.join(features, actions))
        return told[..., 0], told[..., 1 : 1 + self.width], told[..., 1 + self.width :]


class Encoder(ReplayEncoder):
    """Features of observations and actions, learned by unrolling a linear model along windows (arXiv:2501.16142).

        loss = sum_t m_t (dynamics |z_t+1 - z'(s_t+1)|^2 / width + reward CE(two_hot(r_t), .) + end (d_t - e_t)^2)

    from z_0 = z_s(s_0) on; m_t is 1 up to the end of the episode, e_t 1 where the step terminated, z' the slow copy.
    Ends are learned once one is stored.

    Args:
        states: from what is seen to z_s. pairs: from z_s and what is made of the action to z_sa, but its last layer.
        actions: width of what is made of an action. joined: of z_sa.
        rewards: how a reward is said.
        dynamics, reward, end: weights of the three terms.
        start: where layers start that stand alone.

    Shapes: windows [P, N, T, ...] -> [P].

    >>> from etude.core.population import Member
    >>> from etude.methods.value.mrq.actions import OneHots
    >>> from gymnasium.spaces import Discrete
    >>> network = Encoder().build((4,), Discrete(2), Population([Member(0)]))
    >>> features = network(torch.zeros(1, 6, 4))
    >>> features.shape, network.join(features, torch.zeros(1, 6, 2)).shape
    (torch.Size([1, 6, 512]), torch.Size([1, 6, 512]))
    """

    reads_target: ClassVar[bool] = True
    reads_windows: ClassVar[bool] = True
    states: Network = NORMED
    actions: Count = 256
    pairs: Network = NORMED.replace(hidden=(512, 512))
    joined: Count = 512
    rewards: TwoHot = TwoHot(bins=65, low=-10.0, high=10.0)
    dynamics: NonNegative = 1.0
    reward: NonNegative = 0.1
    end: NonNegative = 0.1
    start: Initializer = START
    sampling: Sampling | Horizon | None = Window(length=5)
    learning: Learning = Learning(
        AdamW(lr=1e-4, weight_decay=1e-4, clip_norm=None), every=250, epochs=250, target=Target(every=250)
    )

    def build(self, shape: tuple[int, ...], actions: Space[Any], population: Population) -> Representation:
        if len(shape) != 1:
            raise ConfigError(f"Encoder reads vectors, and observations are images {list(shape)}: flatten them.")
        size = relaxed(actions, tau=1.0).actions
        states, width = self.states.build(shape, population, "encoder.states")
        pairs, inner = self.pairs.build((width + self.actions,), population, "encoder.pairs")

        def layer(name: str, inputs: int, outputs: int) -> Linear:
            return Linear(population, f"encoder.{name}", inputs, outputs, start=self.start)

        model = layer("model", self.joined, 1 + width + self.rewards.size)
        return Representation(
            states, width, layer("actions", size, self.actions), pairs, layer("last", inner, self.joined), model
        )

    def followed(self, store: Any) -> None:
        self.state["ends"] = torch.stack([(own == 0).any() for own in store.live])[:, None]

    def loss(self, read: ReplayReading) -> Tensor:
        batch, network = read.batch, cast(Representation, read.network)
        assert batch.weights is not None
        with torch.no_grad():
            led = read.slow(read.seen("next").flatten(1, 2)).unflatten(1, batch.rewards.shape[1:])
            paid, ended = self.rewards.two_hot(batch.rewards), batch.terminated.to(batch.rewards.dtype)
        told, error = network(read.seen("here")[:, :, 0]), CrossEntropy()
        learns_ends = self.state.get("ends", torch.zeros(len(ended), 1, dtype=torch.bool)).to(ended)
        loss = torch.zeros_like(ended[:, 0, 0])
        for t in range(ended.shape[2]):
            ends, told, rewards = network.tell(told, batch.actions[:, :, t])
            each = self.dynamics * (told - led[:, :, t]).square().mean(-1)
            each = each + self.reward * error(rewards, paid[:, :, t]).sum(-1)
            each = each + self.end * (learns_ends * (ends - ended[:, :, t]).square())
            loss = loss + (batch.weights[:, :, t] * each).mean(1)
        return loss
