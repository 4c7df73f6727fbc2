"""GORL: how much a policy is held to each row is learned from a few hundred rows of an expert's (arXiv:2309.01448).

Changes TD3+BC in two places:

1. the best episode of the logs is marked as an expert's, G;
2. each row's square counts by what a small network B says of it, learned so that a step of the policy takes it nearer
   to the expert,

    loss_pi = mean_i (-lambda Q_1(s_i, mu(s_i)) + B_w(c_i) c_i),    c_i = mean_k (mu(s_i)_k - a_i,k)^2
    loss_B = mean_G mean_k (mu'(s)_k - a_k)^2,    mu' the policy after a plain step of 3e-4 along grad loss_pi

   B = 2 sigmoid(...) is between 0 and 2, and 1 where nothing is known, which is TD3+BC. The slope of loss_B in the
   weight of row i is -(3e-4 / N) <grad loss_B, grad c_i>: rows along whose action the policy comes nearer to the expert
   count more, others less. B steps first, then the policy by the weights that it says then.

The expert's rows stand in the logs, and are learned from as others are: the baseline has them too. No code was
released, and the paper was not at hand: the form of the bilevel step, one layer of 100 units, and the distance c_i as
all that B reads are taken from descriptions of it, and are a reading. It is put on IQL, CQL and SAC-N there too, and an
advantage is something else that B may read: neither is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from etude.core.claims import Claim, Measure
from etude.core.fields import Count, Positive
from etude.core.learners import Learning
from etude.core.log_slots import CloneError, CloneWeight
from etude.core.population import Population
from etude.core.replay_slots import ReplayLearner, ReplayReading
from etude.core.step_slots import Initializer, Network
from etude.experience.transforms import MarkExperts, StandardizeObservations
from etude.methods.offline.bc import TENTH
from etude.methods.offline.td3_bc import td3_bc
from etude.objectives.actor import MaximizeQ
from etude.objectives.clone import Clone, MeanAbs, SquaredDistance
from etude.objectives.reductions import First
from etude.optimizers.adam import Adam
from etude.policies.control.activations import sigmoid
from etude.policies.control.initializers import FanIn
from etude.policies.control.networks import MLP, Linear, Plain

if TYPE_CHECKING:
    from gymnasium import Space

    from etude.core.method import Method


class Intensity(Plain):
    """Distances [P, N] -> weights [P, N] between 0 and `most`."""

    def __init__(self, body: nn.Module, head: nn.Module, most: Any) -> None:
        super().__init__()
        self.body, self.head, self.most = body, head, most

    def forward(self, distances: Tensor) -> Tensor:
        found: Tensor = self.most * sigmoid(self.head(self.body(distances[..., None]))[..., 0])
        return found


class Guided(CloneWeight):
    """What a guiding network says of how far the policy is from the row's action.

    Args:
        error: how far it is; that of the clone.

    Shapes: [P, N].

    >>> from types import SimpleNamespace as Rows
    >>> read = Rows(policy=lambda: Rows(actions=torch.tensor([[[1.0], [0.0]]]), chances=None),
    ...             beside=lambda name: lambda distances: 2 - distances)
    >>> Guided()(read, torch.zeros(1, 2, 1)).tolist()
    [[1.0, 2.0]]
    """

    error: CloneError = SquaredDistance()

    def objection(self, method: Method) -> str | None:
        if not any(isinstance(part, GuidingNetwork) for part in method.slots()["learners"]):
            return "asks a guiding network, and there is none: set learners=guiding-network, with it in order."
        return None

    @torch.no_grad()
    def __call__(self, read: ReplayReading, actions: Tensor) -> Tensor:
        weights: Tensor = read.beside(GuidingNetwork.name)(self.error(read, actions))
        return weights


class GuidingNetwork(ReplayLearner):
    """Weights of rows, learned so that the policy's next step takes it nearer to an expert's rows (arXiv:2309.01448).

    It learns where the policy does, just before it. The mean weight is reported as `guiding-network_intensity`.

    Args:
        most: the largest weight. ahead: the rate of the policy's step that it looks at. rows: of the expert's, at most.
        last: where the last layer starts.

    Shapes: distances [P, N] -> weights [P, N].

    >>> from etude.core.population import Member
    >>> guide = GuidingNetwork().build((3,), None, Population([Member(0), Member(1)]))
    >>> guide(torch.zeros(2, 5)).shape
    torch.Size([2, 5])
    """

    slot = "learners"
    network: Network = MLP(hidden=(100,), activation="relu", initializer=FanIn())
    most: Positive = 2.0
    ahead: Positive = 3e-4
    rows: Count = 200
    last: Initializer = FanIn()
    learning: Learning = Learning(Adam(lr=1e-3), every=2)

    def objection(self, method: Method) -> str | None:
        policy, slots = method.slots()["policy"], method.slots()
        if not any(part.adds == MarkExperts.adds for part in slots["transforms"]):
            return "learns from an expert's rows, which no row says: set transforms=mark-experts."
        if policy is not None and (policy.of_choices or policy.learning is None):
            return f"looks a step of numbers ahead, and {type(policy).__name__} takes none: take another policy."
        if sum(isinstance(getattr(term, "weight", None), Guided) for term in slots["actor"]) != 1:
            return "weighs one clone: set actor.clone.weight=guided."
        return super().objection(method)

    def about_target(self) -> str | None:
        return None

    def build(self, shape: tuple[int, ...], actions: Space[Any], population: Population) -> nn.Module:
        body, width = self.network.build((1,), population, "guide")
        return Intensity(body, Linear(population, "guide.head", width, 1, start=self.last), self.most)

    def loss(self, read: ReplayReading) -> Tensor:
        distances, loss = self._weighed(read)
        read.note("intensity", self._weights(read, distances).mean(1))
        seen, done = self.expert(read)
        return (read.after_step(loss, self.ahead, seen) - done).square().mean((1, 2))

    def _weights(self, read: ReplayReading, distances: Tensor) -> Tensor:
        weights: Tensor = read.network(distances.detach())
        return weights

    def _weighed(self, read: ReplayReading) -> tuple[Tensor, Tensor]:
        """Distances [P, N], and what the policy would minimise, [P], with gradient to the weights of the rows."""
        total: Any = 0.0
        for term in read.terms:
            if isinstance(term, Clone) and isinstance(term.weight, Guided):
                distances = term.error(read, term.towards(read))
                total = total + term.scale * (self._weights(read, distances) * distances)
            else:
                total = total + term(read)
        return distances, total.mean(1)

    def expert(self, read: ReplayReading) -> tuple[Tensor, Tensor]:
        """What is seen [P, K, ...] in the expert's rows, and what was done there, [P, K, A] in units."""
        if "rows" not in self.made:
            marked = read.stored.beside[MarkExperts.adds].nonzero()[:, 0][: self.rows]
            self.made["rows"] = read.stored.read(marked[None])
        rows, members = self.made["rows"], len(read.batch.rewards)
        where = read.batch.rewards.device
        seen = read.look(rows.observations.to(where).expand(members, -1, -1))
        return seen, rows.actions.to(where).expand(members, -1, -1)


gorl = td3_bc.replace(
    id="gorl",
    title="Hundreds Guide Millions: Adaptive Offline Reinforcement Learning with Expert Guidance",
    paper="arXiv:2309.01448",
    transforms=(MarkExperts(episodes=1), StandardizeObservations()),
    learners=(GuidingNetwork(),),
    order=("critic", "guiding-network", "policy"),
    actor=(MaximizeQ(over=First(), scale=MeanAbs(alpha=2.5)), Clone(weight=Guided())),
    claim=Claim(
        statement="On bad logs with one good episode TD3+BC earns more where that episode guides it than where not.",
        task="pendulum",
        setting=(
            "50 logged episodes of a controller by hand, 49 of them with torques off by 2 and 8 on average in turn, 1 "
            "by 0.3; networks of 64-64, 5,000 updates, 20 episodes of likeliest actions"
        ),
        measures=(Measure(name="return", smallest=TENTH, bounds=(-2000.0, 0.0)),),
        equal=("updates",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on="return",
        paper_effect="more than most of the methods that it is put on, on D4RL's mixed data (tables I to III)",
    ),
)
