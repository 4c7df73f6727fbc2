"""Rewards that do not know the truth, or turn it round: what is left of learning without it is of the model's own."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.draws import uniforms
from etude.core.episodes import Episode
from etude.core.fields import NonNegative, Probability
from etude.core.slots import Context, Reward, TokenReward


class RandomReward(Reward):
    """`weight` with a probability and else 0, whatever was said (arXiv:2506.10947).

    Independent of the completion, so the expected policy gradient at the policy that sampled is 0. Each completion's
    number is addressed by its own draw, so it does not depend on the others of its batch.

    >>> from types import SimpleNamespace as Run
    >>> from etude.core.draws import Draw
    >>> from etude.core.episodes import Problem
    >>> said = [Episode(Problem("sum/1", "1+1="), draw=Draw.at(0, i)) for i in range(1000)]
    >>> sum(RandomReward(chance=0.25).score(said, Run()))
    251.0
    """

    chance: Probability = 0.5
    weight: NonNegative = 1.0

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        draws = [
            (context.stream.draw("row", i) if e.draw is None else e.draw).child(self.name)
            for i, e in enumerate(episodes)
        ]
        drawn = uniforms(torch.tensor([d.key for d in draws], dtype=torch.int64), 0, 1)[0]
        return (self.weight * (drawn < self.chance)).tolist()


class IncorrectReward(Reward):
    """weight * (1 - what the task paid): what is right is worth nothing (arXiv:2506.10947).

    In GRPO with rewards of 0 and 1 its advantages are exactly those of the truth with the other sign.

    >>> from etude.core.episodes import Problem, Segment
    >>> paid = [Episode(Problem("sum/1", "1+1="), [Segment("assistant", reward=r)]) for r in (1.0, 0.0)]
    >>> IncorrectReward(weight=0.5).score(paid, None)
    [0.0, 0.5]
    """

    weight: NonNegative = 1.0

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [self.weight * (1 - e.reward) for e in episodes]


class MajorityReward(Reward):
    """`weight` for the answer that most completions of the problem give, and 0 for others (TTRL, arXiv:2504.16084).

    A completion that was cut, or in which the task finds no answer, has no vote. Of answers given equally often the one
    that was given first wins. Answers are the same if their texts are.

    >>> from types import SimpleNamespace as Run
    >>> from etude.core.episodes import Problem, Segment
    >>> said = [Episode(Problem("sum/1", "1+1="), [Segment("assistant", text)]) for text in ("3", "2", "", "2 ")]
    >>> MajorityReward().score(said, Run(task=Run(answer=str.strip)))
    [0.0, 1.0, 0.0, 1.0]
    """

    weight: NonNegative = 1.0

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        answers = ["" if e.stop.cut else context.task.answer(e.completion).strip() for e in episodes]
        votes: defaultdict[int, Counter[str]] = defaultdict(Counter)
        for episode, answer in zip(episodes, answers):
            votes[episode.group][answer] += bool(answer)
        chosen = {group: given.most_common(1)[0][0] for group, given in votes.items()}
        return [self.weight * bool(a and a == chosen[e.group]) for e, a in zip(episodes, answers)]


class ConfidenceReward(TokenReward):
    """weight * (1/|y|) sum_t log pi(y_t), in nats: being sure is worth something, so entropy falls (arXiv:2505.22660).

    Each token is paid its own part of the mean. `EntropyReward` is the other way round, and sums.

    Shapes: [B, T], 0 outside the action mask. Belongs to fresh samples: behaviour_logp is then log pi.

    >>> from types import SimpleNamespace as Rows
    >>> logp = torch.tensor([[0.0, -2.0, -1.0]])
    >>> rows = Rows(behaviour_logp=logp, action_mask=torch.tensor([[False, True, True]]))
    >>> ConfidenceReward().shape(rows).sum().item()
    -1.5
    """

    uses_behaviour: ClassVar[bool] = True
    weight: NonNegative = 1.0

    def shape(self, batch: TokenBatch) -> Tensor:
        said = batch.action_mask.sum(1, keepdim=True).clamp(min=1)
        return self.weight * batch.behaviour_logp * batch.action_mask / said
