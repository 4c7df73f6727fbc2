"""Rows that stay open between turns: what a row has read is kept, and only what is new is read.

Tokens and handles go in, tokens come out; what is behind it may be another engine (`etude.policies.protocols.Engine`).
Nothing is computed before `sample`: rows that were opened and tokens that rows were given since are prefilled there,
all together, so the order in which they came does not matter.

    row opened        its tokens are prefilled, equal ones once for all rows that were opened with them
    row extended      only the tokens behind those that it holds are fed
    row rewound       what is kept of its first tokens stays
    weights changed   all that was kept is dropped, and prefilled again by the weights of now
    memory is short   the rows that were opened last are dropped, and prefilled again when they are sampled from
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from etude.core.draws import Draw
from etude.core.errors import ConfigError
from etude.core.layout import sent
from etude.policies.cache import decoding_cache, feed, rope_positions
from etude.policies.native import decoder
from etude.policies.protocols import Decoder
from etude.policies.sampling import Completion, Decoding, Sampling, decode, worth_dropping
from etude.runtime.memory import available

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

SHARE = 0.25
"""Of the memory that is free when a conversation begins, what it may keep between turns."""
ENOUGH = 1 << 34
"""Bytes that it may keep where nobody knows how much is free."""


@dataclass
class Row:
    """All tokens of a row, and what is kept of them.

    Args:
        fed: how many of the first tokens are kept in the decoder, as its row `place`; -1: none.
        reached: how many were ever fed, by whatever weights.
    """

    tokens: list[int]
    fed: int = 0
    place: int = -1
    reached: int = 0


class Conversation:
    """A policy's rows.

    Args:
        limit: bytes of keys, values and states that are kept between turns; None: a share of what is free. While rows
            are sampled from they take what they take.

    What it does is counted in the policy's `work`: `sampled_tokens`; `prefilled_tokens`, all that were fed without
    having been sampled in the same turn; `prefilled_again`, those of them that had been fed before.
    """

    def __init__(self, policy: LanguagePolicy, limit: int | None = None) -> None:
        self.policy, self._limit = policy, limit
        self._rows: dict[int, Row] = {}
        self._opened = 0
        self._decoder: Decoder | None = None
        self._stamp: object = None

    # Rows

    def open(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """A new row for each prompt; their handles. Raises ConfigError for a prompt without tokens."""
        return [self._add(Row(list(prompt))) for prompt in prompts]

    def extend(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Append tokens to rows: what was observed since they said something."""
        for row, new in zip(rows, tokens, strict=True):
            self._row(row).tokens += new

    def rewind(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """Let rows hold only the first so many of their tokens; what is kept of those stays, where the decoder can.

        Something is appended before they are sampled from.
        """
        found = [self._row(row) for row in rows]
        for row, count in zip(found, counts, strict=True):
            row.tokens, row.reached = row.tokens[:count], min(row.reached, count)
        kept = [row for row in found if row.place >= 0 and row.fed > len(row.tokens)]
        if kept and self._decoder is not None:
            with torch.inference_mode():
                can = self._decoder.rewind([row.place for row in kept], [len(row.tokens) for row in kept])
            for row, whole in zip(kept, can):
                row.place, row.fed = (row.place, len(row.tokens)) if whole else (-1, 0)

    def fork(self, rows: Sequence[int]) -> list[int]:
        """Rows that hold what these hold, and go on by themselves; the history stays one. Their handles."""
        made = [Row(list(self._row(row).tokens)) for row in rows]
        kept = [(new, self._row(row)) for new, row in zip(made, rows) if self._row(row).place >= 0]
        if kept and self._decoder is not None:
            size = self._decoder.size
            with torch.inference_mode():
                self._decoder.fork(torch.tensor([old.place for _, old in kept], device=self.policy.device))
            for i, (new, old) in enumerate(kept):
                new.fed, new.place, new.reached = old.fed, size + i, old.reached
        return [self._add(new) for new in made]

    def close(self, rows: Sequence[int]) -> None:
        """Forget rows."""
        for row in rows:
            self._row(row)
            del self._rows[row]
        if not self._rows:
            self._decoder = None

    def tokens(self, row: int) -> Sequence[int]:
        """All that a row holds: what it was opened with, was given, and said."""
        return self._row(row).tokens

    def _row(self, handle: int) -> Row:
        if handle not in self._rows:
            raise ValueError(f"There is no open row {handle}: it was closed, or is another conversation's.")
        return self._rows[handle]

    def _add(self, row: Row) -> int:
        self._opened += 1
        self._rows[self._opened] = row
        return self._opened

    # Sampling

    @torch.inference_mode()
    def sample(
        self, rows: Sequence[int], sampling: Sampling, draws: Sequence[Draw], begun: Sequence[int] = (),
        last: bool = False,
    ) -> list[Completion]:  # fmt: skip
        """One completion for each row, which holds it afterwards.

        Token t of a turn is drawn with number t of the row's draw, so no row depends on which others there are, or on
        where its turn was interrupted. A row that fills the model's context ends there, whatever room others have.

        Args:
            rows: each of them once.
            draws: one for each row.
            begun: how many tokens of its turn each row ends with; () is none.
            last: nothing follows: the rows are closed, each as soon as it ends.

        Raises: ConfigError for a row that holds no token or leaves no room for one; ValueError for one that is not open
        or is asked for twice.
        """
        if not rows:
            return []
        asked = [self._row(row) for row in rows]
        if len({*rows}) < len(rows):
            raise ValueError("A row was asked for two completions at once: fork it.")
        _check_lengths(asked, self.policy.context)
        try:
            completions = self._sample(asked, sampling, draws, begun, last)
        except BaseException:  # interrupted in the middle of a turn: nothing says which rows were fed
            self._forget()
            raise
        self.policy.work["sampled_tokens"] += sum(len(c.tokens) for c in completions)
        self.policy.emitted.update(hash(tuple(c.tokens)) for c in completions)
        if last:
            self.close(rows)
        else:
            self._hold(asked, completions)
        return completions

    @torch.inference_mode()
    def following(self, rows: Sequence[int], room: int) -> Tensor:
        """What could come after rows: logits [N, V] in their order. Nothing is drawn.

        Something is appended to a row (or to a fork of it) before it is asked again, or sampled from.

        Args:
            rows: each of them once.
            room: most tokens that will be appended to one of them.

        Raises: as `sample` does.
        """
        asked = [self._row(row) for row in rows]
        if len({*rows}) < len(rows):
            raise ValueError("A row was asked for what follows it twice at once: ask once.")
        _check_lengths(asked, self.policy.context)
        try:
            order, _, logits = self._fed(asked, room)
        except BaseException:
            self._forget()
            raise
        assert self._decoder is not None
        self._decoder.widen()
        for row in asked:
            row.fed = row.reached = len(row.tokens)
        self._fit()
        found = torch.empty_like(logits)
        found[self._tensor(order)] = logits
        return found

    def _sample(
        self, asked: list[Row], sampling: Sampling, draws: Sequence[Draw], begun: Sequence[int], last: bool
    ) -> list[Completion]:
        order, hidden, logits = self._fed(asked, sampling.max_tokens)
        assert self._decoder is not None
        lengths = [len(asked[i].tokens) for i in order]
        leaving = last and self._decoder.size == len(asked)
        within, room = sampling.within, sampling.max_tokens
        held = [row.tokens for row in asked]
        reader = None if within is None else within.begin(held, room)
        tilt = None if sampling.tilt is None else sampling.tilt.begin(held, room)
        before = [tokens[len(tokens) - count :] for tokens, count in zip(held, begun, strict=True)] if begun else ()
        rows = Decoding(
            self.policy, sampling, self._decoder, hidden, logits, order, lengths, leaving, reader, tilt, before
        )
        said = decode(rows, draws, begun)
        if leaving:
            self._decoder = None
            return said
        self._decoder.widen()
        if over := [] if last else rows.overrun():
            fed = [len(asked[i].tokens) + len(said[i].tokens) - 1 for i in over]
            self._decoder.rewind([asked[i].place for i in over], fed)
        return said

    def _fed(self, asked: list[Row], room: int) -> tuple[list[int], Tensor, Tensor]:
        """Feed what is new of rows, all others resting; their places in the decoder's order, last states and logits."""
        stamp = self.policy.version, self.policy.loads
        if self._stamp != stamp:
            self._forget()
            self._stamp = stamp
        held = sorted((i for i, row in enumerate(asked) if row.place >= 0), key=lambda i: asked[i].place)
        fresh = [i for i, row in enumerate(asked) if row.place < 0]
        parts = [self._read_on([asked[i] for i in held])] if held else []
        parts += [self._read([asked[i] for i in fresh], room)] if fresh else []
        hidden, logits = (x[0] if len(x) == 1 else torch.cat(x) for x in zip(*parts))
        assert self._decoder is not None
        order = held + fresh
        if fresh and self._decoder.size > len(asked):
            self._decoder.widen()
            self._decoder.narrow(self._tensor([asked[i].place for i in order]))
        return order, hidden, logits

    def _read_on(self, rows: list[Row]) -> tuple[Tensor, Tensor]:
        """Feed what rows were given since; the last states [N, H], and the logits of what follows."""
        assert self._decoder is not None
        open_ = sum(row.place >= 0 for row in self._rows.values())
        if worth_dropping(open_, self._decoder.size, self.policy.device):
            self._compact()
        if len(rows) < self._decoder.size:
            self._decoder.narrow(self._tensor([row.place for row in rows]))
        new = [row.tokens[row.fed :] for row in rows]
        self._count(rows)
        hidden = self._decoder.extend(new, [row.fed for row in rows])
        return hidden, self.policy.head_logits(self.policy.sampler(), hidden)

    def _read(self, rows: list[Row], room: int) -> tuple[Tensor, Tensor]:
        """Prefill rows of which nothing is kept, equal ones once; the last states [N, H], and their logits."""
        policy, model, device = self.policy, self.policy.sampler(), self.policy.device
        distinct, numbers = distinct_prompts([row.tokens for row in rows])
        first = {number: row for number, row in reversed([*zip(numbers, rows)])}
        self._count([first[number] for number in range(len(distinct))])
        owner = self._tensor(numbers)
        counts = [len(p) for p in distinct]
        lengths, width = self._tensor(counts), max(counts)
        config, backbone = model.config.get_text_config(), policy.backbone(model)
        cache = decoding_cache(config, width + room)
        ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in distinct], device=device)
        mask = torch.arange(width, device=device) >= (width - lengths)[:, None]
        seen = None if min(counts) == width else mask
        last = feed(backbone, cache, input_ids=ids, attention_mask=seen, position_ids=rope_positions(mask))[:, -1]
        made, offset = decoder(backbone, config, cache, mask, owner, room), 0
        if self._decoder is None:
            self._decoder = made
        else:
            self._decoder.widen()
            offset = self._decoder.size
            self._decoder.join(made)
        for i, row in enumerate(rows):
            row.place = offset + i
        return last[owner], policy.head_logits(model, last)[owner]

    def _count(self, rows: list[Row]) -> None:
        """Count what is about to be fed."""
        self.policy.work["prefilled_tokens"] += sum(len(row.tokens) - row.fed for row in rows)
        self.policy.work["prefilled_again"] += sum(max(0, row.reached - row.fed) for row in rows)

    # What is kept

    def _hold(self, rows: list[Row], completions: list[Completion]) -> None:
        """After a turn: rows hold what they said, all but the last token of which was fed."""
        for row, completion in zip(rows, completions):
            row.tokens += completion.tokens
            row.fed = row.reached = len(row.tokens) - 1
        self._fit()

    def _fit(self) -> None:
        """Keep no more than the limit."""
        assert self._decoder is not None
        fits = self._decoder.fitting(self.limit)
        if fits < self._decoder.size:
            for row in self._rows.values():
                if row.place >= fits:
                    row.place, row.fed = -1, 0
            self._compact()

    @property
    def limit(self) -> int:
        """Bytes that are kept between turns: a power of two, so that small differences in what is free change none."""
        if self._limit is None:
            free = available() if self.policy.device.type == "cpu" else _free_on(self.policy.device)
            self._limit = ENOUGH if free is None else 1 << max(0, int(SHARE * free).bit_length() - 1)
        return self._limit

    def _compact(self) -> None:
        """Give back what closed and dropped rows took."""
        kept = sorted((row for row in self._rows.values() if row.place >= 0), key=lambda row: row.place)
        if not kept:
            self._decoder = None
        elif self._decoder is not None:
            with torch.inference_mode():
                self._decoder.keep(self._tensor([row.place for row in kept]))
            for i, row in enumerate(kept):
                row.place = i

    def _forget(self) -> None:
        """Keep nothing of any row but its tokens."""
        self._decoder = None
        for row in self._rows.values():
            row.place, row.fed = -1, 0

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return sent(np.array(numbers, np.int64), self.policy.device)


def distinct_prompts(prompts: Sequence[Sequence[int]]) -> tuple[list[tuple[int, ...]], list[int]]:
    """The different prompts in order of appearance, and for each prompt the number of its equal."""
    number: dict[tuple[int, ...], int] = {}
    owner = [number.setdefault(tuple(p), len(number)) for p in prompts]
    return list(number), owner


def _check_lengths(rows: Sequence[Row], context: int) -> None:
    for row in rows:
        if not 0 < len(row.tokens) < context:
            raise ConfigError(
                f"A prompt must have from 1 to {context - 1} tokens, as the model attends to {context}; "
                f"got {len(row.tokens)}."
            )


def _free_on(device: torch.device) -> int | None:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
