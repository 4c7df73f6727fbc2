"""Values of tokens in tables: the state is the token before an action, and every action one token."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.rows import to_batch
from etude.learners.token_values import TokenValues, ValuedWords
from etude.loops.token_learning import Rows


class TableHead(nn.Module):
    """A number for each of some words in each state."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = nn.Parameter(values.clone())

    def forward(self, states: Tensor) -> Tensor:
        return self.values[states]

    def of(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        said = self.values[states]
        right = said.gather(1, tokens[:, None])[:, 0]
        return right, said.logsumexp(1) - right


class Tables(ValuedWords):
    """Values of the token before."""

    def __init__(self, states: int, words: int, seed: int = 0) -> None:
        nn.Module.__init__(self)
        random = torch.Generator().manual_seed(seed)

        def table(width: int) -> TableHead:
            return TableHead(torch.randn(states, width, generator=random, dtype=torch.float64))

        self.q, self.v = nn.ModuleList([table(words), table(words)]), table(1)
        self.policy: Any = SimpleNamespace(context=64)

    def states(self, batch: TokenBatch) -> Tensor:
        return batch.tokens[:, :-1][batch.action_mask[:, 1:]]


def game(steps: Sequence[tuple[int, int, float]], truncated_at: int | None = None, between: int = 0) -> Episode:
    """State, action, reward, and so on; `between` other tokens before each state."""
    segments = []
    for state, action, reward in steps:
        segments.append(Segment("user", "", [9] * between + [state], [0] * (between + 1), [0.0] * (between + 1)))
        segments.append(Segment("assistant", "", [action], [1], [0.0], reward=reward))
    if truncated_at is not None:
        segments.append(Segment("user", "", [truncated_at], [0], [0.0]))
    stop = StopReason.TERMINATED if truncated_at is None else StopReason.TRUNCATED
    return Episode(Problem("p", "?"), segments, stop=stop)


def played(episodes: Sequence[Episode]) -> TokenBatch:
    batch = to_batch(episodes, 0, 1.0, torch.device("cpu"))
    paid = torch.zeros(batch.tokens.shape, dtype=torch.float64)
    for row, episode in enumerate(episodes):
        place = 0
        for s in episode.segments:
            place += len(s.tokens)
            paid[row, place - 1] += s.reward
    return shared(batch.replace(rewards=paid))


def told(part: TokenValues, batch: TokenBatch, network: nn.Module, slow: nn.Module | None = None) -> Any:
    """What the part reads."""
    name = part.name
    return Rows({name: network}, {} if slow is None else {name: slow}, name, batch)


def shared(batch: TokenBatch) -> TokenBatch:
    return batch.replace(shares=batch.action_mask.double() / batch.action_mask.sum())
