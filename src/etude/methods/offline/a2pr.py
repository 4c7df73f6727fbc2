"""A2PR: a policy is drawn to the better of two actions, the recorded one and a likely one, if that is good at all.

Changes TD3+BC in four places (arXiv:2405.19909):

1. V(s) learns the smaller of what slow copies and critics say of what the policy would do next,

    loss_V = (V(s) - y)^2,    y = r + gamma (1 - terminated) min(min_k Q'_k(s', a'), min_k Q_k(s', a'))

2. an autoencoder learns the recorded actions that are better than that, Q_1(s, a) > V(s), and no others;
3. what it makes of the policy's own action, a_v, is the guide where Q_1(s, a_v) >= Q_1(s, a), else the recorded a is;
4. the policy is drawn to the guide where that is better than V(s):

    loss = -lambda Q_1(s, mu(s)) + 1[Q_1(s, g) > V(s)] mean_k (mu(s)_k - g_k)^2,    lambda = 2.5 / mean |Q_1(s, mu(s))|

As in its authors' code the guide has a gradient, through the autoencoder (`detach=true` takes it away). There the two
indicators of a_v and a are added as truth values, so that their sum is 1 at most: it is the indicator of the guide. V
has stepped here when the policy asks; there it has not. Alpha is 40 for HalfCheetah; the term's `scale`, 1, is 0.4 for
Hopper's medium data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from etude.core.claims import Claim, Measure
from etude.core.critic_slots import Error, TargetNoise
from etude.core.log_slots import Towards
from etude.core.replay_slots import ReplayReading
from etude.learners.backups import ClippedNoise
from etude.learners.heads import Squared
from etude.learners.vae import ActionVAE, Autoencoded
from etude.learners.value import ValueFunction
from etude.methods.offline.bc import TENTH
from etude.methods.offline.td3_bc import td3_bc
from etude.objectives.actor import MaximizeQ
from etude.objectives.clone import Clone, Gate, MeanAbs, OfState
from etude.objectives.reductions import First

if TYPE_CHECKING:
    from etude.core.method import Method


def first_value(read: ReplayReading, actions: Tensor) -> Tensor:
    """[P, N] what the first critic says of actions [P, N, A], without gradient."""
    with torch.no_grad():
        return read.values(read.outputs("here", actions, frozen=True, first=True))[:, 0]


class AugmentedGuide(Towards):
    """What an autoencoder makes of the policy's action, or the recorded one: which the first critic says is better.

    Args:
        detach: whether the guide is a constant; else the policy's gradient also goes through the autoencoder.

    Shapes: [P, N, A] in units.

    An autoencoder that says 0.5 whatever it is shown, beside recorded 0.9 and -0.9, where an action is its own worth:

    >>> from types import SimpleNamespace as Rows
    >>> class Half(torch.nn.Module):
    ...     latents = 1
    ...     def forward(self, seen, actions, noise): return torch.full_like(actions, 0.5)
    >>> recorded = torch.tensor([[[0.9], [-0.9]]])
    >>> read = Rows(batch=Rows(actions=recorded), policy=lambda: Rows(actions=torch.zeros(1, 2, 1)), values=lambda x: x,
    ...             beside=lambda name: Half(), normal=lambda name, like: like, seen=lambda at: None,
    ...             outputs=lambda at, actions, frozen, first: actions.transpose(1, 2))
    >>> [round(x, 1) for x in AugmentedGuide()(read).flatten().tolist()]
    [0.9, 0.5]
    """

    detach: bool = False

    def objection(self, method: Method) -> str | None:
        if not any(isinstance(part, ActionVAE) for part in method.slots()["learners"]):
            return "asks an autoencoder for likely actions, and there is none: set learners=action-vae."
        return None

    def __call__(self, read: ReplayReading) -> Tensor:
        recorded, done = read.batch.actions, read.policy().actions
        network = cast(Autoencoded, read.beside(ActionVAE.name))
        noise = read.normal("guide", done.new_empty(*done.shape[:2], network.latents))
        likely: Tensor = network(read.seen("here"), done, noise)
        better = first_value(read, likely) >= first_value(read, recorded)
        guide = torch.where(better[..., None], likely, recorded)
        return guide.detach() if self.detach else guide


class CautiousValue(ValueFunction):
    """V(s), towards the smaller of two values of what the policy would do next: by slow copies, and by the critics.

        y = r + discount min(of Q'(s', a'), of Q(s', a'))

    Args:
        noise: what is added to a', as in the critic's backup.

    Shapes: observations [P, N, D] -> [P, 1, N, 1].

    >>> from etude.core.population import Member, Population
    >>> from gymnasium.spaces import Box
    >>> CautiousValue().build((3,), Box(-1.0, 1.0, (1,)), Population([Member(0)]))(torch.zeros(1, 5, 3)).shape
    torch.Size([1, 1, 5, 1])
    """

    error: Error = Squared()
    noise: TargetNoise | None = ClippedNoise()

    def objection(self, method: Method) -> str | None:
        critic = method.slots()["critic"]
        if critic is not None and getattr(getattr(critic.backup, "rule", None), "noise", self.noise) != self.noise:
            return "asks about other actions than the critic's backup: set value.noise to that of critic.backup.rule."
        return super().objection(method)

    def loss(self, read: ReplayReading) -> Tensor:
        batch = read.batch
        assert batch.discounts is not None
        with torch.no_grad():
            chosen = read.policy("next", copy=True).actions
            actions = chosen if self.noise is None else self.noise(chosen, read)
            slow = self.of(read.values(read.outputs("next", actions, copy=True)), read)
            now = self.of(read.values(read.outputs("next", actions, frozen=True)), read)
            target = batch.rewards + batch.discounts * torch.minimum(slow, now)
        return self.error(read.state_outputs("here"), target[:, None, :, None]).sum(-1).mean(2).sum(1)


BETTER = Gate(over=First(), baseline=OfState())
"""1 where the first critic says that an action is better than V(s), else 0."""

a2pr = td3_bc.replace(
    id="a2pr",
    title="Adaptive Advantage-Guided Policy Regularization for Offline Reinforcement Learning",
    paper="arXiv:2405.19909",
    value=CautiousValue(),
    learners=(ActionVAE(weight=BETTER),),
    order=("critic", ("value", "action-vae"), "policy"),
    actor=(
        MaximizeQ(over=First(), scale=MeanAbs(alpha=2.5)),
        Clone(towards=AugmentedGuide(), weight=BETTER),
    ),
    claim=Claim(
        statement="On logs of very bad and of good episodes A2PR earns more than TD3+BC.",
        task="pendulum",
        setting=(
            "50 logged episodes of a controller by hand, half each with torques off by 0.3 and 8 on average; "
            "networks of 64-64, 5,000 updates, 20 episodes of likeliest actions"
        ),
        measures=(Measure(name="return", smallest=TENTH, bounds=(-2000.0, 0.0)),),
        equal=("updates",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on="return",
        paper_effect="more than TD3+BC, most where random data is mixed with medium or expert data (table 2)",
    ),
)
