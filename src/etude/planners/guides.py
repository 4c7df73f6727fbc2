"""Guides: how much an answer is worth, or the beginning of one. Internal ones ask the policy, external ones others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import ClassVar

from etude.core.errors import ConfigError
from etude.core.fields import Count
from etude.core.part import Part
from etude.core.slots import Reward
from etude.core.worlds import World
from etude.planners.trees import Node, Trees
from etude.rewards.model import RewardModel


class Guide(Part, abstract=True):
    """Says what nodes are worth, in [0, 1]."""

    slot = "guide"
    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    partial: ClassVar[bool] = True
    """Whether it can speak of an answer that is not whole."""

    def values(self, nodes: Sequence[Node], trees: Trees) -> list[float]:
        """One number for each of the nodes."""
        raise NotImplementedError

    def ask(self, nodes: Sequence[Node], trees: Trees) -> None:
        """Have `value` of the nodes known that it is not known of."""
        asked = [node for node in nodes if node.value is None]
        for node, value in zip(asked, self.values(asked, trees) if asked else []):
            node.value = value


class MeanLikelihood(Guide):
    """The policy's own word: the geometric mean of the probabilities of what was said, 1 for nothing.

    >>> from etude.core.draws import Draw
    >>> node = Node(0, Draw(0), 0, tokens=[5, 6], logp=[math.log(0.5), math.log(0.125)])
    >>> round(MeanLikelihood().values([node], None)[0], 4)
    0.25
    """

    def values(self, nodes: Sequence[Node], trees: Trees) -> list[float]:
        return [math.exp(fmean(node.logp)) if node.logp else 1.0 for node in nodes]


class Verifier(Guide):
    """The task's own word: 1 where it calls a whole answer a success, else 0.

    As a guide it is an oracle: best of N with it is pass@N. It says nothing of the beginning of an answer.

    An answer of two judged ones:

    >>> from types import SimpleNamespace as Some
    >>> task = Some(success=lambda episode: episode == "right")
    >>> trees = Some(context=Some(task=task), judged=lambda nodes: nodes)
    >>> Verifier().values(["right", "wrong"], trees)
    [1.0, 0.0]
    """

    partial: ClassVar[bool] = False

    def values(self, nodes: Sequence[Node], trees: Trees) -> list[float]:
        task = trees.context.task
        return [float(task.success(episode)) for episode in trees.judged(nodes)]


class Lookahead(Guide):
    """What becomes of a beginning: the mean worth of answers sampled from there on; of a whole answer its own.

    With the verifier this is the label of Math-Shepherd (arXiv:2312.08935). The
    tokens count like all others.

    Args:
        samples: answers from each beginning.
        of: what they are worth.

    >>> Lookahead(samples=2).of.name
    'verifier'
    """

    samples: Count = 4
    of: Guide = Verifier()

    def values(self, nodes: Sequence[Node], trees: Trees) -> list[float]:
        begun = [node for node in nodes if not node.ended]
        ends = iter(trees.complete(begun, self.samples))
        groups = [[node] if node.ended else next(ends) for node in nodes]
        worth = iter(self.of.values([leaf for group in groups for leaf in group], trees))
        return [fmean([next(worth) for _ in group]) for group in groups]


class Paid(Guide):
    """What a reward pays for the text so far, through a sigmoid: a reward model, or a function of one's own.

    Args:
        reward: who pays.

    Of a right and a wrong answer, paid 2 and 0:

    >>> from types import SimpleNamespace as Some
    >>> from etude.rewards.length import CosineReward
    >>> context = Some(max_tokens=8, task=Some(success=lambda episode: episode.right))
    >>> answers = [Some(right=r, turns=[], stop=Some(cut=False)) for r in (True, False)]
    >>> guide = Paid(reward=CosineReward(right=(2.0, 2.0), wrong=(0.0, 0.0)))
    >>> [round(x, 4) for x in guide.values(answers, Some(episodes=list, context=context))]
    [0.8808, 0.5]
    """

    reward: Reward = RewardModel()

    def values(self, nodes: Sequence[Node], trees: Trees) -> list[float]:
        paid = self.reward.score(trees.episodes(nodes), trees.context)
        if any(x is None for x in paid):
            raise ConfigError(f"{self.reward.name} does not apply to some answers, so it cannot guide a search.")
        return [1 / (1 + math.exp(-float(x))) for x in paid if x is not None]
