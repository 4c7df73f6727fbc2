"""Drawing tokens for a batch of rows, from which finished rows leave.

The recorded log-probabilities are those of the distribution that was really sampled from (after temperature,
top-k and top-p), so they are the behaviour policy's and need no second forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from etude.core.draws import Draw, uniforms
from etude.core.episodes import StopReason

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from etude.policies.language import LanguagePolicy
    from etude.policies.protocols import Decoder

COMPACT_BELOW = 0.75
"""Fraction of rows still going at which finished ones are cut out of the cache: copying is not free."""
BLOCK = 64
"""Tokens of every row for which random numbers are computed at a time."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 leave the distribution whole.

    Where the entropy at temperature 1 is above `fork_entropy` nats, `fork_temperature` takes the place of
    `temperature` if it is given. `entropy` and `hidden` say what else is recorded of every token: the entropy of the
    distribution that it was drawn from, and the last layer's state that the distribution was computed from.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 64
    stop: tuple[str, ...] = ()
    entropy: bool = False
    hidden: bool = False
    fork_temperature: float | None = None
    fork_entropy: float = 0.672

    @property
    def truncates_distribution(self) -> bool:
        """Whether some tokens can never be drawn although the policy gives them probability."""
        return self.top_p < 1 or self.top_k > 0


@dataclass
class Completion:
    """What was sampled after one prompt; lists and `hidden` [n, H] have one entry per token, the end token included."""

    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    stop: StopReason = StopReason.MAX_TOKENS
    hidden: Tensor | None = None


def generate(
    policy: LanguagePolicy, prompts: Sequence[Sequence[int]], sampling: Sampling, draws: Sequence[Draw],
    begun: Sequence[int] = (),
) -> list[Completion]:  # fmt: skip
    """One completion per prompt: a conversation of one turn (`etude.policies.conversation.Conversation.sample`)."""
    from etude.policies.conversation import Conversation

    conversation = Conversation(policy)
    return conversation.sample(conversation.open(prompts), sampling, draws, begun, last=True)


def decode(rows: Decoding, draws: Sequence[Draw], begun: Sequence[int]) -> list[Completion]:
    """One completion for each of the rows, whose next token's logits are known.

    Args:
        draws: one for each row.
        begun: how many tokens of its turn each row ends with; () is none.
    """
    limit = rows.sampling.max_tokens
    numbers = _Numbers(draws, begun or [0] * len(draws), limit, rows.device)
    for step in range(limit):
        tokens, logp, entropy = _draw(rows.logits, rows.sampling, numbers.at(step)[rows.index])
        if rows.record(tokens, logp, entropy) or step + 1 == limit:
            break
        rows.advance(tokens)
    return rows.completions()


class _Numbers:
    """The uniform random numbers of the rows that decoding began with, a block of tokens at a time."""

    def __init__(self, draws: Sequence[Draw], begun: Sequence[int], limit: int, device: torch.device) -> None:
        self.limit = limit
        self.keys = torch.tensor([draw.key for draw in draws], device=device)
        self.first = torch.tensor(begun, device=device)

    def at(self, step: int) -> Tensor:
        """[B] numbers of the rows' tokens at this step; steps are asked for in order."""
        if step % BLOCK == 0:
            self.block = uniforms(self.keys, self.first + step, min(BLOCK, self.limit - step))
        return self.block[step % BLOCK]


def _draw(logits: Tensor, sampling: Sampling, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Tokens [N], their log-probabilities [N] and, if asked, entropies [N] of the distribution sampled from."""
    if sampling.temperature == 0:
        tokens = logits.argmax(-1)
        return tokens, torch.zeros_like(logits[:, 0]), torch.zeros_like(logits[:, 0]) if sampling.entropy else None
    if sampling.fork_temperature is not None:
        logits = logits / _temperatures(logits, sampling, sampling.fork_temperature)
    elif sampling.temperature != 1:
        logits = logits / sampling.temperature
    logp = (truncate(logits, sampling) if sampling.truncates_distribution else logits).log_softmax(-1)
    probs = logp.exp()
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    tokens = torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True)
    tokens = tokens.clamp_(max=logits.shape[-1] - 1)
    entropy = -(probs * logp.nan_to_num(neginf=0)).sum(-1) if sampling.entropy else None
    return tokens[:, 0], logp.gather(1, tokens)[:, 0], entropy


def _temperatures(logits: Tensor, sampling: Sampling, at_forks: float) -> Tensor:
    """[N, 1] temperature of each row: another one where the policy is undecided."""
    logp = logits.log_softmax(-1)
    entropy = -(logp.exp() * logp.nan_to_num(neginf=0)).sum(-1, keepdim=True)
    return torch.full_like(entropy, sampling.temperature).masked_fill(entropy > sampling.fork_entropy, at_forks)


def truncate(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits with everything outside top-k, then outside the smallest set of mass top-p, at minus infinity."""
    if 0 < sampling.top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(sampling.top_k, dim=-1).values[:, -1:], -torch.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(-1, descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        drop = (before >= sampling.top_p).scatter(1, order, before >= sampling.top_p)
        logits = logits.masked_fill(drop, -torch.inf)
    return logits


class Decoding:
    """The rows that are still being decoded: their decoder, positions, and the logits of their next token.

    Args:
        hidden, logits: [N, H] and [N, V] after the last token of each row that the decoder feeds.
        index: [N] the place of each of these rows among the completions.
        lengths: [N] tokens that they hold.
        leaving: rows that end are dropped; else they rest in the decoder.
    """

    def __init__(
        self, policy: LanguagePolicy, sampling: Sampling, rows: Decoder, hidden: Tensor, logits: Tensor, index: Tensor,
        lengths: Tensor, leaving: bool,
    ) -> None:  # fmt: skip
        self.policy, self.sampling, self.device = policy, sampling, policy.device
        self.model, self.decoder, self.leaving = policy.sampler(), rows, leaving
        self.stopper = _Stopper(policy.tokenizer, policy.end_ids, sampling.stop)
        self.hidden, self.logits, self.index, self.position = hidden, logits, index, lengths
        self.alive = torch.ones(len(index), dtype=torch.bool, device=self.device)
        self.room = torch.empty_like(lengths).index_copy_(0, index, policy.context - lengths)
        self.least_room = int(self.room.min())
        self.steps: list[tuple[Tensor, Tensor, Tensor, Tensor | None]] = []
        self.states: list[Tensor] = []
        self.stops: dict[int, StopReason] = {}

    def record(self, tokens: Tensor, logp: Tensor, entropy: Tensor | None) -> bool:
        """Keep what was drawn by rows still alive; True when none is left."""
        kept = self.alive
        self.steps.append((self.index[kept], tokens[kept], logp[kept], None if entropy is None else entropy[kept]))
        if self.sampling.hidden:
            self.states.append(self.hidden[kept])
        for row in self.stopper.ended(self.index, tokens, kept, self.stops):
            self.alive[row] = False
        if len(self.steps) >= self.least_room:
            self._end_full()
        return not bool(self.alive.any())

    def _end_full(self) -> None:
        """Rows whose context is full end here."""
        full = self.alive & (self.room[self.index] <= len(self.steps))
        self.stops.update(dict.fromkeys(self.index[full].tolist(), StopReason.CONTEXT_OVERFLOW))
        self.alive &= ~full

    def advance(self, tokens: Tensor) -> None:
        """Feed the drawn tokens and compute the next logits, dropping finished rows when it pays.

        Rows that go on in a later turn rest at once: they must not take up what is drawn after their end.
        """
        alive = int(self.alive.sum())
        if alive <= COMPACT_BELOW * len(self.index) or (alive < len(self.index) and not self.leaving):
            keep = self.alive.nonzero()[:, 0]
            if self.leaving:
                self.decoder.keep(keep)
            else:
                self.decoder.narrow(keep)
            self.index, self.position, tokens = self.index[keep], self.position[keep], tokens[keep]
            self.alive = self.alive[keep]
        self.hidden = self.decoder(tokens, self.position)
        self.logits = self.policy.head_logits(self.model, self.hidden)
        self.position = (self.position + 1).clamp_(max=self.policy.context - 1)  # finished rows stay inside, too

    def completions(self) -> list[Completion]:
        """Everything that was drawn, row by row."""
        count = 1 + max(int(index.max()) for index, *_ in self.steps)
        done = [Completion() for _ in range(count)]
        for index, tokens, logp, entropy in self.steps:
            extra = [None] * len(index) if entropy is None else entropy.tolist()
            for i, token, lp, ent in zip(index.tolist(), tokens.tolist(), logp.tolist(), extra):
                done[i].tokens.append(token)
                done[i].logp.append(lp)
                if ent is not None:
                    done[i].entropy.append(ent)
        for i, stop in self.stops.items():
            done[i].stop = stop
        if self.states:
            rows = torch.cat([index for index, *_ in self.steps])
            states = torch.cat(self.states)[rows.argsort(stable=True)]
            for completion, hidden in zip(done, states.split([len(c.tokens) for c in done])):
                completion.hidden = hidden
        return done


class _Stopper:
    """Says which rows just ended: by an end token, or by a stop string in the last few tokens of their text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_ids: Sequence[int], strings: tuple[str, ...]) -> None:
        self.tokenizer, self.strings = tokenizer, strings
        self.end = torch.tensor(list(end_ids))
        self.tails: dict[int, list[int]] = {}
        self.reach = max((len(s.encode()) for s in strings), default=0)

    def ended(self, index: Tensor, tokens: Tensor, alive: Tensor, stops: dict[int, StopReason]) -> list[int]:
        """Positions (in the current batch) of rows that ended; their reasons go into `stops` by row."""
        hit = torch.isin(tokens, self.end.to(tokens.device)) & alive
        rows = hit.nonzero()[:, 0].tolist()
        for row in rows:
            stops[int(index[row])] = StopReason.END_OF_TEXT
        if self.strings:
            rows += self._by_string(index.tolist(), tokens.tolist(), (alive & ~hit).tolist(), stops)
        return rows

    def _by_string(
        self, index: list[int], tokens: list[int], alive: list[bool], stops: dict[int, StopReason]
    ) -> list[int]:
        completions = []
        for row, (i, token, going) in enumerate(zip(index, tokens, alive)):
            if not going:
                continue
            tail = [*self.tails.get(i, []), token][-self.reach - 1 :]  # a token is at least one byte
            self.tails[i] = tail
            text = self.tokenizer.decode(tail)
            if any(s in text for s in self.strings):
                stops[i] = StopReason.STOP_STRING
                completions.append(row)
        return completions
