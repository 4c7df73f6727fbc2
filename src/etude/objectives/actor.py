"""What a policy that learns from stored rows minimises: a sum of terms."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from etude.core.critic_slots import Reduction, entropy_objection
from etude.core.fields import NonNegative
from etude.core.log_slots import QScale
from etude.core.replay_slots import ActorTerm, ReplayReading
from etude.objectives.reductions import Min

if TYPE_CHECKING:
    from etude.core.method import Method


class ByError(ActorTerm, abstract=True):
    """A term that the policy climbs where states turn out better than the critic said, and goes down where worse.

        loss = -error f,   error = r + discount V(s') - V(s) without gradient

    Optimizers that keep traces add up the gradients of f (`along`) instead.
    """

    traced: ClassVar[bool] = True

    def objection(self, method: Method) -> str | None:
        slots = method.slots()
        critic, policy, sampling = slots["critic"], slots["policy"], slots["sampling"]
        if critic is not None and (not critic.of_states or critic.count > 1 or critic.head.size > 1):
            return (
                "goes by the error of what one state is worth: set critic=v-functions, with one network and "
                "critic.head=scalar."
            )
        if policy is not None and not policy.scores:
            return (
                f"asks how likely actions were, which {type(policy).__name__} cannot say: set policy=stochastic-policy."
            )
        if sampling is not None and not sampling.newest:
            return (
                "is right for what the policy itself just did, and older rows are another policy's: set "
                "experience=latest and sampling=newest."
            )
        return None

    def __call__(self, read: ReplayReading) -> Tensor:
        return -read.estimate().error * self.along(read)


class LikelihoodRatio(ByError):
    """f = log pi(a|s) of the action that was done: its gradient times the error is the policy's (Sutton et al. 2000).

    Shapes: [P, N].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> said = Rows(error=torch.tensor([[2.0]]))
    >>> read = Rows(batch=Rows(actions=None), logp=lambda a: torch.tensor([[-0.5]]), estimate=lambda: said)
    >>> LikelihoodRatio()(read).tolist()
    [[1.0]]
    """

    def along(self, read: ReplayReading) -> Tensor:
        return read.logp(read.batch.actions)


class SignedEntropy(ByError):
    """f = weight sign(error) H(pi(.|s)): times the error the entropy counts weight |error| (arXiv:2410.14606).

    Shapes: [P, N].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> read = Rows(entropy=lambda: torch.tensor([[3.0]]), estimate=lambda: Rows(error=torch.tensor([[-2.0]])))
    >>> SignedEntropy(weight=0.5)(read).tolist()
    [[-3.0]]
    """

    weight: NonNegative = 0.01

    def along(self, read: ReplayReading) -> Tensor:
        return self.weight * read.estimate().error.sign() * read.entropy()


class MaximizeQ(ActorTerm):
    """-Q(s, pi(s)), along the critic's gradient in the actions (arXiv:1509.02971, eq. 6).

    Args:
        over: one value from those of several critics.
        scale: what values are multiplied by, beside other terms.

    Shapes: [P, N].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> said, act = torch.tensor([[[[1.0]], [[3.0]]]]), Rows(actions=None, chances=None)
    >>> read = Rows(policy=lambda: act, outputs=lambda *a, **k: said, values=lambda outputs: outputs.squeeze(-1))
    >>> MaximizeQ(over=Min())(read).tolist()
    [[-1.0]]
    """

    over: Reduction = Min()
    scale: QScale | None = None

    def objection(self, method: Method) -> str | None:
        critic = method.slots()["critic"]
        if critic is None:
            return "climbs what actions are worth, and there is no critic: set critic=q-functions."
        if critic.of_states:
            return "climbs what actions are worth, and the critic says it of states: set critic=q-functions."
        return None

    def __call__(self, read: ReplayReading) -> Tensor:
        choice = read.policy()
        actions = choice.actions if choice.chances is None else None
        said = read.outputs("here", actions, frozen=True, first=self.over.first)
        values = self.over(read.values(said), read)
        values = values if choice.chances is None else (choice.chances * values).sum(-1)
        return -values if self.scale is None else -self.scale(values) * values


class PreActivationPenalty(ActorTerm):
    """weight mean_k u_k^2 of what the network says before tanh or softmax, so that these do not saturate.

    Shapes: parameters [P, N, K] -> [P, N]. The example is an action of two numbers, in arXiv:2501.16142's weight:

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> round(PreActivationPenalty()(Rows(parameters=lambda: torch.tensor([[[100.0, 300.0]]]))).item(), 6)
    0.5
    """

    weight: NonNegative = 1e-5

    def __call__(self, read: ReplayReading) -> Tensor:
        return self.weight * read.parameters().square().mean(-1)


class Entropy(ActorTerm):
    """temperature log pi(a|s): the policy's entropy counts, at the temperature that a learner offers.

    Shapes: [P, N].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> read = Rows(policy=lambda: Rows(logp=torch.tensor([[-2.0]])), offered=lambda name: torch.tensor([0.5]))
    >>> Entropy()(read).tolist()
    [[-1.0]]
    """

    def objection(self, method: Method) -> str | None:
        return entropy_objection(method)

    def __call__(self, read: ReplayReading) -> Tensor:
        logp = read.policy().logp
        assert logp is not None
        return read.offered("temperature")[:, None] * logp
