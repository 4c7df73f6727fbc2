"""FamO2O: a policy for every balance of improving and imitating, and a model that picks the balance for each state.

Changes IQL in four places (arXiv:2310.17966), in the form that it has on IQL:

1. the policy is also shown a balance b, the inverse temperature, as six numbers,

    E(b) = (sin b, cos b, sin b/c, cos b/c, sin b/c^2, cos b/c^2),    c = 10000^(1/3),
    loss_pi = -min(exp(b (min_k Q'_k(s, a) - V(s))), 100) log pi(a|s, E(b)),

   with a b for each row that is drawn uniformly between two bounds: a family of policies;
2. a balance model, a squashed normal over these bounds, learns beside it which b is worth most, as SAC's policy learns
   an action: through what the family then does, nothing else moving,

    loss_b = T log pi_b(b|s) - min_k Q_k(s, a'),    a' ~ pi(.|s, E(b)),    b ~ pi_b(.|s),

   with a temperature T that holds its entropy at -1/2, that of b in units of half the bounds' distance;
3. it acts by the model's likeliest b;
4. halfway it goes on in the environment with all of the logs beside its own steps, and the rows' b come from the model.

V and critics are IQL's. The rate stays, as where IQL's authors go on online. Bounds are 1 and 5 for locomotion, 8 and
14 for mazes. With both the same it is IQL with one more constant in view. Its form on CQL, where b weighs Q
beside the entropy, is not here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn

from etude.core.claims import Claim, Measure
from etude.core.critic_slots import Reduction
from etude.core.encoder_slots import encoder_of
from etude.core.errors import ConfigError
from etude.core.fields import NonNegative, Positive
from etude.core.learners import Learning
from etude.core.part import Part
from etude.core.population import Numbers, Population
from etude.core.replay_slots import ActorTerm, ReplayLearner, ReplayReading
from etude.core.step_slots import Initializer, Network
from etude.learners.backups import FromValue
from etude.methods.offline.bc import TENTH
from etude.methods.offline.iql import iql
from etude.objectives.reductions import Min
from etude.optimizers.adam import Adam
from etude.policies.control.actor import Actor
from etude.policies.control.initializers import FanIn
from etude.policies.control.networks import Linear
from etude.policies.control.replay import WIDE, SquashedMeanPolicy, seen_through, transformed
from etude.policies.control.units import SquashedBox, in_units
from etude.stages.handover import Handover
from etude.stages.phases import Phase

if TYPE_CHECKING:
    from gymnasium import Space

    from etude.core.method import Method
    from etude.policies.control.memory import Past

PERIODS = tuple(10_000.0 ** (i / 3) for i in range(3))
SQUASHED = SquashedBox((-1.0,), (1.0,), -20.0, 2.0)
"""What the balance model's outputs make: a number in units, and its density."""


def embedded(balance: Tensor) -> Tensor:
    """Balances [..., 1] as six numbers [..., 6].

    >>> embedded(torch.zeros(1)).tolist()
    [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    """
    turns = balance / torch.tensor(PERIODS, dtype=balance.dtype, device=balance.device)
    return torch.stack([turns.sin(), turns.cos()], -1).flatten(-2)


class BalanceNetwork(nn.Module):
    """What is seen [P, N, D] to the mean and the logarithm of the deviation of a squashed normal, [P, N, 2].

    `low` and `high` are what it is rescaled to, `heat` the logarithm of the temperature.
    """

    def __init__(self, body: nn.Module, head: nn.Module, heat: Numbers, low: Any, high: Any) -> None:
        super().__init__()
        self.body, self.head, self.heat, self.low, self.high = body, head, heat, low, high

    def forward(self, seen: Tensor) -> Tensor:
        said: Tensor = self.head(self.body(seen))
        return said

    def rescaled(self, units: Tensor) -> Tensor:
        """Numbers between -1 and 1 as balances."""
        found: Tensor = self.low + (self.high - self.low) * (0.5 * (units + 1))
        return found

    def likeliest(self, seen: Tensor) -> Tensor:
        """[P, N, 1] the balance that it acts by."""
        return self.rescaled(SQUASHED.middle(self(seen)))


class FamilyActor(Actor):
    """Reads what is seen and a balance: that of the row (`at`), or the likeliest one, which it acts by."""

    def at(self, seen: Tensor, balance: Tensor) -> Tensor:
        """Parameters [P, N, K] for balances [P, N, 1]."""
        return self.say(self.body(torch.cat([seen, embedded(balance)], -1)))

    def features(self, seen: Tensor, past: Past | None = None) -> tuple[Tensor, Tensor | None]:
        balance = cast(BalanceNetwork, self.held[BalanceModel.name]).likeliest(seen)
        return self.body(torch.cat([seen, embedded(balance)], -1)), None

    def forward(self, seen: Tensor, past: Past | None = None) -> Tensor:
        return self.say(self.features(seen)[0])


class FamilyPolicy(SquashedMeanPolicy):
    """`squashed-mean-policy` that is shown a balance too, and acts by what the balance model says is best.

    Shapes: observations [P, N, D] and balances [P, N, 1] -> actions [P, N, A], log-probabilities [P, N].

    >>> FamilyPolicy.name, FamilyPolicy().least
    ('family-policy', -5.0)
    """

    def objection(self, method: Method) -> str | None:
        slots = method.slots()
        if not any(isinstance(part, BalanceModel) for part in slots["learners"]):
            return "is shown a balance, and nobody says which: set learners=balance-model."
        if any(not isinstance(term, FamilyClone) for term in slots["actor"]):
            return "learns at a balance of each row's own, and other terms have none: set actor=family-clone."
        critic = slots["critic"]
        if critic is None or not isinstance(getattr(critic.backup, "rule", None), FromValue):
            return "does nothing without a balance, and the critic would ask for it: set critic.backup.rule=from-value."
        if encoder_of(method) is not None:
            return "reads what is seen, and an encoder stands before it: leave that out."
        return super().objection(method)

    def actor(self, method: Method, shape: tuple[int, ...], actions: Space[Any], population: Population) -> Actor:
        part = next(part for part in method.slots()["learners"] if isinstance(part, BalanceModel))
        transforms, seen = transformed((*seen_through(method), *self.observations), shape, population)
        spread, held = self.distribution(actions), {part.name: part.build(seen, actions, population)}
        body, width = self.network.build((seen[0] + 2 * len(PERIODS),), population, "policy")
        head = Linear(population, "policy.head", width, spread.parameters - spread.free, start=self.last)
        free = torch.zeros(population.size, 1, spread.free)
        return FamilyActor(transforms, body, None, head, spread, free, shape, seen, width, held=held)


class Balances(Part, abstract=True):
    """Which balance the family learns at in each row."""

    slot = "balances"

    def __call__(self, read: ReplayReading) -> Tensor:
        """[P, N, 1], without gradient."""
        raise NotImplementedError


class UniformBalances(Balances):
    """Any between the bounds, as likely as another.

    Shapes: [P, N, 1].

    >>> from types import SimpleNamespace as Rows
    >>> read = Rows(normal=lambda name, like: torch.zeros_like(like), batch=Rows(rewards=torch.zeros(1, 2)),
    ...             beside=lambda name: BalanceNetwork(None, None, None, 1.0, 5.0))
    >>> UniformBalances()(read).flatten().tolist()  # a normal's middle is that of the bounds
    [3.0, 3.0]
    """

    def __call__(self, read: ReplayReading) -> Tensor:
        network = cast(BalanceNetwork, read.beside(BalanceModel.name))
        drawn = read.normal("balances", read.batch.rewards[..., None])
        return network.rescaled(torch.special.erf(drawn / math.sqrt(2)))


class LearnedBalances(Balances):
    """Drawn by the balance model.

    Shapes: [P, N, 1].

    >>> from types import SimpleNamespace as Rows
    >>> class Sure(BalanceNetwork):
    ...     def forward(self, seen):
    ...         return torch.tensor([[[0.0, -20.0]]])  # a mean of 0, hardly any deviation
    >>> read = Rows(normal=lambda name, like: torch.ones_like(like), batch=Rows(rewards=torch.zeros(1, 1)),
    ...             beside=lambda name: Sure(None, None, None, 1.0, 5.0), seen=lambda at: None)
    >>> [round(x, 3) for x in LearnedBalances()(read).flatten().tolist()]
    [3.0]
    """

    @torch.no_grad()
    def __call__(self, read: ReplayReading) -> Tensor:
        network = cast(BalanceNetwork, read.beside(BalanceModel.name))
        drawn = read.normal("balances", read.batch.rewards[..., None])
        return network.rescaled(SQUASHED.chosen(network(read.seen("here")), drawn).actions)


class FamilyClone(ActorTerm):
    """-min(exp(b (Q'(s, a) - V(s))), cap) log pi(a|s, E(b)) for a balance b of each row's own.

    Args:
        balances: which. cap: the largest weight. over: one value of those of several critics' slow copies.

    Shapes: [P, N].

    >>> FamilyClone().cap
    100.0
    """

    balances: Balances = UniformBalances()
    cap: Positive = 100.0
    over: Reduction = Min()

    def objection(self, method: Method) -> str | None:
        if not isinstance(method.slots()["policy"], FamilyPolicy):
            return "teaches a family of policies, and there is one: set policy=family-policy."
        if method.slots()["value"] is None:
            return "asks what states are worth, and nobody says it: set value=value-function."
        return None

    def __call__(self, read: ReplayReading) -> Tensor:
        balance, actions = self.balances(read), read.batch.actions
        with torch.no_grad():
            values = self.over(read.values(read.outputs("here", actions, copy=True)), read)
            weight = (balance[..., 0] * (values - read.worth("here"))).exp().clamp(max=self.cap)
        policy = cast(FamilyActor, read.network)
        return -weight * in_units(policy).logp(policy.at(read.seen("here"), balance), actions)


class BalanceModel(ReplayLearner):
    """A squashed normal over balances, which learns the one that is worth most, at a temperature of its own.

        loss = T log pi_b(b|s) - over_k Q_k(s, a'),  a' ~ pi(.|s, E(b));   T downhill on log T (entropy - target)

    Its gradient goes through b alone: neither family nor critics move.

    Args:
        low, high: the bounds.
        entropy: the target, of b in units. start: of T.

    Shapes: observations [P, N, D] -> [P, N, 2].

    >>> from etude.core.population import Member
    >>> model = BalanceModel(low=1.0, high=5.0).build((3,), None, Population([Member(0), Member(1)]))
    >>> model(torch.zeros(2, 5, 3)).shape, model.rescaled(torch.tensor([-1.0, 1.0])).tolist()
    (torch.Size([2, 5, 2]), [1.0, 5.0])
    """

    slot: ClassVar[str] = "learners"
    network: Network = WIDE
    low: NonNegative = 1.0
    high: NonNegative = 5.0
    entropy: float = -0.5
    start: Positive = 1.0
    over: Reduction = Min()
    last: Initializer = FanIn()
    learning: Learning = Learning(Adam(lr=3e-4))

    def check(self) -> None:
        if self.low > self.high:
            raise ConfigError(f"BalanceModel.low must not be above high, got {self.low} and {self.high}.")

    def objection(self, method: Method) -> str | None:
        if not isinstance(method.slots()["policy"], FamilyPolicy):
            return "picks from a family of policies, and there is one: set policy=family-policy."
        return super().objection(method)

    def about_target(self) -> str | None:
        return None

    def build(self, shape: tuple[int, ...], actions: Space[Any], population: Population) -> BalanceNetwork:
        each = population.each(1, "balance")
        body, width = self.network.build(shape, each, "balance")
        head = Linear(each, "balance.head", width, SQUASHED.parameters, start=self.last)
        heat = Numbers({"log": (torch.ones(population.size) * self.start).log()})
        return BalanceNetwork(body, head, heat, self.low, self.high)

    def loss(self, read: ReplayReading) -> Tensor:
        network, family = cast(BalanceNetwork, read.network), cast(FamilyActor, read.beside("policy"))
        seen, rows = read.seen("here"), read.batch.rewards
        choice = SQUASHED.chosen(network(seen), read.normal("balance", rows[..., None]))
        balance, logp = network.rescaled(choice.actions), cast(Tensor, choice.logp)
        noise = read.normal("family", read.batch.actions)
        actions = in_units(family).chosen(family.at(seen, balance), noise).actions
        worth = self.over(read.values(read.outputs("here", actions, frozen=True)), read)
        heat = network.heat.numbers[:, 0]
        read.note("balance", balance.mean((1, 2)))
        own = (heat.detach().exp()[:, None] * logp - worth).mean(1)
        return own - heat * (logp.detach() + self.entropy).mean(1)


famo2o = iql.replace(
    id="famo2o",
    title="Train Once, Get a Family: State-Adaptive Balances for Offline-to-Online Reinforcement Learning",
    paper="arXiv:2310.17966",
    stages=(Phase(end=0.5), Handover(keep=1.0, set=("actor.family-clone.balances=learned-balances",))),
    policy=FamilyPolicy(learning=Learning(Adam(lr=3e-4))),
    actor=(FamilyClone(balances=UniformBalances(), cap=100.0),),
    learners=(BalanceModel(low=1.0, high=5.0),),
    order=("value", ("policy", "balance-model"), "critic"),
    claim=Claim(
        statement="After learning from logs whose quality differs FamO2O earns more online than IQL with one balance.",
        task="pendulum",
        setting=(
            "50 logged episodes of a controller by hand, a third each with torques off by 0.3, 2 and 8 on average; "
            "networks of 64-64, 3,000 updates on logs, then 1,500 own steps with the logs beside them; balances from "
            "0.02 to 0.5, and beta 0.1, for its larger rewards; mean of 5 looks after the handover, each 20 episodes "
            "of likeliest actions"
        ),
        measures=(
            Measure(name="area", smallest=TENTH, bounds=(-2000.0, 0.0)),
            Measure(name="return", role="mechanism", smallest=TENTH, bounds=(-2000.0, 0.0)),
        ),
        equal=("steps",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on="area",
        paper_effect="more than IQL and CQL, significantly, on D4RL's locomotion and ant mazes (table 1)",
    ),
)
