"""What critics learn of several actions: the best of them, as slow copies say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from etude.core.critic_slots import Backup, QHead, Reduction
from etude.core.fields import Count, Probability
from etude.core.replay_slots import ReplayReading

if TYPE_CHECKING:
    from etude.core.method import Method


class MostlyMin(Reduction):
    """share min + (1 - share) max of several critics (arXiv:1812.02900, eq. 13).

    Shapes: [P, M, ...] -> [P, ...].

    >>> import torch
    >>> MostlyMin(share=0.75)(torch.tensor([[[1.0], [5.0]]]), None).tolist()
    [[2.0]]
    """

    share: Probability = 0.75

    def __call__(self, values: Tensor, read: ReplayReading) -> Tensor:
        least, most = values.amin(1), values.amax(1)
        return self.share * least + (1 - self.share) * most


class BestOf(Backup, abstract=True):
    """y = r + discount max_i Q'(s', a_i), of `count` actions.

    Args:
        count: how many. reduce: one value from those of several critics.
    """

    count: Count = 10
    reduce: Reduction = MostlyMin()

    def actions(self, read: ReplayReading) -> Tensor:
        """[P, N, C, A] at what the rows led to."""
        raise NotImplementedError

    def target(self, read: ReplayReading, head: QHead) -> Tensor:
        batch = read.batch
        assert batch.discounts is not None
        said = read.outputs("next", self.actions(read), copy=True)
        return head.target(batch.rewards, batch.discounts, self.reduce(said, read).amax(2))


class BestDrawn(BestOf):
    """y = r + discount max_i Q', of so many actions that the policy draws, or its slow copy (arXiv:1906.00949).

    Args:
        count: how many. reduce: one value from those of several critics.

    Shapes: [P, M, N, C, K] -> [P, N, K].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> from etude.learners.heads import Scalar
    >>> drawn = torch.tensor([0.1, 0.9, -0.2]).view(1, 1, 3, 1)
    >>> read = Rows(several=lambda count, at, copy: Rows(actions=drawn), outputs=lambda at, a, copy: a[:, None],
    ...             batch=Rows(rewards=torch.ones(1, 1), discounts=torch.ones(1, 1)))
    >>> BestDrawn(count=3).target(read, Scalar()).tolist()
    [[[1.899999976158142]]]
    """

    def objection(self, method: Method) -> str | None:
        policy = method.slots()["policy"]
        if policy is not None and (policy.of_choices or not policy.scores):
            return f"draws numbers by chance, and {type(policy).__name__} does not: set policy=squashed-policy."
        return None

    def actions(self, read: ReplayReading) -> Tensor:
        return read.several(self.count, "next", copy=True).actions
