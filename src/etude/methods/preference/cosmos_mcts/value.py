"""What the beginning of a text is worth, by how surprising it is: a small network on three features."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from etude.core.errors import DataError
from etude.core.fields import Count, NonNegative, Positive, Probability
from etude.core.rows import to_batch
from etude.experience.scored import ANSWERS, answered, worth
from etude.planners.guides import Guide
from etude.rewards.patterns import repetition

if TYPE_CHECKING:
    from etude.core.slots import Context
    from etude.planners.trees import Node, Trees

AT_ONCE = 64
"""Texts that the language model reads at a time."""


class Beginning(NamedTuple):
    """Tokens of a text so far, and the surprisal of each, -log p in nats."""

    tokens: Sequence[int]
    surprisal: Sequence[float]


class Scale(NamedTuple):
    """What of a corpus surprisals are held against: quantiles of the mean of a beginning's, and of its largest."""

    low: float
    high: float
    largest: float


def curiosity(index: float) -> float:
    """4 S (1 - S), an inverted U: 0 for what is fully expected and for what is not at all, 1 half way.

    >>> [curiosity(s) for s in (0.0, 0.25, 0.5, 1.0)]
    [0.0, 0.75, 1.0, 0.0]
    """
    return 4 * index * (1 - index)


class CuriousValue(Guide):
    """V(s) in [0, 1], by a network of one hidden layer on three features of the text so far:

        S    mean surprisal of its tokens under the policy, 0 at the `low` and 1 at the `high` quantile of the corpus
        c    curiosity, 4 S (1 - S)
        k    coherence, 1 - repeated r - startling i - dull d

    r is the share of pieces of `size` tokens that occurred before, i by how much its most surprising token lies above
    the `high` quantile of the corpus, and d by how much its mean surprisal lies below the `low` one, as shares of
    these, at most 1.

    The corpus are scored answers, scores in [0, 1], of the first problems that are learned from. V is fitted to them,
    each beginning of an answer being worth what the answer is, for each search anew, by the policy as it is then.

    Args:
        problems: whose answers are the corpus.
        hidden, passes, lr: of the network, of Adam on all beginnings at once, and its rate.

    Raises: DataError for problems without scored answers.

    >>> part = CuriousValue(repeated=0.0)
    >>> [round(x, 4) for x in part.features(Beginning([5, 6], [1.0, 2.0]), Scale(1.0, 3.0, 1.6))]
    [0.25, 0.75, 0.875]
    """

    problems: Count = 64
    low: Probability = 0.05
    high: Probability = 0.95
    repeated: NonNegative = 1.0
    startling: NonNegative = 0.5
    dull: NonNegative = 0.5
    size: Count = 4
    hidden: Count = 16
    passes: Count = 200
    lr: Positive = 0.02

    def values(self, nodes: Sequence[Node], trees: Trees) -> list[float]:
        if self.name not in trees.made:
            trees.made[self.name] = self._fitted(trees)
        scale, network = trees.made[self.name]
        known = [self.features(Beginning(n.tokens, [-x for x in n.logp]), scale) for n in nodes]
        with torch.no_grad():
            found: list[float] = network(torch.tensor(known)).tolist()
        return found

    def features(self, text: Beginning, scale: Scale) -> tuple[float, float, float]:
        """S, c and k of a beginning."""
        mean, most = fmean(text.surprisal), max(text.surprisal)
        index = min(max((mean - scale.low) / max(scale.high - scale.low, 1e-9), 0.0), 1.0)
        startling = min(max(most / max(scale.largest, 1e-9) - 1, 0.0), 1.0)
        dull = max(1 - mean / max(scale.low, 1e-9), 0.0)
        penalty = self.repeated * repetition(text.tokens, self.size)
        return index, curiosity(index), 1 - penalty - self.startling * startling - self.dull * dull

    def _fitted(self, trees: Trees) -> tuple[Scale, Value]:
        """The corpus' scale, and V."""
        separator = next(iter(set(trees.step.stop) - set(trees.sampling.stop)), "")
        texts, labels = beginnings(self.problems, trees.context, separator)
        means, most = (torch.tensor([f(t.surprisal) for t in texts]) for f in (fmean, max))
        low, high = torch.quantile(means, torch.tensor([self.low, self.high])).tolist()
        scale = Scale(low, high, float(torch.quantile(most, self.high)))
        known = torch.tensor([self.features(t, scale) for t in texts])
        network = Value(self.hidden, trees.context.stream.split("value").torch)
        with torch.enable_grad():
            network.fit(known, torch.tensor(labels), self.passes, self.lr)
        return scale, network


def beginnings(count: int, context: Context, separator: str) -> tuple[list[Beginning], list[float]]:
    """Beginnings of the scored answers of so many problems, each up to the end of a step, and their scores.

    Raises: DataError for a problem without scored answers, or with a score that is not in [0, 1].
    """
    pool, policy, rows = context.task.problems("train"), context.policy, []
    for place in range(min(count, len(pool))):
        problem, scores = pool[place], worth(pool[place].info)
        if scores is None or not all(0 <= score <= 1 for score in scores):
            raise DataError(
                f"Problem {problem.id!r} has no answers with scores from 0 to 1, by which a value is learned: give "
                "data files the columns 'responses' and 'scores', or choose a task that has them, like "
                "'grammar-stories'."
            )
        rows += [answered(problem, str(t), float(s), place, context) for t, s in zip(problem.info[ANSWERS], scores)]
    texts, labels = list[Beginning](), list[float]()
    for first in range(0, len(rows), AT_ONCE):
        some = rows[first : first + AT_ONCE]
        batch = to_batch(some, policy.tokenizer.pad_token_id, 1.0, policy.device)
        with torch.no_grad():
            logp = policy.evaluate(batch).logp
        for row, episode in enumerate(some):
            said, surprisal = episode.segments[-1].tokens, (-logp[row][batch.action_mask[row]]).tolist()
            ends = [i + 1 for i, t in enumerate(said) if separator and separator in policy.decode([t])]
            ends = ends or [len(said)]
            texts += [Beginning(said[:end], surprisal[:end]) for end in ends]
            labels += [episode.reward] * len(ends)
    return texts, labels


class Value(nn.Module):
    """sigmoid of one hidden layer on the three features. Shapes: [B, 3] -> [B]."""

    def __init__(self, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.read = nn.Parameter(torch.randn(3, hidden, generator=generator))
        self.shift, self.bias = nn.Parameter(torch.zeros(hidden)), nn.Parameter(torch.zeros(()))
        self.write = nn.Parameter(torch.randn(hidden, generator=generator) * hidden**-0.5)

    def forward(self, known: Tensor) -> Tensor:
        found: Tensor = ((known @ self.read + self.shift).tanh() @ self.write + self.bias).sigmoid()
        return found

    def fit(self, known: Tensor, labels: Tensor, passes: int, lr: float) -> None:
        """Least squares."""
        optimizer = torch.optim.Adam(self.parameters(), lr=lr)
        for _ in range(passes):
            optimizer.zero_grad()
            ((self(known) - labels) ** 2).mean().backward()
            optimizer.step()
