"""Drawing tokens for a batch of rows, from which finished rows leave.

The recorded log-probabilities are those of the distribution that was really sampled from (after temperature,
top-k and top-p), so they are the behaviour policy's and need no second forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from etude.core.draws import Draw, uniforms
from etude.core.episodes import StopReason
from etude.core.layout import sent
from etude.policies.scoring import tilted
from etude.policies.shared import RECORDED
from etude.policies.stopping import END, Stopper

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy
    from etude.policies.protocols import Decoder, Reader, Tilt, TiltReader, Within

COMPACT_BELOW, RARELY_BELOW, FEW = 0.75, 0.5, 32
"""Fraction of rows still going at which finished ones are cut out of the cache: copying is not free. Where steps are
recorded they are recorded anew then; there it is the second one, and as few as the third take no longer than one."""
SELDOM, EVERY = 16, {"cpu": 1}
"""Steps after which the host looks at what was drawn, and those of devices where looking waits for nothing."""
SPAN, WHOLE, SUMS = 2048, 8192, {"cpu": torch.float64}
"""Numbers of a distribution that are summed together where it has more than so many, and in what if not in float32."""
BELOW_ONE = 1 - 2.0**-53
BLOCK = 64
"""Tokens of every row for which random numbers are computed at a time."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 leave the distribution whole.

    Where the entropy at temperature 1 is above `fork_entropy` nats, `fork_temperature` takes the place of
    `temperature` if it is given. `entropy` and `hidden` say what else is recorded of every token: the entropy of the
    distribution that it was drawn from, and the last layer's state that the distribution was computed from.
    `whole_turns` counts what a turn was begun with among its `max_tokens`. `within` says which tokens may come next:
    the others have no probability, and the log-probabilities of those that are drawn are recorded so. `tilt` says what
    is added to the logits, before anything divides or truncates them; log-probabilities are recorded so, and with
    `tilts` what was added is, too.
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
    whole_turns: bool = False
    within: Within | None = None
    tilt: Tilt | None = None
    tilts: bool = False

    @property
    def truncates_distribution(self) -> bool:
        """Whether some tokens can never be drawn although the policy gives them probability."""
        return self.top_p < 1 or self.top_k > 0


@dataclass
class Completion:
    """What was sampled after one prompt; lists and tensors have one entry per token, the end token included.

    `hidden` [n, H], and `allowed` [n, V]: the tokens that could be drawn, where not all of them could; `tilts` [n, V]:
    what was added to the logits, if it is recorded. `voices`: which of a policy's voices said each token, where it has
    several; `logp` is then that of voice and token together.
    """

    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    stop: StopReason = StopReason.MAX_TOKENS
    hidden: Tensor | None = None
    allowed: Tensor | None = None
    voices: list[int] = field(default_factory=list)
    tilts: Tensor | None = None


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
    limit, begun = rows.sampling.max_tokens, begun or [0] * len(draws)
    if rows.sampling.whole_turns:
        rows.ends = np.minimum(rows.ends, limit - np.array(begun))
    numbers = _Numbers(draws, begun, limit, rows.device)
    for step in range(limit):
        tokens, logp, entropy = _draw(rows.allowed_logits(), rows.sampling, numbers.at(step)[rows.index])
        tokens = rows.worded(tokens)
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
    tokens = _passed(probs, uniform)
    entropy = -(probs * logp.nan_to_num(neginf=0)).sum(-1) if sampling.entropy else None
    return tokens[:, 0], logp.gather(1, tokens)[:, 0], entropy


def _passed(probs: Tensor, share: Tensor) -> Tensor:
    """[N, 1] places where the sum of `probs` [N, V] so far passes these shares [N] of the whole, float64 in [0, 1).

    Of more than `WHOLE` numbers the sums of spans are searched first, then one span: cumulative sums in float64 of all
    would be twice as large as the numbers. No place with probability 0 is ever found.
    """
    count = probs.shape[1]
    if count <= WHOLE:
        cumulative = probs.cumsum(-1, dtype=torch.float64)
        found = torch.searchsorted(cumulative, (share * cumulative[:, -1])[:, None], right=True)
        return found.clamp_(max=count - 1)
    whole, dtype = count // SPAN * SPAN, torch.promote_types(probs.dtype, SUMS.get(probs.device.type, torch.float32))
    sums = probs[:, :whole].unflatten(1, (-1, SPAN)).sum(-1, dtype=dtype).double()
    if whole < count:
        sums = torch.cat([sums, probs[:, whole:].sum(-1, dtype=dtype).double()[:, None]], 1)
    cumulative = sums.cumsum(-1)
    target = share[:, None] * cumulative[:, -1:]
    span = torch.searchsorted(cumulative, target, right=True).clamp_(max=sums.shape[1] - 1)
    places = span * SPAN + torch.arange(SPAN, device=probs.device)
    inside = probs.gather(1, places.clamp(max=count - 1)).masked_fill_(places >= count, 0)
    mass = sums.gather(1, span)
    rest = ((target - cumulative.gather(1, span) + mass) / mass).clamp_(0, BELOW_ONE)
    return span * SPAN + _passed(inside, rest[:, 0])


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

    What is drawn stays on the device. The host looks at it every `every` steps: then it knows which rows have ended,
    and they may leave, or rest. What a row draws behind its end is cut off, and what it was fed of that it must forget
    before it goes on (`overrun`).

    Args:
        hidden, logits: [N, H] and [N, V] after the last token of each row that the decoder feeds.
        order: [N] the place of each of these rows among the completions.
        lengths: [N] tokens that they hold.
        leaving: rows that end are dropped; else they rest in the decoder.
        reader: who reads along and says which tokens may come next.
        tilt: who reads along and says what is added to the logits.
        begun: what the turn of each completion was begun with; () is nothing.
    """

    def __init__(
        self, policy: LanguagePolicy, sampling: Sampling, rows: Decoder, hidden: Tensor, logits: Tensor,
        order: Sequence[int], lengths: Sequence[int], leaving: bool, reader: Reader | None = None,
        tilt: TiltReader | None = None, begun: Sequence[Sequence[int]] = (),
    ) -> None:  # fmt: skip
        self.policy, self.sampling, self.device = policy, sampling, policy.device
        self.model, self.decoder, self.leaving = policy.sampler(), rows, leaving
        self.words = logits.shape[-1] // policy.voices
        self.stopper = Stopper(policy.tokenizer, policy.end_ids, sampling.stop, self.words, begun)
        self.every = EVERY.get(self.device.type, SELDOM) if leaving or rows.rewinds else 1
        self.rows = np.array(order, np.int64)
        self.hidden, self.logits = hidden, logits
        self.index, self.position = sent(self.rows, self.device), sent(np.array(lengths, np.int64), self.device)
        self.room = np.empty_like(self.rows)
        self.room[self.rows] = policy.context - np.array(lengths)
        self.ends = self.room.clip(max=sampling.max_tokens)
        self.tokens = np.empty((len(order), sampling.max_tokens), np.int64)
        self.steps: list[tuple[np.ndarray, Tensor, Tensor, Tensor | None]] = []
        self.states: list[Tensor] = []
        self.reader, self.sets, self.voices = reader, list[Tensor](), list[Tensor]()
        self.tilt, self.added = tilt, list[Tensor]()
        self.seen = 0

    def allowed_logits(self) -> Tensor:
        """[N, V] logits of the next tokens with their tilt, those that may not come at minus infinity.

        Asked once for each of them.
        """
        logits, going = self.logits, self._going()
        if self.tilt is not None:
            added = torch.zeros_like(logits[:, : self.words])
            added[sent(going.nonzero()[0], self.device)] = self.tilt.tilts(self.rows[going]).to(added)
            logits = tilted(logits, added, self.policy.voices)
            if self.sampling.tilts:
                self.added.append(added)
        if self.reader is None:
            return logits
        allowed = torch.ones_like(logits[:, : self.words], dtype=torch.bool)
        allowed[sent(going.nonzero()[0], self.device)] = self.reader.allowed(self.rows[going])
        self.sets.append(allowed)
        return logits.masked_fill(~allowed.repeat(1, self.policy.voices), -torch.inf)

    def worded(self, drawn: Tensor) -> Tensor:
        """The tokens of what was drawn; of a policy with several voices it is kept which of them said each."""
        if self.policy.voices == 1:
            return drawn
        self.voices.append(drawn // self.words)
        return drawn % self.words

    def _going(self) -> np.ndarray:
        """[B] True on rows that are not known to have ended."""
        return self.ends[self.rows] > len(self.steps)

    def record(self, tokens: Tensor, logp: Tensor, entropy: Tensor | None) -> bool:
        """Keep what was drawn; True when no row is known to go on."""
        self.steps.append((self.rows, tokens, logp, entropy))
        if self.sampling.hidden:
            self.states.append(self.hidden)
        taken = len(self.steps)
        if taken % self.every == 0 or taken == self.tokens.shape[1]:
            self._look(taken)
        return not bool((self.ends > taken).any())

    def _look(self, taken: int) -> None:
        """Fetch the tokens that were drawn since the last time, and find out which rows they end."""
        for start, rows, alike in _alike(self.steps, self.seen):
            said = torch.stack([tokens for _, tokens, *_ in alike], 1).cpu().numpy()
            self.tokens[rows, start : start + len(alike)] = said
            self.stopper.look(self.tokens, self.ends, rows, start, start + len(alike))
        self.seen = taken

    def advance(self, tokens: Tensor) -> None:
        """Feed the drawn tokens and compute the next logits, dropping finished rows when it pays.

        Rows that go on in a later turn rest as soon as it is known that they ended.
        """
        going = self._going()
        for reader in (self.reader, self.tilt):
            if reader is not None:
                reader.said(self.rows[going], tokens[sent(going.nonzero()[0], self.device)])
        alive = int(going.sum())
        if worth_dropping(alive, len(going), self.device) or (alive < len(going) and not self.leaving):
            kept = going.nonzero()[0]
            keep = sent(kept, self.device)
            if self.leaving:
                self.decoder.keep(keep)
            else:
                self.decoder.narrow(keep)
            self.index, self.position, tokens = self.index[keep], self.position[keep], tokens[keep]
            self.rows = self.rows[kept]
        self.hidden = self.decoder(tokens, self.position)
        self.logits = self.policy.head_logits(self.model, self.hidden)
        self.position = (self.position + 1).clamp_(max=self.policy.context - 1)  # finished rows stay inside, too

    def overrun(self) -> list[int]:
        """Places among the completions of the rows that were fed more than what they said, but its last token."""
        drawn = np.bincount(np.concatenate([rows for rows, *_ in self.steps]), minlength=len(self.ends))
        return [int(row) for row in (drawn > self.ends).nonzero()[0]]

    def completions(self) -> list[Completion]:
        """Everything that was drawn, row by row."""
        self._look(len(self.steps))
        rows = np.concatenate([rows for rows, *_ in self.steps])
        columns = np.repeat(np.arange(len(self.steps)), [len(rows) for rows, *_ in self.steps])
        place = np.empty_like(self.tokens)  # of each token among all that were drawn
        place[rows, columns] = np.arange(len(rows))
        kept = [torch.cat(x) for x in zip(*(step[2:] for step in self.steps)) if x[0] is not None]
        found = torch.stack(kept).cpu().numpy()
        done = []
        for row, end in enumerate(self.ends.tolist()):
            logp, *entropy = found[:, place[row, :end]].tolist()
            surprise = entropy[0] if entropy else []
            done.append(Completion(self.tokens[row, :end].tolist(), logp, surprise, self._why(row, end)))
        order = np.concatenate([place[row, :end] for row, end in enumerate(self.ends)])
        for completion, hidden in zip(done, self._by_row(self.states, order)):
            completion.hidden = hidden
        for completion, allowed in zip(done, self._by_row(self.sets, order)):
            completion.allowed = allowed
        for completion, voices in zip(done, self._by_row(self.voices, order)):
            completion.voices = voices.tolist()
        for completion, tilts in zip(done, self._by_row(self.added, order)):
            completion.tilts = tilts
        return done

    def _by_row(self, kept: Sequence[Tensor], order: np.ndarray) -> Sequence[Tensor]:
        """What was kept of every drawn token, for each row those up to its end; `order`: their places."""
        return torch.cat([*kept])[sent(order, self.device)].split(self.ends.tolist()) if kept else ()

    def _why(self, row: int, end: int) -> StopReason:
        """Why a row ended after so many tokens."""
        if row in self.stopper.stopped:
            return StopReason.STOP_STRING
        if self.stopper.table[self.tokens[row, end - 1]] == END:
            return StopReason.END_OF_TEXT
        return StopReason.CONTEXT_OVERFLOW if end == self.room[row] else StopReason.MAX_TOKENS


def worth_dropping(alive: int, there: int, device: torch.device) -> bool:
    """Whether the rows that have ended, of so many that are there, are to be cut out of the cache."""
    if device.type in RECORDED:
        return alive <= RARELY_BELOW * there and there > FEW
    return alive <= COMPACT_BELOW * there


def _alike(
    steps: Sequence[tuple[np.ndarray, Tensor, Tensor, Tensor | None]], seen: int
) -> Iterator[tuple[int, np.ndarray, Sequence[tuple[np.ndarray, Tensor, Tensor, Tensor | None]]]]:
    """Steps from number `seen` on in runs of the same rows: the first one's number, the rows, the steps."""
    start = seen
    for stop in range(seen + 1, len(steps) + 1):
        if stop == len(steps) or steps[stop][0] is not steps[start][0]:
            yield start, steps[start][0], steps[start:stop]
            start = stop
