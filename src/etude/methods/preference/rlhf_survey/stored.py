"""Rewards that people's answers teach, for what is stored: all of it is paid what the models say now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from etude.core.critic_slots import QHead
from etude.core.fields import Count
from etude.core.learners import Learning
from etude.core.part import Part
from etude.core.replay_slots import ReplayLearner, ReplayReading
from etude.experience.sampling import Window
from etude.learners.backups import Bootstrap
from etude.methods.preference.rlhf_survey.models import PreferenceModels, Segments
from etude.methods.preference.rlhf_survey.rollouts import whole
from etude.optimizers.adam import Adam

if TYPE_CHECKING:
    from etude.core.method import Method


class ReplayPreferences(PreferenceModels, ReplayLearner):
    """Models of rewards that learn from answers about segments of what was stored last.

    Each time that they learn is a session, which asks first.

    Args:
        recent: steps of a member, the newest, of which segments are.

    Shapes: observations [P, N, D], actions [P, N, A] in units.

    >>> ReplayPreferences().count, ReplayPreferences().learning.every
    (3, 250)
    """

    recent: Count = 4000
    learning: Learning = Learning(Adam(lr=1e-3), every=250, epochs=25)

    def objection(self, method: Method) -> str | None:
        critic = method.slots()["critic"]
        if critic is not None and not isinstance(getattr(critic, "backup", None), RelabelledBootstrap):
            return "rewards what is stored, and the critic asks nobody: set critic.backup=relabelled-bootstrap."
        return super().objection(method)

    def loss(self, read: ReplayReading) -> Tensor:
        store = read.stored.own
        if self.wanted and store.pushed > self.state.get("seen", 0):
            self.state["seen"] = store.pushed
            self.ask(self._segments(store, read), read.network)
            with torch.no_grad():
                read.note("agreement", self.agreement(read.network))
        return self.minimised(read.network)

    @torch.no_grad()
    def _segments(self, store: Any, read: ReplayReading) -> Segments:
        """`drawn` of what was stored last."""
        there = min(store.size, self.recent)
        age = (self.numbers("segments", 4 * self.drawn).double() * there).long() + 1
        index = ((store.cursor - age) % store.capacity).to(store.device)
        rows = Window(length=self.length).read(store, index).to(read.batch.rewards.device)
        assert rows.weights is not None
        seen = read.look(rows.observations.flatten(1, 2)).unflatten(1, rows.rewards.shape[1:])
        segments = Segments(seen, rows.actions, rows.rewards * rows.weights, rows.weights)
        return whole(segments, rows.terminated, self.drawn)


class Payment(Part, abstract=True):
    """What rows that were stored are paid, whatever the environment did."""

    slot = "payment"

    def objection(self, method: Method) -> str | None:
        sampling = method.slots()["sampling"]
        if sampling is not None and (sampling.horizon.length > 1 or sampling.horizon.windows):
            return "pays steps one by one, and they are summed before: set sampling.horizon=one-step."
        return None

    def __call__(self, read: ReplayReading) -> Tensor:
        """[P, N], without gradient."""
        raise NotImplementedError

    def most(self, largest: Tensor) -> Tensor:
        """The most that a step is paid, [P]."""
        raise NotImplementedError


class ByModels(Payment):
    """The mean of what models of rewards say, as they are now.

    Shapes: [P, N], in [-1, 1].

    >>> from types import SimpleNamespace as Rows
    >>> models = lambda seen, actions: torch.tensor([[[0.5, 1.0], [0.0, -1.0]]])
    >>> batch = Rows(actions=torch.zeros(1, 2, 1))
    >>> ByModels()(Rows(beside=lambda name: models, seen=lambda at: torch.zeros(1, 2, 3), batch=batch)).tolist()
    [[0.25, 0.0]]
    """

    def objection(self, method: Method) -> str | None:
        if not any(isinstance(part, ReplayPreferences) for part in method.slots()["learners"]):
            return "pays what models of rewards say, and there are none: set learners=replay-preferences."
        return super().objection(method)

    def __call__(self, read: ReplayReading) -> Tensor:
        said: Tensor = read.beside(ReplayPreferences.name)(read.seen("here"), read.batch.actions)
        return said.mean(1)

    def most(self, largest: Tensor) -> Tensor:
        return torch.ones_like(largest)


class StateEntropy(Payment):
    """How new a state is: log(1 + the distance to the k-th nearest of `among` that are stored) (arXiv:2106.05091, 4.1).

    The mean of it estimates the entropy of where the policy goes, up to constants. The source divides by a running
    deviation.

    Shapes: [P, N].

    >>> from types import SimpleNamespace as Rows
    >>> store = Rows(size=3, read=lambda index: Rows(observations=torch.tensor([[[0.0], [1.0], [5.0]]])))
    >>> read = Rows(stored=store, seen=lambda at: torch.tensor([[[0.0]]]), look=lambda x: x,
    ...             batch=Rows(rewards=torch.zeros(1, 1)))
    >>> round(StateEntropy(k=2)(read).item(), 4)  # log 2: the nearest is itself
    0.6931
    """

    k: Count = 5
    among: Count = 512

    def __call__(self, read: ReplayReading) -> Tensor:
        store, seen = read.stored, read.seen("here")
        index = torch.linspace(0, store.size - 1, min(self.among, store.size)).long().expand(len(seen), -1)
        others = read.look(store.read(index).observations)
        apart = (seen[:, :, None] - others[:, None]).square().sum(-1).sqrt()
        return apart.kthvalue(min(self.k, apart.shape[-1]), -1).values.log1p()

    def most(self, largest: Tensor) -> Tensor:
        return torch.full_like(largest, torch.inf)


class RelabelledBootstrap(Bootstrap):
    """As `bootstrap`, of rewards that `payment` says anew each time that a row is learned from.

        y = payment(s, a) + discount (Q' - temperature log pi)

    So whenever the models have learned, all that is stored is paid by them; the store keeps what the environment paid,
    which only who answers questions sees.

    Args:
        payment: what rows are paid.

    Shapes: [P, M, N, K] -> [P, N, K].

    >>> from types import SimpleNamespace as Rows
    >>> from etude.core.critic_slots import Following, Rule
    >>> from etude.learners.heads import Scalar
    >>> class Said(Rule):
    ...     def __call__(self, read): return Following(torch.tensor([[[[3.0]]]]))
    >>> class Half(Payment):
    ...     def __call__(self, read): return torch.tensor([[0.5]])
    >>> read = Rows(batch=Rows(rewards=torch.tensor([[-9.0]]), discounts=torch.tensor([[0.5]])))
    >>> RelabelledBootstrap(Said(), payment=Half()).target(read, Scalar()).item()
    2.0
    """

    payment: Payment = ByModels()

    def target(self, read: ReplayReading, head: QHead) -> Tensor:
        assert read.batch.discounts is not None
        return head.target(self.payment(read), read.batch.discounts, self.following(read))

    def counts(self, largest: Tensor, read: ReplayReading) -> Tensor:
        return super().counts(self.payment.most(largest), read)
