"""What critics minimise beside their error, so that they say little of actions that no log has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from etude.core.critic_slots import CriticPenalty, PenaltyFloor, Weighed, WeighedActions
from etude.core.encoder_slots import encoder_of
from etude.core.fields import Count, NonNegative
from etude.core.log_slots import has_column
from etude.core.replay_slots import ReplayReading

if TYPE_CHECKING:
    from etude.core.method import Method


class DrawnActions(WeighedActions):
    """Uniform actions, the policy's here and the policy's at what followed, so many of each (arXiv:2006.04779, F).

    All are asked about here, and count by exp(Q) over the density that they were drawn from, so that the mean of the
    three is the integral of exp(Q) over all actions, in units.

    Args:
        count: C / 3.

    Shapes: values [P, M, N, C].

    >>> from types import SimpleNamespace as Rows
    >>> from etude.core.replay_slots import Choice
    >>> drawn = Choice(torch.full((1, 1, 1, 1), 0.5), torch.zeros(1, 1, 1))
    >>> read = Rows(several=lambda count, at: drawn, outputs=lambda at, a: 10 * a[:, None], values=lambda x: x[..., 0],
    ...             anything=lambda count: Choice(torch.full((1, 1, 1, 1), -1.0), torch.full((1, 1, 1), -0.5)))
    >>> found = DrawnActions(count=1)(read)
    >>> found.values.flatten().tolist(), found.logp.flatten().tolist(), found.chosen.tolist()
    ([-10.0, 5.0, 5.0], [-0.5, 0.0, 0.0], [False, True, True])
    """

    count: Count = 10

    def objection(self, method: Method) -> str | None:
        policy = method.slots()["policy"]
        if policy is not None and (policy.of_choices or not policy.scores):
            return (
                f"draws numbers by their density, which {type(policy).__name__} does not have: set the penalty's "
                "actions=every-choice, or policy=squashed-policy."
            )
        return None

    def __call__(self, read: ReplayReading) -> Weighed:
        drawn = [read.anything(self.count), read.several(self.count, "here"), read.several(self.count, "next")]
        actions, logp = torch.cat([x.actions for x in drawn], 2), torch.cat([_given(x.logp) for x in drawn], 2)
        chosen = torch.arange(logp.shape[2], device=logp.device) >= self.count
        return Weighed(read.values(read.outputs("here", actions)), logp[:, None], chosen)


def _given(logp: Tensor | None) -> Tensor:
    assert logp is not None
    return logp


class EveryChoice(WeighedActions):
    """All choices that there are, each once.

    Shapes: values [P, M, N, A].

    >>> from types import SimpleNamespace as Rows
    >>> read = Rows(outputs=lambda at: torch.tensor([1.0, 2.0]).view(1, 1, 1, 2, 1), values=lambda x: x.squeeze(-1))
    >>> EveryChoice()(read).values.tolist()
    [[[[1.0, 2.0]]]]
    """

    def objection(self, method: Method) -> str | None:
        policy = method.slots()["policy"]
        if policy is not None and not policy.of_choices:
            return (
                f"is for choices, and {type(policy).__name__} makes numbers: set the penalty's actions=drawn-actions."
            )
        return None

    def __call__(self, read: ReplayReading) -> Weighed:
        values = read.values(read.outputs("here"))
        return Weighed(values, values.new_zeros(()), None)


class RecordedReturns(PenaltyFloor):
    """What the episode went on to earn from the row on (arXiv:2303.05479, section 5); none where nobody knows (NaN).

    Shapes: [P, N].

    >>> from types import SimpleNamespace as Rows
    >>> RecordedReturns()(Rows(batch=Rows(offers={"returns_to_go": torch.tensor([[3.0]])}))).tolist()
    [[3.0]]
    """

    def objection(self, method: Method) -> str | None:
        if not has_column(method, "returns_to_go"):
            return "asks what rows went on to earn, which no row says: set transforms=returns-to-go, and keep logs."
        return None

    def __call__(self, read: ReplayReading) -> Tensor:
        found = read.batch.offers["returns_to_go"]
        return found.masked_fill(found.isnan(), -torch.inf)


class ConservativeQ(CriticPenalty):
    """CQL(H): what a critic says of all actions goes down, what it says of those that were done up (arXiv:2006.04779).

        weight sum_m (log sum_a exp(max(Q_m(s, a), floor)) / p(a) - Q_m(s, a_done))     (eq. 4 and section F)

    for the actions a that `actions` asks about, with the density p that each was drawn from. The floor holds for the
    policy's own actions alone, not for uniform ones (arXiv:2303.05479, eq. 5.1 as in its author's code).

    Args:
        actions: which are asked about. floor: what the policy's count at least. weight: alpha.

    Shapes: outputs [P, M, N, K] -> [P, N]. One action of each kind, of density 1, all worth 0, against one worth 1:

    >>> from types import SimpleNamespace as Rows
    >>> class Nothing(WeighedActions):
    ...     def __call__(self, read): return Weighed(torch.zeros(1, 1, 1, 3), torch.zeros(1, 1, 1, 3), None)
    >>> read = Rows(values=lambda outputs: outputs.squeeze(-1))
    >>> penalty = ConservativeQ(actions=Nothing(), weight=2.0)(read, torch.ones(1, 1, 1, 1))
    >>> round(penalty.item(), 4)  # 2 (log 3 - 1)
    0.1972
    """

    actions: WeighedActions = DrawnActions()
    floor: PenaltyFloor | None = None
    weight: NonNegative = 5.0

    def objection(self, method: Method) -> str | None:
        critic = method.slots()["critic"]
        if critic is not None and critic.of_states:
            return "is about what actions are worth, and the critic says it of states: set critic=q-functions."
        if self.floor is not None and isinstance(self.actions, EveryChoice):
            return "has a floor for what the policy draws, and of all choices it draws none: leave out the floor."
        return None

    def __call__(self, read: ReplayReading, outputs: Tensor) -> Tensor:
        values, logp, chosen = self.actions(read)
        if self.floor is not None:
            assert chosen is not None
            values = torch.where(chosen, torch.maximum(values, self.floor(read)[:, None, :, None]), values)
        gap = (values - logp).logsumexp(-1) - read.values(outputs)
        return self.weight * gap.sum(1)


class AlikeSlopes(CriticPenalty):
    """How alike the critics' gradients in the action are, where one was done (EDAC, arXiv:2110.01548, section 4).

        weight / (M - 1) sum_{i != j} <g_i, g_j>,    g_i = grad_a Q_i(s, a) / |grad_a Q_i(s, a)|

    Args:
        weight: eta.

    Shapes: outputs [P, M, N, K] -> [P, N]. Two critics whose slopes are at right angles, then two with one slope:

    >>> from types import SimpleNamespace as Rows
    >>> slopes = torch.tensor([[[[3.0, 0.0], [0.0, 1.0]], [[0.0, 2.0], [0.0, 5.0]]]])
    >>> AlikeSlopes(weight=0.5)(Rows(slopes=lambda: slopes), None).tolist()
    [[0.0, 1.0]]
    """

    weight: NonNegative = 1.0

    def objection(self, method: Method) -> str | None:
        critic, encoder = method.slots()["critic"], encoder_of(method)
        if critic is not None and (critic.of_states or critic.count < 2):
            return "compares what several critics say of actions: set critic=q-functions with critic.count above 1."
        if method.slots()["policy"] is not None and method.slots()["policy"].of_choices:
            return "goes by slopes in actions, and choices have none: leave it out."
        if encoder is not None:
            return f"goes by slopes in actions, and {encoder.name} stands before the critic: leave one of them out."
        return None

    def __call__(self, read: ReplayReading, outputs: Tensor) -> Tensor:
        slopes = read.slopes()
        units = slopes / (torch.linalg.vector_norm(slopes, dim=-1, keepdim=True) + 1e-10)
        pairs: Tensor = units.sum(1).square().sum(-1) - units.square().sum((1, 3))
        return self.weight * (pairs / (slopes.shape[1] - 1))
