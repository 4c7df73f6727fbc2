"""Softmax policies over a few dozen responses: everything about them can be enumerated.

A response is a path of tokens through a tree; every node of the tree, that is every prefix, has logits of its own for
every prompt. P members are held at once and never meet.

    P  members,  X  prompts,  N  nodes,  V  tokens,  Y  responses,  L  longest response
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor, nn

from etude.core.batches import Head, TokenLogProbs


class SoftmaxTree:
    """P independent tables of logits [X, N, V] in float64, and the responses that they give probability to.

    Args:
        prompts, vocabulary, length: X, V and L.
        ends: whether token 0 ends a response early; otherwise every response has L tokens.
        spread: standard deviation of the first logits; 0 is the uniform policy.

    Attributes: `tokens`, `mask` and `nodes` [Y, L] say what each response is made of and which node says each token;
    `values` has a table [X, N] for each member, what it takes every prefix to be worth, or is empty.
    """

    def __init__(
        self, prompts: int, vocabulary: int, length: int = 1, members: int = 1, *, ends: bool = False,
        spread: float = 0.0, seed: int = 0,
    ) -> None:  # fmt: skip
        self.prompts, self.vocabulary, self.length, self.ends = prompts, vocabulary, length, ends
        paths = list(_paths(vocabulary, length, ends))
        prefixes = {p[:t]: None for p in paths for t in range(len(p))}
        number = {prefix: i for i, prefix in enumerate(prefixes)}
        self.count = len(number)
        self.tokens, self.nodes = torch.zeros(2, len(paths), length, dtype=torch.long)
        self.mask = torch.zeros(len(paths), length, dtype=torch.bool)
        for row, path in enumerate(paths):
            self.tokens[row, : len(path)] = torch.tensor(path)
            self.nodes[row, : len(path)] = torch.tensor([number[path[:t]] for t in range(len(path))])
            self.mask[row, : len(path)] = True
        shape = (prompts, self.count, vocabulary)
        self.logits = [
            nn.Parameter(spread * torch.randn(shape, generator=torch.Generator().manual_seed(seed + k)).double())
            for k in range(members)
        ]
        self.values: list[nn.Parameter] = []

    def begin_values(self) -> None:
        """Every member takes every prefix to be worth 0."""
        shape = (self.prompts, self.count)
        self.values = [nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for _ in self.logits]

    @property
    def members(self) -> int:
        return len(self.logits)

    def table(self) -> Tensor:
        """[P, X, N, V] log-probability of every token at every node, with gradient."""
        return torch.stack(list(self.logits)).log_softmax(-1)

    def token_logp(self, table: Tensor | None = None) -> Tensor:
        """[P, X, Y, L] log-probability of every token of every response, 0 after its end."""
        table = self.table() if table is None else table
        return torch.where(self.mask, table[:, :, self.nodes, self.tokens], 0.0)

    def logp(self, table: Tensor | None = None) -> Tensor:
        """[P, X, Y] log-probability of every response."""
        return self.token_logp(table).sum(-1)

    def probs(self) -> Tensor:
        """[P, X, Y] probability of every response; sums to 1."""
        return self.logp().exp()

    @torch.no_grad()
    def entropy(self) -> Tensor:
        """[P, X] entropy of the response, in nats."""
        logp = self.logp()
        return -(logp.exp() * logp).sum(-1)

    @torch.no_grad()
    def reached(self) -> Tensor:
        """[P, X, N] probability of coming to each node."""
        return self._below(self.probs())

    @torch.no_grad()
    def worth(self, rewards: Tensor) -> Tensor:
        """[P, X, N] expected reward from each node on, nan where none comes; `rewards` [X, Y] of the responses."""
        probs = self.probs()
        return self._below(probs * rewards) / self._below(probs)

    def _below(self, of: Tensor) -> Tensor:
        """[P, X, N] what responses [P, X, Y] have that go through each node, summed up."""
        passed = torch.where(self.mask, of[..., None], 0.0).flatten(-2)
        found = of.new_zeros(*of.shape[:-1], self.count)
        return found.index_add(-1, torch.where(self.mask, self.nodes, 0).flatten(), passed)

    @torch.no_grad()
    def sample(self, uniform: Tensor) -> Tensor:
        """Responses [P, X, n] for uniform random numbers [P, X, n]."""
        return self.respond(self.probs().cumsum(-1), uniform)

    def respond(self, below: Tensor, uniform: Tensor) -> Tensor:
        """Responses [..., n] for uniform random numbers [..., n]; `below` [..., Y]: the probabilities summed up."""
        drawn = torch.searchsorted(below, (uniform * below[..., -1:]).contiguous(), right=True)
        return drawn.clamp_(max=len(self.tokens) - 1)

    def rows(
        self, member: int, prompt: Tensor, response: Tensor, table: Tensor, needs: frozenset[str] = frozenset()
    ) -> TokenLogProbs:
        """What a member says about rows: responses [B] to prompts [B]; `table` as `table()` gave it."""
        nodes, mask = self.nodes[response], self.mask[response]
        logits = table[member][prompt[:, None], nodes]  # [B, L, V]
        logp = logits.gather(-1, self.tokens[response][..., None])[..., 0]
        policy = TokenLogProbs(torch.where(mask, logp, 0.0))
        if "entropy" in needs:
            policy.entropy = torch.where(mask, -(logits.exp() * logits).sum(-1), 0.0)
        if "values" in needs:
            policy.values = torch.where(mask, self.values[member][prompt[:, None], nodes], 0.0)
        if "logits" in needs:
            policy.logits = self.logits[member][prompt[:, None], nodes] * mask[..., None]
        if "hidden" in needs:
            policy.hidden = self.hidden(prompt, response)
            policy.head = self.head(member)
        return policy

    def hidden(self, prompt: Tensor, response: Tensor) -> Tensor:
        """[B, L, X N] one-hot of the node that says each token: the state of which the logits are a linear map."""
        place = prompt[:, None] * self.count + self.nodes[response]
        hot = nn.functional.one_hot(place, self.prompts * self.count).double()
        return hot * self.mask[response][..., None]

    def head(self, member: int) -> Head:
        """The table as a last layer [V, X N]."""
        return Head(self.logits[member].detach().flatten(0, 1).T.clone())


def _paths(vocabulary: int, length: int, ends: bool) -> Iterator[tuple[int, ...]]:
    """Every response, in order."""
    if not ends:
        yield from product(range(vocabulary), repeat=length)
        return
    for size in range(length):
        yield from ((*path, 0) for path in product(range(1, vocabulary), repeat=size))
    yield from product(range(1, vocabulary), repeat=length)
