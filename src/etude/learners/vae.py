"""What is usually done at an observation, as a conditional variational autoencoder of actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from etude.core.encoder_slots import encoder_of
from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative
from etude.core.learners import Learning
from etude.core.log_slots import CloneWeight
from etude.core.population import Population
from etude.core.replay_slots import ReplayLearner, ReplayReading
from etude.core.step_slots import Initializer, Network
from etude.learners.q import action_sizes
from etude.objectives.clone import Ones
from etude.optimizers.adam import Adam
from etude.policies.control.initializers import FanIn
from etude.policies.control.networks import MLP, Linear

if TYPE_CHECKING:
    from gymnasium import Space

    from etude.core.method import Method

LEAST, MOST = -4.0, 15.0
"""Between which the logarithm of the deviation is kept (arXiv:1812.02900, appendix F)."""
LIMIT = 0.5
"""Of every number of z that actions are made of: what is proposed is not far from the usual."""


class Autoencoded(nn.Module):
    """q(z|s, a), a normal, and what it makes of a z at s: actions in units.

    Args:
        latents: numbers of z.
    """

    def __init__(
        self, encoder: nn.Module, moments: nn.Module, decoder: nn.Module, last: nn.Module, latents: int
    ) -> None:
        super().__init__()
        self.encoder, self.moments, self.decoder, self.last, self.latents = encoder, moments, decoder, last, latents

    def encode(self, seen: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Means and logarithms of deviations [P, N, latents] of z."""
        mean, log_std = self.moments(self.encoder(torch.cat([seen, actions], -1))).chunk(2, -1)
        return mean, log_std.clamp(LEAST, MOST)

    def decode(self, seen: Tensor, latent: Tensor) -> Tensor:
        """Actions [P, N, A] in units for z [P, N, latents]."""
        return torch.tanh(self.before_tanh(seen, latent))

    def before_tanh(self, seen: Tensor, latent: Tensor) -> Tensor:
        """What the decoder says of z, of which actions are tanh."""
        said: Tensor = self.last(self.decoder(torch.cat([seen, latent], -1)))
        return said

    def several(self, seen: Tensor, latents: Tensor) -> Tensor:
        """The same of C of them at each row, [P, N, C, latents]: [P, N, C, A]."""
        count = latents.shape[2]
        wide = seen[:, :, None].expand(-1, -1, count, -1).flatten(1, 2)
        return cast(Tensor, self.before_tanh(wide, latents.flatten(1, 2)).unflatten(1, (-1, count)))

    def forward(self, seen: Tensor, actions: Tensor, noise: Tensor) -> Tensor:
        """Actions [P, N, A] as they come back, z being drawn with standard normal `noise` [P, N, latents]."""
        mean, log_std = self.encode(seen, actions)
        return self.decode(seen, mean + log_std.exp() * noise)


class ActionVAE(ReplayLearner):
    """A conditional variational autoencoder of the actions that were done (arXiv:1812.02900, eq. 28).

        loss = mean weight(s, a) mean_k (a'_k - a_k)^2 + kl mean KL(q(z|s, a) || N(0, 1)),    a' = tanh(dec(s, z))

    both means also over numbers of the action and of z.

    Args:
        network: of encoder and decoder, each a network of its own.
        latents: numbers of z for each number of an action.
        weight: how much each row counts in the first term. kl: weight of the second.

    Shapes: observations [P, N, D], actions [P, N, A] in units -> the same.

    >>> from etude.core.population import Member
    >>> from gymnasium.spaces import Box
    >>> two = Population([Member(0), Member(1)])
    >>> vae = ActionVAE(network=MLP(hidden=(8,))).build((3,), Box(-2.0, 2.0, (1,)), two)
    >>> vae(torch.zeros(2, 5, 3), torch.zeros(2, 5, 1), torch.zeros(2, 5, vae.latents)).shape, vae.latents
    (torch.Size([2, 5, 1]), 2)
    """

    network: Network = MLP(hidden=(750, 750), activation="relu", initializer=FanIn())
    latents: Count = 2
    weight: CloneWeight = Ones()
    kl: NonNegative = 0.5
    last: Initializer = FanIn()
    learning: Learning = Learning(Adam(lr=1e-3))

    def objection(self, method: Method) -> str | None:
        encoder, policy = encoder_of(method), method.slots()["policy"]
        if encoder is not None:
            return f"reads what is seen, and {encoder.name} stands before it: leave it out."
        if policy is not None and policy.of_choices:
            return f"makes numbers, and {type(policy).__name__} makes choices: leave it out."
        return super().objection(method)

    def about_target(self) -> str | None:
        return None

    def build(self, shape: tuple[int, ...], actions: Space[Any], population: Population) -> Autoencoded:
        if len(shape) != 1:
            raise ConfigError(f"ActionVAE reads vectors, and observations are images {list(shape)}: leave it out.")
        size, each = action_sizes(actions)[1], population.each(1, "vae")
        latents = self.latents * size
        encoder, width = self.network.build((shape[0] + size,), each, "vae.encoder")
        decoder, inner = self.network.build((shape[0] + latents,), each, "vae.decoder")
        moments = Linear(each, "vae.moments", width, 2 * latents, start=self.last)
        return Autoencoded(encoder, moments, decoder, Linear(each, "vae.last", inner, size, start=self.last), latents)

    def loss(self, read: ReplayReading) -> Tensor:
        network, actions, seen = cast(Autoencoded, read.network), read.batch.actions, read.seen("here")
        mean, log_std = network.encode(seen, actions)
        noise = read.normal("vae", mean)
        back = network.decode(seen, mean + log_std.exp() * noise)
        divergence = -0.5 * (1 + 2 * log_std - mean.square() - (2 * log_std).exp())
        apart = self.weight(read, actions) * (back - actions).square().mean(-1)
        return apart.mean(1) + self.kl * divergence.mean((1, 2))
