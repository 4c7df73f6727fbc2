"""Discrete BCQ: of choices those alone that the logs make likely, and of these the best (arXiv:1910.01708).

Changes Double DQN in three places:

1. it learns from logs, and nothing is explored;
2. the network also says how likely each choice was in the logs, G = softmax(i), and learns it with the values,

    loss = huber(Q(s, a) - y) - log G(a|s) + 0.01 mean_b i(s, b)^2

3. what is chosen, in the target and where it acts, is the best of those that are likely enough,

    y = r + gamma (1 - terminated) Q'(s', argmax_{a in likely(s')} Q(s', a)),
    likely(s) = {a: G(a|s) / max_b G(b|s) > threshold},    threshold = 0.3

With a threshold of 0 that is Double DQN, and next to 1 the likeliest choice, cloning. Both heads read the last hidden
layer; in the authors' code each has a layer of its own before it, and none in common where observations are vectors.
Sizes are DQN's here; on Atari the paper has Adam with 6.25e-5 and epsilon 1.5e-4, batches of 32, a copy every 8,000
updates, and one choice of a thousand by chance where it is evaluated.

Its benchmark also holds others against the same logs: `dqn` and `qr-dqn` with `--set experience=logged
exploration=none`, `rem`, `bc-discrete`, and those who stay near the logs in other ways, `bear-discrete`, `kl-control`
and `spibb`. They are members of its study and have no claims of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor

from etude.core.claims import Claim, Measure
from etude.core.critic_slots import CriticPenalty
from etude.core.fields import Interval, NonNegative
from etude.core.learners import Learning, Target
from etude.core.replay_slots import ReplayReading
from etude.experience.logged import Logged
from etude.learners.backups import Argmax, Bootstrap
from etude.learners.heads import Direct, Huber
from etude.learners.q import QFunctions
from etude.methods.value.double_dqn import double_dqn
from etude.optimizers.adam import Adam
from etude.policies.control.initializers import FanIn
from etude.policies.control.networks import MLP

if TYPE_CHECKING:
    from etude.core.method import Method


class LikelyChoices(Direct):
    """A value and the logit of how likely the choice is, two numbers for each; unlikely choices are worth -infinity.

        likely(s) = {a: G(a|s) / max_b G(b|s) > threshold},   G = softmax(i)

    Shapes: outputs [P, M, N, A, 2] of all choices -> values [P, M, N, A]; of some, [..., 2] -> [...] as they are.

    >>> head = LikelyChoices(threshold=0.3)
    >>> said = torch.tensor([[1.0, 0.0], [9.0, -2.0], [3.0, -1.0]]).view(1, 1, 1, 3, 2)  # ratios 1, 0.14, 0.37
    >>> head.mean(said).flatten().tolist()
    [1.0, -inf, 3.0]
    """

    threshold: Annotated[float, Interval(ge=0, lt=1)] = 0.3

    @property
    def size(self) -> int:
        return 2

    def mean(self, outputs: Tensor) -> Tensor:
        values, logits = outputs.unbind(-1)
        if outputs.dim() < 5:
            return values
        ratio = (logits - logits.amax(-1, keepdim=True)).exp().clamp(min=torch.finfo(logits.dtype).tiny)
        return values.masked_fill(ratio - self.threshold <= 0, -torch.inf)

    def target(self, rewards: Tensor, discounts: Tensor, outputs: Tensor) -> Tensor:
        return torch.addcmul(rewards[..., None], discounts[..., None], outputs)


class HuberOfValue(Huber):
    """`Huber` of the value, the first of the numbers, and nothing of what else is said.

    Shapes: [..., 2] -> [..., 2].

    >>> HuberOfValue(delta=1.0)(torch.tensor([0.5, 7.0]), torch.tensor([0.0, 3.0])).tolist()
    [0.125, 0.0]
    """

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        found = super().__call__(prediction[..., :1], target[..., :1])
        return torch.cat([found, torch.zeros_like(found)], -1)

    def least(self, target: Tensor) -> Tensor:
        return torch.zeros_like(target)


class SaidLikely(CriticPenalty):
    """What was done is likely: -log softmax(i)(a) + size mean_b i_b^2, of the logits i that the critic says.

    Args:
        size: what keeps logits small.

    Shapes: outputs [P, M, N, 2] of what was done -> [P, N]. Of two choices alike in every way, log 2:

    >>> from types import SimpleNamespace as Rows
    >>> read = Rows(outputs=lambda at: torch.zeros(1, 1, 1, 2, 2))
    >>> round(SaidLikely()(read, torch.zeros(1, 1, 1, 2)).item(), 4)
    0.6931
    """

    size: NonNegative = 0.01

    def objection(self, method: Method) -> str | None:
        critic = method.slots()["critic"]
        if critic is not None and not isinstance(critic.head, LikelyChoices):
            return "learns how likely choices are, and the critic does not say it: set critic.head=likely-choices."
        return None

    def __call__(self, read: ReplayReading, outputs: Tensor) -> Tensor:
        logits = read.outputs("here")[..., 1]
        return (logits.logsumexp(-1) - outputs[..., 1] + self.size * logits.square().mean(-1)).sum(1)


discrete_bcq = double_dqn.replace(
    id="discrete-bcq",
    title="Benchmarking Batch Deep Reinforcement Learning Algorithms",
    paper="arXiv:1910.01708",
    row="benchmark",
    experience=Logged(),
    exploration=None,
    critic=QFunctions(
        network=MLP(hidden=(256, 256), activation="relu", initializer=FanIn()),
        head=LikelyChoices(threshold=0.3),
        backup=Bootstrap(Argmax(double=True)),
        error=HuberOfValue(),
        penalties=(SaidLikely(size=0.01),),
        learning=Learning(Adam(lr=2.3e-3, clip_norm=10.0), target=Target(every=128)),
    ),
    claim=Claim(
        statement="On logs of a controller that chance disturbs discrete BCQ earns more than cloning them.",
        task="cartpole",
        setting=(
            "200 logged episodes of a controller by hand that lets the cart drift off the track, of which four fifths "
            "choose by chance one time in two and the others one time in a thousand; networks of 64-64, 5,000 updates "
            "at a rate of 1e-3, 20 episodes of likeliest choices"
        ),
        measures=(Measure(name="return", smallest=25.0, bounds=(0.0, 500.0)),),
        equal=("updates",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on="return",
        paper_effect="the one method that is as good as the noiseless behaviour on nine Atari games (figures 1, 2)",
    ),
)
