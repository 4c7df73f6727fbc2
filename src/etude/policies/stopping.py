"""Where completions end, found on the host in tokens that have come from the device.

A stop string can only be complete after a token that holds its end, so a table over the vocabulary says which tokens
do, and text is decoded after those alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

END, PERHAPS = 1, 2
"""What a table says of tokens that end a row, and of those after which a stop string may be complete."""
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_tables: WeakKeyDictionary[PreTrainedTokenizerBase, dict[object, np.ndarray]] = WeakKeyDictionary()


class Stopper:
    """Finds the ends of rows: an end token, or a stop string in the last few tokens of their text.

    Args:
        vocabulary: how many tokens there are to draw from.
        before: what each row's turn was begun with, which a stop string may begin in.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, end_ids: Iterable[int], strings: tuple[str, ...], vocabulary: int,
        before: Sequence[Sequence[int]] = (),
    ) -> None:  # fmt: skip
        self.tokenizer, self.strings = tokenizer, strings
        self.reach = max((len(s.encode()) for s in strings), default=0)
        self.table = np.zeros(vocabulary, np.uint8)
        if strings:
            self.table[:] = table(tokenizer, strings, vocabulary)
        self.table[[i for i in end_ids if i < vocabulary]] = END
        self.before = [[*tokens[-self.reach :]] for tokens in before] if self.reach else []
        self.stopped: set[int] = set()

    def look(self, tokens: np.ndarray, ends: np.ndarray, rows: np.ndarray, begun: int, taken: int) -> None:
        """Shorten `ends` of rows that end among their tokens `begun` to `taken`; those with a stop string: `stopped`.

        Shapes: tokens [N, T], ends [N], rows [B]: numbers of those that were drawn for.
        """
        kinds = self.table[tokens[rows, begun:taken]]
        for i, at in zip(*(x.tolist() for x in kinds.nonzero())):  # of each row in order
            row, length = int(rows[i]), begun + at + 1
            if length > ends[row]:
                continue
            if kinds[i, at] == END:
                ends[row] = length
            elif self._complete(row, tokens[row, max(0, length - self.reach - 1) : length].tolist()):  # a byte each
                ends[row] = length
                self.stopped.add(row)

    def _complete(self, row: int, tail: list[int]) -> bool:
        """Whether a stop string is in the last tokens of a row, and not all of it in what its turn was begun with."""
        before = self.before[row] if self.before and len(tail) <= self.reach else []
        text, old = self.tokenizer.decode([*before, *tail]), self.tokenizer.decode(before) if before else ""
        return any(text.count(s) > old.count(s) for s in self.strings)


def table(tokenizer: PreTrainedTokenizerBase, strings: tuple[str, ...], vocabulary: int) -> np.ndarray:
    """[V] `PERHAPS` for the tokens after which one of the strings may be complete, else 0; made once and kept.

    A token's text is looked at as it stands alone and after another one, as some tokenizers write it differently.
    Of some nothing is known: pieces of a character, and all where decoding tidies spaces away.
    """
    known = _tables.setdefault(tokenizer, {})
    key = strings, vocabulary, len(tokenizer)
    if key not in known:
        found = known[key] = np.full(vocabulary, PERHAPS, np.uint8)
        if not getattr(tokenizer, "clean_up_tokenization_spaces", False):
            count = min(vocabulary, len(tokenizer))
            before = tokenizer.encode("a", add_special_tokens=False)
            start = str(tokenizer.decode(before))
            alone = tokenizer.batch_decode([[i] for i in range(count)])
            after = tokenizer.batch_decode([[*before, i] for i in range(count)])
            whole = all(s.isascii() for s in strings)  # a piece of a character is not in them
            for i, texts in enumerate(zip(alone, after)):
                if texts[1].startswith(start) and (whole or UNKNOWN not in texts[0] + texts[1]):
                    found[i] = PERHAPS * any(
                        _may_end(text, s) for s in strings for text in (texts[0], texts[1][len(start) :])
                    )
    return known[key]


def _may_end(text: str, string: str) -> bool:
    """Whether the string may be complete after this text: it is inside, or its end is where the text begins."""
    return string in text or any(text.startswith(string[i:]) for i in range(len(string)))
