"""SPIBB-DQN: choices that the logs rarely make are made as rarely, and the best of the others as often as all of these.

Changes DQN in three places (arXiv:1712.06924, the policy-based algorithm):

1. it learns from logs, and nothing is explored;
2. a network beside the critic clones how likely each choice was, G(a|s), and steps first;
3. choices of which G(a|s) < threshold are bootstrapped: what is done, in the target and where it acts, keeps their
   chances, and gives all the rest to the best of the others,

    pi(a|s) = G(a|s) where G(a|s) < threshold,   else 1[a = argmax_{b: G(b|s) >= threshold} Q(s, b)] sum_b G(b|s)
    y = r + gamma (1 - terminated) sum_a pi'(a|s') Q'(s', a),    threshold = 0.1

   pi' being that of the slow copy Q'.

With a threshold of 0 that is DQN, and above 1 it evaluates who made the logs, and acts so. The paper bootstraps choices
that were made fewer than so many times near an observation, by counts of pairs (in its authors' code by distances); as
in the benchmark of arXiv:1910.01708 it is how likely they were here, which a network can say anywhere. There the clone
is trained first: `--set critic.learning.warmup=1000` has the critic wait for it. It acts by its likeliest choice, and
by chance where choices are sampled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from etude.core.critic_slots import Following, Rule
from etude.core.fields import NonNegative
from etude.core.population import Population
from etude.core.replay_slots import ReplayReading
from etude.experience.logged import Logged
from etude.learners.backups import Bootstrap
from etude.learners.behaviour import BehaviourModel, behaviour, without_behaviour
from etude.methods.value.dqn import dqn
from etude.policies.control.actor import Actor
from etude.policies.control.replay import FromCritic
from etude.policies.control.units import Softmax, choice_count

if TYPE_CHECKING:
    from gymnasium import Space

    from etude.core.method import Method
    from etude.policies.control.memory import Past


def kept(chances: Tensor, values: Tensor, threshold: Any) -> Tensor:
    """The chances [P, N, A] of the best policy by `values` that keeps those below a threshold as they are.

    >>> said, worth = torch.tensor([[[0.05, 0.6, 0.35]]]), torch.tensor([[[9.0, 1.0, 2.0]]])
    >>> [[round(x, 2) for x in kept(said, worth, threshold)[0, 0].tolist()] for threshold in (0.0, 0.1, 0.5, 2.0)]
    [[1.0, 0.0, 0.0], [0.05, 0.0, 0.95], [0.05, 0.6, 0.35], [0.05, 0.6, 0.35]]
    """
    bootstrapped = chances - threshold < 0
    rest = chances.masked_fill(bootstrapped, 0.0).sum(-1, keepdim=True)
    best = values.masked_fill(bootstrapped, -torch.inf).argmax(-1, keepdim=True)
    own = chances.masked_fill(~bootstrapped, 0.0)
    return own.scatter_add(-1, best, rest)


class RarelyAsBefore(Rule):
    """Choices that were rarely made as rarely, and the best of the others, by the slow copy's word.

    Args:
        threshold: choices that are less likely in the logs keep their chance; what acts asks it here.

    Shapes: outputs [P, M, N, A, K], chances [P, N, A].

    >>> from types import SimpleNamespace as Rows
    >>> logits = torch.tensor([[[0.05, 0.6, 0.35]]]).log()
    >>> said = torch.tensor([9.0, 1.0, 2.0]).view(1, 1, 1, 3, 1)
    >>> read = Rows(beside=lambda name: lambda seen: logits, seen=lambda at: None, outputs=lambda at, copy: said,
    ...             values=lambda outputs: outputs[..., 0])
    >>> [round(x, 2) for x in RarelyAsBefore(threshold=0.1)(read).chances.flatten().tolist()]
    [0.05, 0.0, 0.95]
    """

    threshold: NonNegative = 0.1

    def objection(self, method: Method) -> str | None:
        policy = method.slots()["policy"]
        if policy is not None and not isinstance(policy, SafePolicy):
            return f"is what SafePolicy does, and {type(policy).__name__} does something else: set policy=safe-policy."
        return without_behaviour(method)

    def __call__(self, read: ReplayReading) -> Following:
        outputs = read.outputs("next", copy=True)
        values = read.values(outputs).mean(1)
        return Following(outputs, chances=kept(behaviour(read, "next").exp(), values, self.threshold))


class Kept(Actor):
    """Says logarithms of the chances that `kept` makes of what the critic says, and of the behaviour that it holds."""

    threshold: Any

    def features(self, seen: Tensor, past: Past | None = None) -> tuple[Tensor, Tensor | None]:
        values: Tensor = self.head(self.body(seen))
        chances = kept(self.held[BehaviourModel.name](seen).softmax(-1), values, self.threshold)
        return chances.clamp(min=torch.finfo(chances.dtype).tiny).log(), None

    def say(self, features: Tensor, allowed: Tensor | None = None) -> Tensor:
        return features

    def forward(self, seen: Tensor, past: Past | None = None) -> Tensor:
        return self.features(seen, past)[0]


class SafePolicy(FromCritic):
    """What the logs rarely did as rarely, and the best of the rest by the critic: as its backup's rule says.

    Shapes: logarithms of chances [P, N, A] -> choices [P, N, 1].

    >>> Softmax(3).mode(torch.tensor([[[0.05, 0.0, 0.95]]]).clamp(min=1e-9).log()).tolist()
    [[[2.0]]]
    """

    def objection(self, method: Method) -> str | None:
        critic = method.slots()["critic"]
        if critic is not None and not isinstance(getattr(critic.backup, "rule", None), RarelyAsBefore):
            return (
                "does what the critic's backup asks about, by its threshold: set critic.backup.rule=rarely-as-before."
            )
        return super().objection(method)

    def actor(self, method: Method, shape: tuple[int, ...], actions: Space[Any], population: Population) -> Actor:
        plain, slots = super().actor(method, shape, actions, population), method.slots()
        model = next(part for part in slots["learners"] if isinstance(part, BehaviourModel))
        held = {model.name: model.build(plain.shape, actions, population)}
        count = choice_count(actions, "SafePolicy")
        made = Kept(
            list(plain.transforms), plain.body, None, plain.head, Softmax(count), torch.zeros(population.size, 1, 0),
            shape, plain.shape, count, held=held,
        )  # fmt: skip
        made.threshold = cast(RarelyAsBefore, slots["critic"].backup.rule).threshold
        return made


assert dqn.critic is not None
spibb = dqn.replace(
    id="spibb",
    title="Safe Policy Improvement with Baseline Bootstrapping",
    paper="arXiv:1712.06924",
    experience=Logged(),
    exploration=None,
    policy=SafePolicy(),
    critic=dqn.critic.replace(backup=Bootstrap(RarelyAsBefore(threshold=0.1))),
    learners=(BehaviourModel(),),
    order=("behaviour-model", "critic"),
)
