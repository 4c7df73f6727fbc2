"""What a shipped base model is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.episodes import Segment

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class Base:
    """A base model: what it is shown, how it learns that, and what is said about it.

    Args:
        id: its name.
        tokenizer: makes its tokenizer, for so many positions.
        examples: the worked examples under a seed, in order; the second argument multiplies how many there are.
        scores: what was measured on the weights in a folder, a row of the table each.
        columns: names of what is said of a row.
        cells: what is said of it.
        card: the README.md beside its weights; in braces `parameters`, `bytes`, `seed`, `steps`, `seconds`, `loss`,
            `rows` and `remark`.
        remark: what else the scores say, as sentences.
        layers: how many it has, of four heads and 128 numbers.
        spread: standard deviation of its first weights. Where what is read has to be said again, a larger one learns
            faster: on clean games of api-world 120 steps of 32 come to 1.000 of the tokens with 0.08, 0.912 with 0.02.
        steps: optimizer steps.
        batch: examples a step.
        cuts: where the examples of a step, from short to long, are divided into parts that are padded apart.
    """

    id: str
    tokenizer: Callable[[int], PreTrainedTokenizerFast]
    examples: Callable[[int, float], Iterator[list[Segment]]]
    scores: Callable[[Path], Mapping[str, Any]]
    columns: tuple[str, ...]
    cells: Callable[[Any], Sequence[str]]
    card: str
    remark: Callable[[Mapping[str, Any]], str] = lambda scores: ""
    layers: int = 3
    spread: float = 0.02
    steps: int = 2500
    batch: int = 128
    cuts: tuple[float, ...] = (0.75,)
