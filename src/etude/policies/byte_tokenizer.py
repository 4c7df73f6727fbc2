"""The tokenizer of `tiny`: bytes, plus a few merges for the words its tasks are written with.

Every text is tokens and every byte has one, so nothing is ever unknown and decoding undoes encoding exactly.
Digits stay apart (`42` is two tokens); nothing is added at the start of a text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, END = "<|pad|>", "<|end|>"
WORDS = ("))", "yes", "no", "invalid", "ask ", "say ", "who?")
"""Single tokens besides the bytes and, for each digit d, `fd`, `fd(` and `fd:`."""

NODES = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdeghijklmopqrtuvxz!#$%&*+-/;<=>@^_~"
"""Printable characters to name the nodes of a graph, of which no two neighbours are merged into one token."""
VERTICES = "abcdefghijklmopqrtuvxzABC"
"""The same for vertices of chains, which need letters."""


def merges() -> list[tuple[str, str]]:
    """The merge list, most urgent first: each word is built from its first byte onwards."""
    words = [f"f{d}{mark}" for mark in ("", "(", ":") for d in range(10)] + list(WORDS)
    pairs = [(_visible(w[:i]), _visible(w[i])) for w in words for i in range(1, len(w))]
    return list(dict.fromkeys(pairs))


def build_tokenizer(max_length: int) -> PreTrainedTokenizerFast:
    """The tokenizer, ready to be saved beside a model that has `max_length` positions."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary: dict[str, int] = {}
    pairs = merges()
    for token in [PAD, END, *_byte_marks(), *(a + b for a, b in pairs)]:
        vocabulary.setdefault(token, len(vocabulary))
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        padding_side="left",
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def _byte_marks() -> list[str]:
    """GPT-2's table: printable bytes stand for themselves, the others for code points from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(hidden)) for b in range(256)]


def _visible(text: str) -> str:
    """ASCII text in the table's stand-ins."""
    marks = _byte_marks()
    return "".join(marks[ord(c)] for c in text)
