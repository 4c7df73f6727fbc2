"""BCQ: an autoencoder proposes actions that are likely in the logs, a network moves them a little, critics choose.

Changes TD3 in four places (arXiv:1812.02900):

1. it learns from logs, and nothing is explored or delayed;
2. a conditional variational autoencoder of the recorded actions proposes, a = dec(s, z), z a standard normal cut to
   [-0.5, 0.5]; the policy is a network that moves that by phi at most,

    a + xi(s, a),    |xi| <= phi = 0.05,

   brought back into the bounds, and climbs the first critic there (eq. 12);
3. the target takes the best of ten such actions, of a value between the smaller and the larger critic (eq. 13),

    y = r + gamma (1 - terminated) max_i [lambda min_k Q'_k(s', a_i) + (1 - lambda) max_k Q'_k(s', a_i)],  lambda = 0.75

   with the slow copy of the policy, and the autoencoder as it is;
4. it acts by the first critic's choice among a hundred.

As the authors' code has it: rates are 1e-3, batches 100, networks of 400-300, those of the autoencoder 750-750, which
steps first. There the hundred z are drawn anew for every action; here every member draws them once, so that a policy
does one thing at an observation, and is exported as it acted.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from etude.core.encoder_slots import encoder_of
from etude.core.fields import Count, PositiveProbability
from etude.core.learners import Learning, Target
from etude.core.replay_slots import ActorTerm, Choice, ReplayReading
from etude.core.step_slots import Network
from etude.experience.logged import Logged
from etude.experience.sampling import OneStep, UniformRows
from etude.learners.best_of import BestOf, MostlyMin
from etude.learners.q import QFunctions, action_sizes
from etude.learners.vae import LIMIT, ActionVAE, Autoencoded
from etude.methods.offline.bc import over_cloning
from etude.methods.value.td3 import td3
from etude.optimizers.adam import Adam
from etude.policies.control.actor import Actor
from etude.policies.control.initializers import FanIn
from etude.policies.control.networks import MLP, Linear
from etude.policies.control.replay import NetworkPolicy, seen_through, transformed
from etude.policies.control.units import Point, box_bounds

if TYPE_CHECKING:
    from gymnasium import Space

    from etude.core.method import Method
    from etude.core.population import Population
    from etude.policies.control.memory import Past

SIZE = MLP(hidden=(400, 300), activation="relu", initializer=FanIn())


@dataclass(frozen=True)
class Chosen(Point):
    """One action: the parameters themselves, in units."""

    def middle(self, parameters: Tensor) -> Tensor:
        return parameters

    def chosen(self, parameters: Tensor, noise: Tensor) -> Choice:
        return Choice(parameters, None)


class Perturbing(Actor):
    """Moves proposed actions (`perturb`), and acts by the first critic's choice among `latents` [P, C, L].

    `reach` is how far a number of an action moves at most.
    """

    reach: Any
    latents: Tensor

    def perturb(self, seen: Tensor, actions: Tensor) -> Tensor:
        """Actions [P, N, A] in units at what is seen [P, N, D], moved."""
        said: Tensor = self.head(self.body(torch.cat([seen, actions], -1)))
        moved: Tensor = actions + self.reach * torch.tanh(said)
        return moved.clamp(-1.0, 1.0)

    def features(self, seen: Tensor, past: Past | None = None) -> tuple[Tensor, Tensor | None]:
        members, rows = seen.shape[:2]
        count, vae = self.latents.shape[1], cast(Autoencoded, self.held[ActionVAE.name])
        wide = seen[:, :, None].expand(-1, -1, count, -1).flatten(1, 2)
        latents = self.latents[:, None].expand(-1, rows, -1, -1).flatten(1, 2)
        actions = self.perturb(wide, vae.decode(wide, latents))
        worth = self.held["critic"](wide, actions)[:, 0, :, 0].view(members, rows, count)
        best = worth.argmax(-1)[..., None, None]
        each = actions.view(members, rows, count, -1)
        return each.gather(2, best.expand(-1, -1, 1, each.shape[-1])).squeeze(2), None

    def say(self, features: Tensor, allowed: Tensor | None = None) -> Tensor:
        return features

    def forward(self, seen: Tensor, past: Past | None = None) -> Tensor:
        return self.features(seen, past)[0]


class PerturbationPolicy(NetworkPolicy):
    """What an autoencoder proposes, moved by `reach` at most; acts by the first critic's choice (arXiv:1812.02900).

    Args:
        reach: how far a number of an action in units moves at most. candidates: how many it chooses among when it acts.

    Shapes: observations [P, N, D] -> actions [P, N, A].

    >>> Chosen((-2.0,), (2.0,)).mode(torch.tensor([[0.5]])).tolist()
    [[1.0]]
    """

    network: Network = SIZE
    reach: PositiveProbability = 0.05
    candidates: Count = 100
    learning: Learning | None = Learning(Adam(lr=1e-3), target=Target(rate=0.005))

    def objection(self, method: Method) -> str | None:
        slots = method.slots()
        if not any(isinstance(part, ActionVAE) for part in slots["learners"]):
            return "moves what an autoencoder proposes, and there is none: set learners=action-vae."
        if slots["critic"] is None or slots["critic"].of_states or slots["critic"].head.size > 1:
            return "acts by what a critic says of actions: set critic=q-functions with critic.head=scalar."
        if encoder_of(method) is not None:
            return f"reads what is seen, and {encoder_of(method).name} stands before it: leave it out."  # type: ignore[union-attr]
        if any(not isinstance(term, MaximizePerturbed) for term in slots["actor"]):
            return "has no action without a proposal, and other terms ask for one: set actor=maximize-perturbed."
        if self.learning is not None and self.learning.target is None:
            return "is asked by its slow copy: set policy.learning.target."
        return super().objection(method)

    def distribution(self, actions: Space[Any]) -> Chosen:
        return Chosen(*box_bounds(actions, "PerturbationPolicy"))

    def actor(self, method: Method, shape: tuple[int, ...], actions: Space[Any], population: Population) -> Actor:
        own, slots = copy(self), method.slots()
        own.settle("observations", (*seen_through(method), *self.observations))
        transforms, seen = transformed(own.observations, shape, population)
        vae = next(part for part in slots["learners"] if isinstance(part, ActionVAE)).build(seen, actions, population)
        held = {ActionVAE.name: vae, "critic": slots["critic"].build(seen, actions, population)}
        numbers, free = action_sizes(actions)[1], torch.zeros(population.size, 1, 0)
        body, width = self.network.build((seen[0] + numbers,), population, "policy")
        head = Linear(population, "policy.head", width, numbers, start=self.last)
        spread = self.distribution(actions)
        made = Perturbing(transforms, body, None, head, spread, free, shape, seen, numbers, held=held)
        drawn = population.draw(
            "policy", "candidates", of=lambda g: torch.randn(self.candidates, vae.latents, generator=g)
        )
        made.register_buffer("latents", drawn.clamp(-LIMIT, LIMIT).to(torch.get_default_dtype()))
        made.reach = self.reach
        return made


def proposed(read: ReplayReading, policy: nn.Module, at: Any, count: int) -> Tensor:
    """[P, N, C, A] what the autoencoder proposes, as a policy's network moves it; gradient to that network alone."""
    vae, seen = cast(Autoencoded, read.beside(ActionVAE.name)), read.seen(at)
    wide = seen[:, :, None].expand(-1, -1, count, -1).flatten(1, 2)
    noise = read.normal(f"candidates {at}", seen.new_empty(*seen.shape[:2], count, vae.latents))
    with torch.no_grad():
        actions = vae.decode(wide, noise.clamp(-LIMIT, LIMIT).flatten(1, 2))
    moved: Tensor = cast(Perturbing, policy).perturb(wide, actions)
    return cast(Tensor, moved.unflatten(1, (-1, count)))


class BestProposed(BestOf):
    """y = r + discount max_i Q', of so many proposed actions, as the policy's slow copy moves them.

    Args:
        count: how many. reduce: one value from those of several critics.

    Shapes: [P, M, N, C, K] -> [P, N, K].

    >>> from types import SimpleNamespace as Rows
    >>> from etude.learners.heads import Scalar
    >>> class Mover:
    ...     def perturb(self, seen, actions): return actions
    >>> vae = Rows(latents=1, decode=lambda seen, latents: latents)
    >>> read = Rows(beside=lambda name: vae, copied=lambda name: Mover(), seen=lambda at: torch.zeros(1, 1, 1),
    ...             normal=lambda name, like: torch.tensor([0.1, 9.0, -0.2]).view(1, 1, 3, 1),
    ...             outputs=lambda at, a, copy: a[:, None],
    ...             batch=Rows(rewards=torch.ones(1, 1), discounts=torch.ones(1, 1)))
    >>> BestProposed(count=3).target(read, Scalar()).tolist()  # z is cut at 0.5
    [[[1.5]]]
    """

    def objection(self, method: Method) -> str | None:
        if not isinstance(method.slots()["policy"], PerturbationPolicy):
            return "asks about proposed actions, which nobody moves: set policy=perturbation-policy."
        return None

    def actions(self, read: ReplayReading) -> Tensor:
        return proposed(read, read.copied("policy"), "next", self.count)


class MaximizePerturbed(ActorTerm):
    """-Q_1(s, a + xi(s, a)), of one proposed action at each row.

    Shapes: [P, N].

    >>> from types import SimpleNamespace as Rows
    >>> vae = Rows(latents=1, decode=lambda wide, latent: torch.full((1, 2, 1), 0.5))
    >>> read = Rows(network=Rows(perturb=lambda wide, actions: actions + 0.25), beside=lambda name: vae,
    ...             seen=lambda at: torch.zeros(1, 2, 3), normal=lambda name, like: like.zero_(),
    ...             outputs=lambda at, actions, **how: 4 * actions[:, None], values=lambda said: said[..., 0])
    >>> MaximizePerturbed()(read).tolist()  # Q = 4 a, of 0.5 moved by 0.25
    [[-3.0, -3.0]]
    """

    def __call__(self, read: ReplayReading) -> Tensor:
        actions = proposed(read, read.network, "here", 1)[:, :, 0]
        return -read.values(read.outputs("here", actions, frozen=True, first=True))[:, 0]


bcq = td3.replace(
    id="bcq",
    title="Off-Policy Deep Reinforcement Learning without Exploration",
    paper="arXiv:1812.02900",
    experience=Logged(),
    exploration=None,
    policy=PerturbationPolicy(reach=0.05, candidates=100),
    sampling=UniformRows(batch=100, horizon=OneStep(gamma=0.99)),
    critic=QFunctions(
        network=SIZE,
        count=2,
        backup=BestProposed(count=10, reduce=MostlyMin(share=0.75)),
        learning=Learning(Adam(lr=1e-3), target=Target(rate=0.005)),
    ),
    actor=(MaximizePerturbed(),),
    learners=(ActionVAE(),),
    order=("action-vae", "critic", "policy"),
    claim=over_cloning(
        statement="On logs of good and bad episodes BCQ earns more than cloning them.",
        paper_effect="more than cloning and DDPG in three MuJoCo tasks, from logs of four kinds (figure 2)",
    ),
)
