"""IPL: learn from which of two segments is better, without a model of rewards (arXiv:2305.15363).

Changes IQL in four places:

1. nobody is paid: in the logs are pairs of segments of 100 steps, and which of the two is preferred. Each batch has the
   same 64 steps of both segments of 8 pairs, and 256 other rows; both kinds count half, to everybody who learns;
2. what is preferred is said by the rewards that values imply (the inverse of Bellman's operator, section 4),

    r_k(s, a) = Q_k(s, a) - gamma (1 - terminated) V(s')
    loss_Q = sum_k (-log P_k(what is preferred) + c mean r_k^2),    c = 1/2
    P_k(second) = sigmoid(sum_t r_k(second_t) - sum_t r_k(first_t))

   in which V is fixed. The square makes the values unique, and implied rewards small;
3. targets are cut where no such reward could lead, gamma |V| <= gamma / (c (1 - gamma)) = 198;
4. the policy's rate stays as it is.

For another gamma or c set `critic.backup.low` and `high` by that formula. Rewards that preferences are made of by a
script are `scripted-preferences`; nobody sees them afterwards (`forget-rewards`). With
`--set transforms=scripted-preferences,rewards-from-preferences` IQL learns from the rewards of a model instead, the
baseline. The paper asks online too, has a form on AWAC, in which V(s') is Q of what the policy does there, and a
baseline whose rewards a transformer learns: none of these is here.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor
from torch.nn import functional

from etude.core.claims import Claim, Measure
from etude.core.errors import ConfigError
from etude.core.fields import Count, Fraction, Positive
from etude.core.learners import Learning, Target
from etude.core.log_slots import CloneWeight
from etude.core.replay_slots import ReplayReading
from etude.core.sampling_slots import Drawing, Horizon, Sampling
from etude.core.transitions import Transitions
from etude.experience.preferences import ScriptedPreferences, uncompared
from etude.experience.sampling import WORDS, OneStep
from etude.experience.transforms import ForgetRewards
from etude.learners.backups import CutBootstrap, FromValue
from etude.learners.q import QFunctions
from etude.learners.value import Expectile, ValueFunction
from etude.methods.offline.bc import TENTH
from etude.methods.offline.iql import iql
from etude.objectives.clone import Clone, ExpAdvantage, Likelihood
from etude.objectives.reductions import Min
from etude.optimizers.adam import Adam
from etude.policies.control.replay import SquashedMeanPolicy

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.experience.logged import LoggedStore


class SegmentPairs(Sampling):
    """Pairs of segments of which one is preferred, and beside them rows that are drawn uniformly.

    `offers`: "preferred" [P, C] 1 where it is the second of the pair; "signs" [P, C, 2, L] of the steps, -1 of the
    first and 1 of the second; "importance" [P, N], how much each row counts so that the segments count `share` and the
    other rows the rest.

    Args:
        pairs: C. length: L, of the steps that were compared, the same of both from a random one on.
        batch: other rows. share: that the segments count.

    Shapes: rows [P, N], the segments first: N = 2 C L + batch. Raises: ConfigError where shorter ones were compared.

    >>> SegmentPairs(pairs=8, length=64, batch=256).rows
    1280
    """

    pairs: Count = 8
    length: Count = 64
    batch: Count = 256
    share: Fraction = 0.5
    horizon: Horizon = OneStep()

    @property
    def rows(self) -> int:
        """N."""
        return 2 * self.pairs * self.length + self.batch

    def objection(self, method: Method) -> str | None:
        if self.horizon.length > 1 or self.horizon.windows:
            return "draws steps one by one: set sampling.horizon=one-step."
        return uncompared(list(method.slots()["transforms"]))

    def draw(self, store: LoggedStore, draw: Drawing) -> Transitions:
        found = store.compared
        if found is None or found.length < self.length:
            have = "none are left" if found is None else f"those that were compared have {found.length}"
            raise ConfigError(f"SegmentPairs draws segments of {self.length} steps, and {have}: set sampling.length.")
        which = draw("pairs", partial(_words, self.pairs)) % len(found.first)
        offset = draw("offsets", partial(_words, self.pairs)) % (found.length - self.length + 1)
        begun = torch.stack([torch.from_numpy(x)[which] for x in (found.first, found.second)], -1) + offset[..., None]
        steps = begun[..., None] + torch.arange(self.length)
        others = draw("rows", partial(_words, self.batch)) % store.size
        index = torch.cat([steps.flatten(1), others], 1).to(store.device)
        batch, preferred = self.horizon.read(store, index), torch.from_numpy(found.preferred)[which]
        return batch.replace(offers=store.offers(index) | self._counted(batch.rewards, preferred.to(store.device)))

    def _counted(self, like: Tensor, preferred: Tensor) -> dict[str, Tensor]:
        rows, segments = self.rows, self.rows - self.batch
        importance = like.new_ones(len(like), rows) * ((1 - self.share) * rows / self.batch)
        importance[:, :segments] = like.new_ones(len(like), 1) * (self.share * rows / segments)
        signs = like.new_tensor([-1.0, 1.0])[:, None].expand(len(like), self.pairs, 2, self.length)
        return {"preferred": preferred.to(like.dtype), "signs": signs, "importance": importance}


def _words(count: int, generator: Generator, times: int) -> Tensor:
    return torch.randint(WORDS, (times, count), generator=generator)


class InverseQFunctions(QFunctions):
    """Q-functions whose implied rewards r = Q - target say which segment is preferred (arXiv:2305.15363, eq. 5).

        loss = sum_m (-log P_m(what is preferred) + weight mean of error(Q_m, target))

    `critic_agreement` is the share of pairs that the first of them says rightly.

    Args:
        weight: c, of implied rewards.

    Shapes: values [P, M, N].

    >>> InverseQFunctions().weight
    0.5
    """

    weight: Positive = 0.5

    def objection(self, method: Method) -> str | None:
        sampling = method.slots()["sampling"]
        if sampling is not None and not isinstance(sampling, SegmentPairs):
            return "learns from pairs of segments, and rows come one by one: set sampling=segment-pairs."
        if self.scale is not None or self.penalties or self.head.size > 1:
            return "has rewards for its values, one number each: leave out critic.scale and critic.penalties."
        return super().objection(method)

    def loss(self, read: ReplayReading) -> Tensor:
        with torch.no_grad():
            target = self.backup.target(read, self.head)
        outputs, offers = read.outputs("here", read.batch.actions), read.batch.offers
        logits = compared(read.values(outputs - target[:, None]), offers["signs"])
        preferred = offers["preferred"][:, None].expand_as(logits)
        unlikely = functional.binary_cross_entropy_with_logits(logits, preferred, reduction="none").mean(2).sum(1)
        read.note("agreement", ((logits[:, 0] > 0) == (preferred[:, 0] > 0.5)).to(logits.dtype).mean(1))
        each = self.error(outputs, target[:, None]).sum(-1).sum(1)
        return unlikely + (self.weight * (offers["importance"] * each)).mean(1)


def compared(implied: Tensor, signs: Tensor) -> Tensor:
    """How much more the second segment was paid, [P, M, C], for rewards [P, M, N] whose first are those [P, C, 2, L].

    >>> compared(torch.tensor([[[1.0, 2.0, 5.0, 1.0, 9.0]]]), torch.tensor([[[[-1.0, -1.0], [1.0, 1.0]]]])).tolist()
    [[[3.0]]]
    """
    steps = implied[:, :, : signs[0].numel()].unflatten(2, signs.shape[1:])
    found: Tensor = (signs[:, None] * steps).sum((-1, -2))
    return found


class CountedValue(ValueFunction):
    """V(s) whose rows count as much as what drew them says.

    Shapes: values and errors [P, N].

    >>> CountedValue().network.hidden
    (256, 256)
    """

    def objection(self, method: Method) -> str | None:
        return _not_counted(method) or super().objection(method)

    def loss(self, read: ReplayReading) -> Tensor:
        return (read.batch.offers["importance"] * self.errors(read)).mean(1)


class Counted(CloneWeight):
    """Another weight, times how much the row counts by what drew it.

    Args:
        of: that weight.

    Shapes: [P, N].

    >>> from types import SimpleNamespace as Rows
    >>> batch = Rows(offers={"importance": torch.tensor([[0.5, 1.5]])}, rewards=torch.zeros(1, 2))
    >>> from etude.objectives.clone import Ones
    >>> Counted(of=Ones())(Rows(batch=batch), None).tolist()
    [[0.5, 1.5]]
    """

    of: CloneWeight = ExpAdvantage()

    def objection(self, method: Method) -> str | None:
        return _not_counted(method)

    def __call__(self, read: ReplayReading, actions: Tensor) -> Tensor:
        return read.batch.offers["importance"] * self.of(read, actions)


def _not_counted(method: Method) -> str | None:
    sampling = method.slots()["sampling"]
    if sampling is None or isinstance(sampling, SegmentPairs):
        return None
    return "asks how much each row counts, which nobody says: set sampling=segment-pairs."


ipl = iql.replace(
    id="ipl",
    title="Inverse Preference Learning: Preference-based RL without a Reward Function",
    paper="arXiv:2305.15363",
    transforms=(ScriptedPreferences(pairs=500, length=100), ForgetRewards()),
    sampling=SegmentPairs(pairs=8, length=64, batch=256),
    policy=SquashedMeanPolicy(learning=Learning(Adam(lr=3e-4))),
    value=CountedValue(of=Min(), error=Expectile(tau=0.7), learning=Learning(Adam(lr=3e-4))),
    critic=InverseQFunctions(
        count=2,
        weight=0.5,
        backup=CutBootstrap(FromValue(), low=-198.0, high=198.0),
        learning=Learning(Adam(lr=3e-4), target=Target(rate=0.005)),
    ),
    actor=(Clone(weight=Counted(ExpAdvantage(beta=3.0, cap=100.0)), error=Likelihood()),),
    claim=Claim(
        statement="From which of two segments is better IPL earns more than cloning, and about what IQL earns from "
        "the rewards of a model that learned from the same preferences.",
        task="pendulum",
        setting=(
            "50 logged episodes of a controller by hand, a third each with torques off by 0.3, 2 and 8 on average; 200 "
            "pairs of segments of 25 steps, compared by what they were paid; networks of 64-64, those of the "
            "baseline's three models of rewards too, 5,000 updates, 20 episodes of likeliest actions"
        ),
        measures=(
            Measure(name="return", smallest=TENTH, bounds=(-2000.0, 0.0)),
            Measure(name="return beside a model of rewards", smallest=TENTH, margin=-TENTH, bounds=(-2000.0, 0.0)),
        ),
        equal=("updates",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on="return",
        paper_effect="as much as IQL with a learned reward, of more parameters, on D4RL and robot tasks (tables 1, 2)",
    ),
)
