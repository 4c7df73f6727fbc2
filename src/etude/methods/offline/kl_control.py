"""KL-control: soft values of logs that cost what strays from a clone of them, the least of a dropout ensemble.

Changes DQN in four places (arXiv:1907.00456, its Psi-learning):

1. it learns from logs, and nothing is explored;
2. a network beside the critic clones how likely each choice was, the prior p(a|s), and steps first;
3. it earns its rewards less the divergence from the prior, c KL(pi || p) at every step, by soft values,

    y = r + c log p(a|s) + gamma (1 - terminated) min_i c log sum_a' exp(Q'_i(s', a') / c),    c = 0.1

   whose policy is softmax(Q / c), and acts by its likeliest choice;
4. a fifth of the hidden units is dropped, anew in every pass; Q'_i are five passes of the slow copy, of which the least
   counts.

With a uniform prior over A choices that is maximum entropy at temperature c, every step for c log A less; next to c = 0
it is DQN (with dropout). The paper learns Psi = Q / c, from r / c: every term above is one of its own times c, so that
values are in units of rewards and Huber's bend is where DQN has it. There the prior was trained first and stays:
`--set critic.learning.warmup=1000` has the critic wait for it. In its authors' code rewards are not divided, the
divergence is multiplied by c, and soft values have a temperature of 1, which is not the paper's equation; here that is.
Units that are dropped are the same for all rows of a batch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from etude.core.critic_slots import Backup, QHead, Reduction
from etude.core.fields import Count, Positive
from etude.core.replay_slots import ReplayReading
from etude.experience.logged import Logged
from etude.learners.behaviour import BehaviourModel, behaviour, without_behaviour
from etude.methods.value.dqn import dqn
from etude.objectives.reductions import Min
from etude.policies.control.noise import Dropout

if TYPE_CHECKING:
    from etude.core.method import Method


class NearPrior(Backup):
    """y = r + c log p(a|s) + discount c log sum_a' exp(Q'(s', a') / c), p being how likely choices were in the logs.

    Args:
        c: what a nat of divergence from p costs, in units of rewards. passes: of the slow copy, each with noise of its
            own in the weights. reduce: one soft value from those of the passes.

    Shapes: [P, C, N, A] -> [P, N, 1].

    Two choices, 3 to 1 in the logs, of which the first was made for a reward of 1, and both are worth 2 next:

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> from etude.learners.heads import Scalar
    >>> logits = torch.tensor([[[0.75, 0.25]]]).log()
    >>> read = Rows(beside=lambda name: lambda seen: logits, seen=lambda at: None, values=lambda said: said[..., 0],
    ...             passes=lambda count, at: torch.full((1, count, 1, 2, 1), 2.0),
    ...             batch=Rows(actions=torch.zeros(1, 1, 1), rewards=torch.ones(1, 1), discounts=torch.ones(1, 1)))
    >>> round(NearPrior(c=0.1).target(read, Scalar()).item(), 4)  # 1 + 0.1 log 0.75 + 2 + 0.1 log 2
    3.0405
    """

    c: Positive = 0.1
    passes: Count = 5
    reduce: Reduction = Min()

    def objection(self, method: Method) -> str | None:
        critic = method.slots()["critic"]
        if critic is not None and (critic.head.says != "numbers" or critic.head.size > 1):
            return "adds up soft values, of which the critic says several numbers: set critic.head=scalar."
        if self.passes > 1 and critic is not None and critic.noise is None:
            return "takes the least of several passes, which without noise are all the same: set critic.noise=dropout."
        return without_behaviour(method)

    def target(self, read: ReplayReading, head: QHead) -> Tensor:
        batch, values = read.batch, read.values(read.passes(self.passes, "next"))
        assert batch.discounts is not None
        soft = self.reduce((values / self.c).logsumexp(-1) * self.c, read)
        return head.target(batch.rewards + self.c * _cost(read), batch.discounts, soft[..., None])

    def counts(self, largest: Tensor, read: ReplayReading) -> Tensor:
        choices = behaviour(read).shape[-1]
        return largest + self.c * _cost(read).abs().amax(1) + self.c * math.log(choices)


def _cost(read: ReplayReading) -> Tensor:
    """[P, N] log p of what was done."""
    return behaviour(read).gather(-1, read.batch.actions.long())[..., 0]


assert dqn.critic is not None
kl_control = dqn.replace(
    id="kl-control",
    title="Way Off-Policy Batch Deep Reinforcement Learning of Implicit Human Preferences in Dialog",
    paper="arXiv:1907.00456",
    experience=Logged(),
    exploration=None,
    critic=dqn.critic.replace(backup=NearPrior(c=0.1, passes=5), noise=Dropout(rate=0.2)),
    learners=(BehaviourModel(),),
    order=("behaviour-model", "critic"),
)
