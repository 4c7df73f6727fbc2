"""Linear attention on chain traversal, and REINFORCE on its outcome (arXiv:2601.15158), vectorised over problems.

    n  vertices of the vocabulary,  m  vertices of each of the two chains,  C = n + n^2  context types,  B  problems

A context is only counted: c[b, x] is how often type x has occurred so far, the first n types being vertices and type
n + i n + j the edge (i, j) (those with i = j never occur). With current vertex v,

    logits over vertices = ((c * A[v]) V) / temperature,    A [n, C],  V [C, n].

So a problem is the pair (v, c), and a step of generation adds one to the count of the vertex that was said. The
softmax variant attends to positions instead: weights softmax over the context of A[v, token], their types through V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Problems:
    """Two chains with permuted labels, and a source on the first.

    Shapes: chain [B, m] the source's chain; start [B] the source's place on it; counts [B, C] of the prompt;
    sinks [B, 2] the ends of both chains, the right one first.
    """

    chain: Tensor
    start: Tensor
    counts: Tensor
    sinks: Tensor

    @property
    def source(self) -> Tensor:
        """[B] where the walk starts."""
        return self.chain.gather(1, self.start[:, None])[:, 0]


def draw(
    count: int, length: int, vertices: int, starts: Sequence[int], generator: torch.Generator
) -> Problems:  # fmt: skip
    """Problems with chains of `length` among `vertices` labels (the rest are isolated), sources uniform on `starts`."""
    names = torch.rand(count, vertices, generator=generator).argsort(1)
    chains = names[:, : 2 * length].view(count, 2, length)
    edges = vertices + chains[..., :-1] * vertices + chains[..., 1:]
    start = torch.tensor(list(starts))[torch.randint(len(starts), (count,), generator=generator)]
    counts = torch.zeros(count, vertices + vertices**2).scatter_(1, edges.flatten(1), 1.0)
    counts.scatter_add_(1, chains[:, 0].gather(1, start[:, None]), torch.ones(count, 1))
    return Problems(chains[:, 0], start, counts, chains[..., -1])


@dataclass
class ChainModel:
    """A and V, with gradient; `softmax` attends to positions instead of counting."""

    queries: Tensor
    values: Tensor
    temperature: float = 0.2
    softmax: bool = False

    @staticmethod
    def random(
        vertices: int, generator: torch.Generator, *, scale: float = 1e-8, temperature: float = 0.2
    ) -> ChainModel:
        """Entries N(0, scale^2)."""
        types = vertices + vertices**2
        a, v = (torch.randn(*shape, generator=generator) for shape in ((vertices, types), (types, vertices)))
        return ChainModel((scale * a).requires_grad_(), (scale * v).requires_grad_(), temperature)

    def parameters(self) -> list[Tensor]:
        return [self.queries, self.values]

    def logits(self, vertex: Tensor, counts: Tensor) -> Tensor:
        """[B, n] at current vertices [B] with counts [B, C]."""
        scores = self.queries[vertex]
        if self.softmax:
            weights = (scores + counts.log()).softmax(-1)  # c positions of a type weigh as one of exp(score) c
            return weights @ self.values / self.temperature
        return (counts * scores) @ self.values / self.temperature


@dataclass(frozen=True)
class Said:
    """What was generated. Shapes: tokens, going [B, L]; logp [B] of all of it; reward, traversed [B].

    `reward`: the first sink is the right one. `traversed`: the tokens are the chain from the source to its sink.
    """

    tokens: Tensor
    going: Tensor
    logp: Tensor
    reward: Tensor
    traversed: Tensor


def generate(model: ChainModel, problems: Problems, generator: torch.Generator | None = None) -> Said:
    """Up to m + 1 vertices, until the first sink: sampled, or the likeliest without a generator."""
    vertex, counts = problems.source, problems.counts
    limit, count = problems.chain.shape[1] + 1, len(vertex)
    on = torch.ones(count, dtype=torch.bool)
    tokens, going, logp = [], [], torch.zeros(count, dtype=model.queries.dtype)
    for _ in range(limit):
        table = model.logits(vertex, counts).log_softmax(-1)
        if generator is None:
            said = table.detach().argmax(-1)
        else:
            below = table.detach().exp().cumsum(-1)
            drawn = torch.rand(count, 1, generator=generator, dtype=below.dtype) * below[:, -1:]
            said = torch.searchsorted(below, drawn, right=True)[:, 0].clamp_(max=table.shape[-1] - 1)
        logp = logp + torch.where(on, table.gather(1, said[:, None])[:, 0], 0.0)
        tokens.append(said)
        going.append(on)
        on = on & ~(said[:, None] == problems.sinks).any(1)
        counts = counts.scatter_add(1, said[:, None], torch.ones(count, 1, dtype=counts.dtype))
        vertex = said
    path, took = torch.stack(tokens, 1), torch.stack(going, 1)
    return Said(path, took, logp, *judge(problems, path, took))


def judge(problems: Problems, tokens: Tensor, going: Tensor) -> tuple[Tensor, Tensor]:
    """Rewards [B] and whether the chain was traversed [B], of tokens [B, L] of which `going` [B, L] count."""
    right = ((tokens == problems.sinks[:, :1]) & going).any(1)
    length = problems.chain.shape[1]
    steps = torch.arange(tokens.shape[1])
    place = problems.start[:, None] + 1 + steps
    wanted = problems.chain.gather(1, place.clamp(max=length - 1))
    needed = place < length
    exact = ((tokens == wanted) & going | ~needed).all(1) & (needed | ~going).all(1)
    return right.to(problems.counts.dtype), exact


def reinforce_loss(said: Said) -> Tensor:
    """-1/B sum_i (r_i - mean r) log pi(y_i)."""
    return -((said.reward - said.reward.mean()) * said.logp).mean()


def train(
    model: ChainModel, *, length: int, vertices: int, starts: Sequence[int], steps: int, batch: int, rate: float,
    generator: torch.Generator,
) -> list[float]:  # fmt: skip
    """REINFORCE with Adam; mean reward of every step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, foreach=True)
    found = []
    for _ in range(steps):
        said = generate(model, draw(batch, length, vertices, starts, generator), generator)
        optimizer.zero_grad()
        reinforce_loss(said).backward()
        optimizer.step()
        found.append(float(said.reward.mean()))
    return found


@torch.no_grad()
def accuracy(
    model: ChainModel, *, length: int, vertices: int, starts: Sequence[int], count: int, generator: torch.Generator
) -> tuple[float, float]:
    """Greedy accuracy and traversal accuracy on fresh problems."""
    said = generate(model, draw(count, length, vertices, starts, generator))
    return float(said.reward.mean()), float(said.traversed.double().mean())
