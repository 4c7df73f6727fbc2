"""How far a policy is from what logs may do, by samples that could be told apart, and what it pays for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from etude.core.fields import Count, NonNegative, Positive
from etude.core.learners import Learning
from etude.core.population import Numbers, Population
from etude.core.replay_slots import ActorTerm, ReplayLearner, ReplayReading
from etude.learners.behaviour import behaviour, without_behaviour
from etude.learners.vae import LIMIT, ActionVAE, Autoencoded
from etude.optimizers.adam import Adam
from etude.policies.control.replay import SquashedPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium import Space

    from etude.core.method import Method

SMALLEST = 1e-6
"""Added below the root, whose slope has no bound at 0."""
LEAST, MOST = -5.0, 10.0
"""Between which the logarithm of a price counts."""


def discrepancy(x: Tensor, y: Tensor, width: Any) -> Tensor:
    """MMD^2 of samples [..., C, A] and [..., C', A] by a Gaussian kernel, [...].

        mean_ij k(x_i, x_j) + mean_ij k(y_i, y_j) - 2 mean_ij k(x_i, y_j),    k(x, y) = exp(-|x - y|^2 / (2 width))

    >>> x, y = torch.tensor([[0.0], [2.0]]), torch.tensor([[2.0], [0.0]])
    >>> discrepancy(x, y, 1.0).item(), round(discrepancy(x, x + 2, 1.0).item(), 4)
    (0.0, 0.4998)
    """

    def alike(one: Tensor, other: Tensor) -> Tensor:
        apart = (one[..., :, None, :] - other[..., None, :, :]).square().sum(-1)
        found: Tensor = (apart * (-0.5 / width)).exp().mean((-2, -1))
        return found

    return alike(x, x) + alike(y, y) - 2.0 * alike(x, y)


class WithinSupport(ActorTerm, abstract=True):
    """alpha MMD, of the policy and of what is done in the logs; alpha is what a learner offers as its price.

    Args:
        count: n, samples of either: few tell what is possible from what is not, many also how often it is done.
        width: of the kernel.
    """

    count: Count = 5
    width: Positive = 20.0

    def objection(self, method: Method) -> str | None:
        if not any(isinstance(part, SupportPrice) for part in method.slots()["learners"]):
            return "counts by a price that a learner offers, and there is none: set learners=support-price."
        return None

    def squared(self, read: ReplayReading) -> Tensor:
        """MMD^2, [P, N], with gradient to the policy."""
        raise NotImplementedError

    def distance(self, read: ReplayReading) -> Tensor:
        """MMD, [P, N], with gradient to the policy."""
        return (self.squared(read).clamp(min=0.0) + SMALLEST).sqrt()

    def __call__(self, read: ReplayReading) -> Tensor:
        return read.offered(SupportPrice.offered)[:, None] * self.distance(read)


class SampledSupport(WithinSupport):
    """Of numbers: samples of the policy and of an autoencoder, before tanh; its z are cut at 0.5 (arXiv:1906.00949).

    Shapes: [P, N].

    >>> from types import SimpleNamespace as Rows
    >>> vae = Rows(latents=1, several=lambda seen, latents: torch.tensor([[[[1.0], [2.0]]]]))
    >>> read = Rows(beside=lambda name: vae, seen=lambda at: torch.zeros(1, 1, 3), normal=lambda name, like: like,
    ...             before_tanh=lambda count: torch.tensor([[[[2.0], [1.0]]]]))
    >>> SampledSupport(count=2).squared(read).tolist()
    [[0.0]]
    """

    def objection(self, method: Method) -> str | None:
        slots = method.slots()
        if slots["policy"] is not None and not isinstance(slots["policy"], SquashedPolicy):
            return f"asks what is tanh's argument, which {slots['policy'].name} has not: set policy=squashed-policy."
        if not any(isinstance(part, ActionVAE) for part in slots["learners"]):
            return "asks an autoencoder for likely actions, and there is none: set learners=action-vae."
        return super().objection(method)

    def squared(self, read: ReplayReading) -> Tensor:
        vae, seen = cast(Autoencoded, read.beside(ActionVAE.name)), read.seen("here")
        noise = read.normal("likely", seen.new_empty(*seen.shape[:2], self.count, vae.latents))
        with torch.no_grad():
            likely = vae.several(seen, noise.clamp(-LIMIT, LIMIT))
        return discrepancy(read.before_tanh(self.count), likely, self.width)


class ExpectedSupport(WithinSupport):
    """Of choices: how much further samples of the policy are from those of a clone than these are from each other.

        mean MMD^2(pi, G) - mean MMD^2(G, G) = (1 - k) [(1 - 1/n) sum pi^2 + (1 + 1/n) sum G^2 - 2 sum pi G]

    over n samples of either, each choice a vector of which one number is 1, and k = exp(-1 / width) how alike two
    others are: no sample is drawn. The more there are, the nearer it is to (1 - k) |pi - G|^2; of few, likely choices
    may be made always, and it counts as 0 where the clone's own samples are further apart.

    Shapes: [P, N].

    >>> from types import SimpleNamespace as Rows
    >>> chances, logits = torch.tensor([[[0.75, 0.25], [1.0, 0.0], [0.0, 1.0]]]), torch.tensor([0.75, 0.25]).log()
    >>> read = Rows(policy=lambda: Rows(chances=chances), seen=lambda at: None,
    ...             beside=lambda name: lambda seen: logits.expand(1, 3, 2))
    >>> for n in (5, 10**9):
    ...     print([round(x, 4) for x in ExpectedSupport(count=n, width=1.0).squared(read)[0].tolist()])
    [0.0, 0.0316, 0.6637]
    [0.0, 0.079, 0.7111]
    """

    width: Positive = 1.0

    def objection(self, method: Method) -> str | None:
        policy = method.slots()["policy"]
        if policy is not None and (not policy.of_choices or policy.made_of_critic):
            return f"asks for chances of choices, which {policy.name} does not have: set policy=softmax-policy."
        return without_behaviour(method) or super().objection(method)

    def squared(self, read: ReplayReading) -> Tensor:
        own, logged, share = read.policy().chances, behaviour(read).exp(), 1.0 / self.count
        assert own is not None
        same = (1 - share) * own.square().sum(-1) + (1 + share) * logged.square().sum(-1)
        alike = (logged.new_ones(1, 1) * (-1.0 / self.width)).exp()
        return (1 - alike) * (same - 2.0 * (own * logged).sum(-1))


class SupportPrice(ReplayLearner):
    """alpha, which climbs alpha (MMD - limit): what is beyond the limit grows dearer, what is within it cheaper.

    The distance is the policy's own (`WithinSupport`), the mean over the rows; log alpha counts as between -5 and 10.

    Args:
        start: where alpha starts. limit: of the distance.

    Shapes: distances [P, N] -> [P].

    >>> from types import SimpleNamespace as Rows
    >>> class Far(WithinSupport):
    ...     def squared(self, read): return torch.tensor([[0.09, 0.25]])
    >>> part, numbers = SupportPrice(start=2.0, limit=0.1), Numbers({"log": torch.tensor([2.0]).log()})
    >>> round(part.loss(Rows(network=numbers, terms=(Far(),), note=lambda *told: None)).item(), 4)
    -0.6
    """

    offered = "support_price"
    start: Positive = 1.0
    limit: NonNegative = 0.05
    learning: Learning = Learning(Adam(lr=1e-3))

    def objection(self, method: Method) -> str | None:
        if not any(isinstance(term, WithinSupport) for term in method.slots()["actor"]):
            return "is the price of a distance that no term of the policy has: leave it out."
        return super().objection(method)

    def about_target(self) -> str | None:
        return None

    def build(self, shape: tuple[int, ...], actions: Space[Any], population: Population) -> Numbers:
        return Numbers({"log": (torch.ones(population.size) * self.start).log()})

    def loss(self, read: ReplayReading) -> Tensor:
        term = next(term for term in read.terms if isinstance(term, WithinSupport))
        distance = term.distance(read).detach().mean(1)
        read.note("distance", distance)
        return -(_price(read.network) * (distance - self.limit))

    def offers(self, network: nn.Module) -> Mapping[str, Tensor]:
        return {self.offered: _price(network)}


def _price(network: nn.Module) -> Tensor:
    """[P] alpha, whose gradient does not stop where log alpha is cut."""
    log: Tensor = network()[:, 0]
    return (log + (log.clamp(LEAST, MOST) - log).detach()).exp()
