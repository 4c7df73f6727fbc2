"""Drawing a policy to actions that are given: which, how much each counts, and how far it is from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from etude.core.critic_slots import Reduction
from etude.core.fields import Count, NonNegative, Positive
from etude.core.log_slots import Baseline, CloneError, CloneWeight, QScale, Towards
from etude.core.replay_slots import ActorTerm, ReplayReading
from etude.objectives.reductions import Min

if TYPE_CHECKING:
    from etude.core.method import Method


class AsRecorded(Towards):
    """The actions that were done.

    Shapes: [P, N, A].

    >>> from types import SimpleNamespace as Rows
    >>> AsRecorded()(Rows(batch=Rows(actions=torch.tensor([[[0.5]]])))).tolist()
    [[[0.5]]]
    """

    def __call__(self, read: ReplayReading) -> Tensor:
        return read.batch.actions


class Ones(CloneWeight):
    """Every row counts the same.

    Shapes: [P, N].

    >>> from types import SimpleNamespace as Rows
    >>> Ones()(Rows(batch=Rows(rewards=torch.tensor([[3.0, -1.0]]))), None).tolist()
    [[1.0, 1.0]]
    """

    def __call__(self, read: ReplayReading, actions: Tensor) -> Tensor:
        return torch.ones_like(read.batch.rewards)


class OfState(Baseline):
    """What the method's `value` says of the state.

    Shapes: [P, N].

    >>> from types import SimpleNamespace as Rows
    >>> OfState()(Rows(worth=lambda at: torch.tensor([[2.0]])), None).tolist()
    [[2.0]]
    """

    def objection(self, method: Method) -> str | None:
        if method.slots()["value"] is None:
            return "asks what states are worth, and nobody says it: set value=value-function."
        return None

    def __call__(self, read: ReplayReading, over: Reduction) -> Tensor:
        return read.worth("here")


class OfPolicy(Baseline):
    """What the critic says of what the policy would do there, once.

    Shapes: [P, N].

    Two choices, worth 1 and 3, of which the policy takes the second three times of four:

    >>> from types import SimpleNamespace as Rows
    >>> read = Rows(policy=lambda: Rows(chances=torch.tensor([[[0.25, 0.75]]])), outputs=lambda at: None,
    ...             values=lambda outputs: torch.tensor([[[1.0, 3.0]]]))
    >>> OfPolicy()(read, lambda values, read: values).tolist()
    [[2.5]]
    """

    def __call__(self, read: ReplayReading, over: Reduction) -> Tensor:
        choice = read.policy()
        if choice.chances is None:
            return over(read.values(read.outputs("here", choice.actions)), read)
        values = over(read.values(read.outputs("here")), read)
        return (choice.chances * values).sum(-1)


class OfSeveral(Baseline):
    """The mean of what the critic says of so many actions that the policy draws there (CRR, arXiv:2006.15134).

    Args:
        count: C.

    Shapes: [P, N].

    >>> from types import SimpleNamespace as Rows
    >>> read = Rows(several=lambda count: Rows(actions=torch.tensor([[[[1.0], [4.0]]]])), values=lambda x: x[..., 0],
    ...             outputs=lambda at, a: a[:, None])
    >>> OfSeveral(count=2)(read, lambda values, read: values[:, 0]).tolist()
    [[2.5]]
    """

    count: Count = 4

    def objection(self, method: Method) -> str | None:
        policy = method.slots()["policy"]
        if policy is not None and policy.of_choices:
            return "draws actions, and of choices all chances are known: set its baseline to of-policy."
        return None

    def __call__(self, read: ReplayReading, over: Reduction) -> Tensor:
        return over(read.values(read.outputs("here", read.several(self.count).actions)), read).mean(-1)


class ExpAdvantage(CloneWeight):
    """min(exp(beta (Q(s, a) - V(s))), cap): actions count by how much better they are than what is usual there.

    Q is what the critics say, of their slow copies where `slow`, as one value by `over` (arXiv:2110.06169, eq. 7).

    Args:
        beta: 1 / the temperature.
        cap: the largest weight.
        baseline: V.

    Shapes: [P, N].

    >>> from types import SimpleNamespace as Rows
    >>> read = Rows(outputs=lambda at, a, copy: torch.tensor([[[[3.0]], [[2.0]]]]), values=lambda x: x.squeeze(-1),
    ...             worth=lambda at: torch.tensor([[1.0]]))
    >>> [round(ExpAdvantage(beta=b)(read, None).item(), 4) for b in (0.0, 1.0, 100.0)]
    [1.0, 2.7183, 100.0]
    """

    beta: NonNegative = 3.0
    cap: Positive = 100.0
    over: Reduction = Min()
    baseline: Baseline = OfState()
    slow: bool = True

    def objection(self, method: Method) -> str | None:
        return _without_critic(method)

    @torch.no_grad()
    def __call__(self, read: ReplayReading, actions: Tensor) -> Tensor:
        values = self.over(read.values(read.outputs("here", actions, copy=self.slow)), read)
        advantages = values - self.baseline(read, self.over)
        return (self.beta * advantages).exp().clamp(max=self.cap)


def _without_critic(method: Method) -> str | None:
    if method.slots()["critic"] is None:
        return "asks what actions are worth, and there is no critic: set critic=q-functions."
    return None


class SoftmaxAdvantage(CloneWeight):
    """N softmax_n((Q(s_n, a_n) - V(s_n)) / temperature) over the N rows of a batch: weights of mean 1.

    As the author's code of AWAC has it (arXiv:2006.09359); its equation divides by no sum.

    Args:
        over: one value from those of several critics. baseline: V.

    Shapes: [P, N].

    >>> from types import SimpleNamespace as Rows
    >>> read = Rows(outputs=lambda at, a: torch.tensor([[[[3.0], [2.0]]]]), values=lambda x: x.squeeze(-1),
    ...             worth=lambda at: torch.tensor([[1.0, 1.0]]))
    >>> [round(x, 4) for x in SoftmaxAdvantage(baseline=OfState())(read, None).flatten().tolist()]
    [1.4621, 0.5379]
    """

    temperature: Positive = 1.0
    over: Reduction = Min()
    baseline: Baseline = OfPolicy()

    def objection(self, method: Method) -> str | None:
        return _without_critic(method)

    @torch.no_grad()
    def __call__(self, read: ReplayReading, actions: Tensor) -> Tensor:
        values = self.over(read.values(read.outputs("here", actions)), read)
        advantages = values - self.baseline(read, self.over)
        return advantages.shape[1] * (advantages / self.temperature).softmax(1)


class Gate(CloneWeight):
    """1 for actions that are worth more than what is usual there, 0 for others (CRR, arXiv:2006.15134).

    Args:
        over: one value from those of several critics. baseline: V.

    Shapes: [P, N].

    >>> from types import SimpleNamespace as Rows
    >>> read = Rows(outputs=lambda at, a: torch.tensor([[[[3.0], [1.0]]]]), values=lambda x: x.squeeze(-1),
    ...             worth=lambda at: torch.tensor([[1.0, 1.0]]))
    >>> Gate(baseline=OfState())(read, None).tolist()
    [[1.0, 0.0]]
    """

    over: Reduction = Min()
    baseline: Baseline = OfSeveral()

    def objection(self, method: Method) -> str | None:
        return _without_critic(method)

    @torch.no_grad()
    def __call__(self, read: ReplayReading, actions: Tensor) -> Tensor:
        values = self.over(read.values(read.outputs("here", actions)), read)
        return (values > self.baseline(read, self.over)).to(values.dtype)


class BetweenNumbers(CloneError, abstract=True):
    """How far what the policy does is from actions, by chance if that is how it acts, in units."""

    def objection(self, method: Method) -> str | None:
        policy = method.slots()["policy"]
        if policy is not None and policy.of_choices:
            return f"is between numbers, and {type(policy).__name__} makes choices: set its error to likelihood."
        return None


class SquaredDistance(BetweenNumbers):
    """mean_k (pi(s)_k - a_k)^2, in units, of what the policy does, by chance if that is how it acts.

    Shapes: actions [P, N, A] -> [P, N].

    >>> from types import SimpleNamespace as Rows
    >>> read = Rows(policy=lambda: Rows(actions=torch.tensor([[[1.0, 0.0]]]), chances=None))
    >>> SquaredDistance()(read, torch.tensor([[[0.0, 2.0]]])).tolist()
    [[2.5]]
    """

    def __call__(self, read: ReplayReading, actions: Tensor) -> Tensor:
        return (read.policy().actions - actions).square().mean(-1)


class SquaredNorm(BetweenNumbers):
    """sum_k (pi(s)_k - a_k)^2: a tenth action counts as much as the first.

    Shapes: actions [P, N, A] -> [P, N].

    >>> from types import SimpleNamespace as Rows
    >>> read = Rows(policy=lambda: Rows(actions=torch.tensor([[[1.0, 0.0]]]), chances=None))
    >>> SquaredNorm()(read, torch.tensor([[[0.0, 2.0]]])).tolist()
    [[5.0]]
    """

    def __call__(self, read: ReplayReading, actions: Tensor) -> Tensor:
        return (read.policy().actions - actions).square().sum(-1)


class Likelihood(CloneError):
    """-log pi(a|s), in nats, of densities in units.

    Shapes: actions [P, N, A] -> [P, N].

    >>> from types import SimpleNamespace as Rows
    >>> Likelihood()(Rows(logp=lambda actions: torch.tensor([[-0.5]])), None).tolist()
    [[0.5]]
    """

    of_chance: ClassVar[bool] = True

    def __call__(self, read: ReplayReading, actions: Tensor) -> Tensor:
        return -read.logp(actions)


class Clone(ActorTerm):
    """scale weight(s, a) error(pi(s), a) for the actions a that `towards` names: behaviour cloning, weighed or not.

    Args:
        towards: which actions. weight: how much each counts. error: how far the policy is from it.
        scale: of the whole term, beside others.

    Shapes: [P, N].

    >>> from types import SimpleNamespace as Rows
    >>> read = Rows(batch=Rows(actions=torch.tensor([[[0.5]]]), rewards=torch.zeros(1, 1)),
    ...             policy=lambda: Rows(actions=torch.tensor([[[1.0]]])))
    >>> Clone()(read).tolist()
    [[0.25]]
    """

    towards: Towards = AsRecorded()
    weight: CloneWeight = Ones()
    error: CloneError = SquaredDistance()
    scale: NonNegative = 1.0

    def __call__(self, read: ReplayReading) -> Tensor:
        actions = self.towards(read)
        return self.scale * (self.weight(read, actions) * self.error(read, actions))


class MeanAbs(QScale):
    """alpha / mean |Q| over the batch of each member: values of any size weigh alike (arXiv:2106.06860, eq. 5).

    Shapes: [P, N] -> [P, 1].

    >>> MeanAbs(alpha=2.5)(torch.tensor([[4.0, -6.0]])).tolist()
    [[0.5]]
    """

    alpha: Positive = 2.5

    @torch.no_grad()
    def __call__(self, values: Tensor) -> Tensor:
        return self.alpha / values.abs().mean(1, keepdim=True)
