"""H2O: learn from real logs and in a simulator that is wrong, trusting it where it is right (arXiv:2206.13464).

Changes CQL in five places:

1. beside the logs it acts in a simulator, and half of every batch are steps there;
2. two discriminators learn whose a step is, of (s, a) and of (s, a, s'), classes 0 the logs', 1 the simulator's,

    p(.|s, a) = softmax(l_sa),    p(.|s, a, s') = softmax(l_sas + l_sa),    l = 2 tanh(...)

   of inputs with noise of 0.1. By Bayes' rule they say by how much the true dynamics differ,

    w(s, a, s') = P(s'|s, a) / P^(s'|s, a) = p(real|s, a, s') p(sim|s, a) / (p(sim|s, a, s') p(real|s, a))

   which is exp(l_sas[real] - l_sas[sim]);
3. a critic's error on the simulator's steps counts by that, 1 at most: mean_real (Q - y)^2 + mean_sim w (Q - y)^2;
4. what it says of the simulator's steps goes down where the dynamics are furthest off (eq. 9),

    0.01 (log sum_sim omega exp(Q) - mean_real Q),    omega = u / sum_sim u,    u = mean over s' of -log w(s, a, s')

   for ten states s' near the one that the step led to, u cut at 0 and 10;
5. the policy's rate is 3e-4, and learners step at once.

The task is the simulator, `--data` the real logs; what the policy earns in the real world is `etude evaluate RUN
--task REAL`. The authors act 1,000 steps and then make 1,000 updates, draw other rows for the discriminators, 256 of
each kind, and hold the entropy at 0; here an update follows each step, rows are those of the update, and the entropy is
CQL's. Without w: `critic=q-functions`; without the gap: `critic.penalties=none`. The paper's plain variant, sum_sim
omega Q in place of the logarithm of the sum of exponentials, is not here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from etude.core.claims import Claim, Measure
from etude.core.critic_slots import CriticPenalty
from etude.core.encoder_slots import encoder_of
from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative, Positive
from etude.core.learners import Learning, Target
from etude.core.population import Population
from etude.core.replay_slots import ReplayLearner, ReplayReading
from etude.core.step_slots import Initializer, Network
from etude.experience.beside_logs import LogsAndReplay, Symmetric
from etude.experience.exploration import Sampled
from etude.experience.sampling import OneStep
from etude.learners.backups import Bootstrap, FromPolicy
from etude.learners.q import QFunctions, action_sizes
from etude.learners.temperature import PerAction, Temperature
from etude.methods.offline.bc import TENTH
from etude.methods.offline.cql import cql
from etude.objectives.reductions import Min
from etude.optimizers.adam import Adam
from etude.policies.control.initializers import FanIn
from etude.policies.control.networks import MLP, Linear, Plain
from etude.policies.control.replay import SquashedPolicy

if TYPE_CHECKING:
    from gymnasium import Space

    from etude.core.method import Method

LEAST, LIMIT = 1e-30, 1000.0
"""What a gap counts at least, and how far a gap of values may go."""


class Logits(NamedTuple):
    """What two discriminators say, [P, N, 2] each: of the logs' class, and of the simulator's."""

    pair: Tensor
    step: Tensor


class Discriminators(Plain):
    """Two networks: of what is seen and done [P, N, D + A], and of what it led to besides, [P, N, 2 D + A]."""

    def __init__(self, pair: nn.Module, pair_head: nn.Module, step: nn.Module, step_head: nn.Module) -> None:
        super().__init__()
        self.pair, self.pair_head, self.step, self.step_head = pair, pair_head, step, step_head

    def forward(self, seen: Tensor, done: Tensor, led: Tensor) -> Logits:
        pair = torch.cat([seen, done], -1)
        said = self.pair_head(self.pair(pair)), self.step_head(self.step(torch.cat([pair, led], -1)))
        return Logits(*(2 * torch.tanh(x) for x in said))

    def log_ratio(self, seen: Tensor, done: Tensor, led: Tensor) -> Tensor:
        """log P(s'|s, a) / P^(s'|s, a), [P, N], between -4 and 4: the odds of (s, a) are in both terms."""
        found = self(seen, done, led).step
        return cast(Tensor, found[..., 0] - found[..., 1])


class DynamicsDiscriminators(ReplayLearner):
    """Whether a step is the logs' or the simulator's, by (s, a) and by (s, a, s') (arXiv:2206.13464).

        loss = mean over real steps of -log p(real|s, a) - log p(real|s, a, s'), and the same of simulated ones

    Args:
        noise: deviation of what is added to all inputs.

    Shapes: observations [P, N, D], actions [P, N, A] in units -> logits [P, N, 2] twice.

    >>> from etude.core.population import Member
    >>> from gymnasium.spaces import Box
    >>> two = Population([Member(0), Member(1)])
    >>> both = DynamicsDiscriminators(network=MLP(hidden=(8,))).build((3,), Box(-2.0, 2.0, (1,)), two)
    >>> both(torch.zeros(2, 5, 3), torch.zeros(2, 5, 1), torch.zeros(2, 5, 3)).step.shape
    torch.Size([2, 5, 2])
    """

    network: Network = MLP(hidden=(256, 256), activation="relu", initializer=FanIn())
    noise: NonNegative = 0.1
    last: Initializer = FanIn()
    learning: Learning = Learning(Adam(lr=3e-4))

    def objection(self, method: Method) -> str | None:
        encoder, policy = encoder_of(method), method.slots()["policy"]
        if encoder is not None:
            return f"reads what is seen, and {encoder.name} stands before it: leave it out."
        if policy is not None and policy.of_choices:
            return f"reads numbers, and {type(policy).__name__} makes choices: leave it out."
        return _without_both(method) or super().objection(method)

    def about_target(self) -> str | None:
        return None

    def build(self, shape: tuple[int, ...], actions: Space[Any], population: Population) -> Discriminators:
        if len(shape) != 1:
            raise ConfigError(f"DynamicsDiscriminators read vectors, and observations are images {list(shape)}.")
        sizes, made = (shape[0] + action_sizes(actions)[1], 2 * shape[0] + action_sizes(actions)[1]), list[nn.Module]()
        for name, size in zip(("pair", "step"), sizes, strict=True):
            body, width = self.network.build((size,), population, f"discriminator.{name}")
            made += [body, Linear(population, f"discriminator.{name}.head", width, 2, start=self.last)]
        return Discriminators(*made)

    def loss(self, read: ReplayReading) -> Tensor:
        shown = {"here": read.seen("here"), "done": read.batch.actions, "next": read.seen("next")}
        said = read.network(*(x + self.noise * read.normal(f"discriminator {k}", x) for k, x in shown.items()))
        logged = read.batch.offers["logged"]
        each = [likely[..., 0] * logged + likely[..., 1] * (1 - logged)
                for likely in (said.pair.log_softmax(-1), (said.pair + said.step).log_softmax(-1))]  # fmt: skip
        counted: Tensor = both_kinds(logged) * (each[0] + each[1])
        return -counted.mean(1)


def both_kinds(logged: Tensor) -> Tensor:
    """[P, N] what rows count so that the mean over all is the mean of the logs' and that of the others, added up.

    >>> both_kinds(torch.tensor([[1.0, 0.0, 1.0, 0.0]])).tolist()
    [[2.0, 2.0, 2.0, 2.0]]
    """
    share = logged.mean(1, keepdim=True)
    return logged / share + (1 - logged) / (1 - share)


def _without_both(method: Method) -> str | None:
    if not isinstance(method.slots()["sampling"], Symmetric):
        return "compares rows of logs with others, and a batch may have none: set sampling=symmetric."
    return None


def _undiscriminated(method: Method) -> str | None:
    if not any(isinstance(part, DynamicsDiscriminators) for part in method.slots()["learners"]):
        return "asks how far the dynamics are off, and nobody says it: add dynamics-discriminators to learners."
    return None


def log_ratio(read: ReplayReading, led: Tensor, copies: int = 1) -> Tensor:
    """log P / P^ [P, N * copies] of what is seen and done, which led to `led` [P, N * copies, D]."""
    seen, done = (x.repeat_interleave(copies, 1) for x in (read.seen("here"), read.batch.actions))
    network = cast(Any, read.beside(DynamicsDiscriminators.name))
    return cast(Tensor, network.log_ratio(seen, done, read.look(led)))


class TrustingQFunctions(QFunctions):
    """Q-functions whose error on simulated steps counts by how likely the step is in truth, `most` at most.

    The mean of these weights is noted as `critic_trust`.

    Shapes: values [P, M, N], weights [P, N].

    >>> TrustingQFunctions().most
    1.0
    """

    least: NonNegative = 1e-5
    most: Positive = 1.0

    def objection(self, method: Method) -> str | None:
        return _without_both(method) or _undiscriminated(method) or super().objection(method)

    @torch.no_grad()
    def importance(self, read: ReplayReading) -> Tensor:
        following, logged = read.batch.next_observations, read.batch.offers["logged"]
        assert following is not None
        trust = log_ratio(read, following).exp().clamp(self.least, self.most)
        read.note("trust", (trust * (1 - logged)).sum(1) / (1 - logged).sum(1))
        return both_kinds(logged) * torch.where(logged > 0, 1.0, trust)


class GapPenalty(CriticPenalty):
    """What a critic says of simulated steps goes down where the dynamics are off, of the logs' up (arXiv:2206.13464).

        weight sum_m (log sum_sim omega exp(Q_m) - mean_real Q_m),    omega = u / sum_sim u

    with u the mean of log P^ / P over states near the one that a step led to, between 0 and `most`.

    Args:
        states: how many of those. spread: their deviation, in deviations of the logs' observations.

    Shapes: outputs [P, M, N, K] -> [P, N], the same in every row.

    >>> omega = shares(torch.tensor([[2.0, 3.0, 1.0]]), logged=torch.tensor([[0.0, 1.0, 0.0]]))
    >>> [round(x, 4) for x in omega.exp()[0].tolist()]
    [0.6667, 0.0, 0.3333]
    """

    states: Count = 10
    spread: NonNegative = 1.0
    most: Positive = 10.0
    weight: NonNegative = 0.01

    def objection(self, method: Method) -> str | None:
        return _without_both(method) or _undiscriminated(method)

    def __call__(self, read: ReplayReading, outputs: Tensor) -> Tensor:
        values, logged = read.values(outputs), read.batch.offers["logged"]
        low = torch.logsumexp(values + self._omega(read, logged)[:, None], -1)
        real = (values * logged[:, None]).sum(-1) / logged.sum(1, keepdim=True)
        gap = (low - real).clamp(-LIMIT, LIMIT).sum(1, keepdim=True)
        return self.weight * gap.expand(-1, values.shape[2])

    @torch.no_grad()
    def _omega(self, read: ReplayReading, logged: Tensor) -> Tensor:
        following = read.batch.next_observations
        assert following is not None
        if "deviation" not in self.made:
            rows = read.stored.logs.rows[:, : following.shape[-1]]
            self.made["deviation"] = rows.std(0, correction=0).to(following)
        near = following.repeat_interleave(self.states, 1)
        near = near + self.spread * (self.made["deviation"] * read.normal("near", near))
        gaps = -log_ratio(read, near, self.states).unflatten(1, (-1, self.states)).mean(-1)
        read.note("gap", (gaps * (1 - logged)).sum(1) / (1 - logged).sum(1))
        return shares(gaps.clamp(LEAST, self.most), logged)


def shares(gaps: Tensor, logged: Tensor) -> Tensor:
    """Logarithms [P, N] of each simulated row's share in the sum of their gaps [P, N]; -inf for the logs'."""
    return gaps.log().masked_fill(logged > 0, -torch.inf).log_softmax(1)


h2o = cql.replace(
    id="h2o",
    title="When to Trust Your Simulator: Dynamics-Aware Hybrid Offline-and-Online Reinforcement Learning",
    paper="arXiv:2206.13464",
    experience=LogsAndReplay(random=0, warmup=1_000, every=1, updates=1.0),
    exploration=Sampled(),
    sampling=Symmetric(batch=256, horizon=OneStep(gamma=0.99), share=0.5),
    policy=SquashedPolicy(learning=Learning(Adam(lr=3e-4))),
    critic=TrustingQFunctions(
        count=2,
        backup=Bootstrap(FromPolicy(), reduce=Min()),
        penalties=(GapPenalty(weight=0.01),),
        learning=Learning(Adam(lr=3e-4), target=Target(rate=0.005)),
    ),
    learners=(
        Temperature(start=1.0, entropy=PerAction(-1.0), learning=Learning(Adam(lr=3e-4))),
        DynamicsDiscriminators(),
    ),
    order=("dynamics-discriminators", ("critic", "policy", "temperature")),
    claim=Claim(
        statement=(
            "With few real logs and a simulator whose motor turns the other way round, H2O earns more in the real "
            "pendulum than CQL on the logs, and more than SAC on both without a correction."
        ),
        task="pendulum",
        setting=(
            "10 real episodes of a controller by hand with torques off by 8 on average; 3,000 steps in a simulator "
            "whose torques have the other sign, the first 250 without updates; networks of 64-64, of discriminators "
            "too; CQL makes as many updates; 20 real episodes of likeliest actions"
        ),
        measures=(
            Measure(name="return", smallest=TENTH, bounds=(-2000.0, 0.0)),
            Measure(name="return beside pooling", smallest=TENTH, bounds=(-2000.0, 0.0)),
        ),
        equal=("updates",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on="return",
        paper_effect="the best in most of HalfCheetah's wrong simulators, and on a real robot (table 1)",
    ),
)
