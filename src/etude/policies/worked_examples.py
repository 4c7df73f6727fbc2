"""Worked examples as rows of tokens, and the gradient of a model that learns them from scratch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from etude.core.episodes import Segment

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import LlamaForCausalLM, PreTrainedTokenizerBase


class Row(NamedTuple):
    """One training example: token ids, and for each whether the model is trained to say it."""

    tokens: list[int]
    learned: list[bool]


def rows(tokenizer: PreTrainedTokenizerBase, shown: Sequence[list[Segment]]) -> list[Row]:
    """Examples as tokens; what the assistant says is learned and closed by the end token."""
    ids = iter(tokenizer([s.text for example in shown for s in example])["input_ids"])
    examples = []
    for example in shown:
        row = Row([], [])
        for segment in example:
            mine = segment.role == "assistant"
            spoken = next(ids) + [tokenizer.eos_token_id] * mine
            row.tokens.extend(spoken)
            row.learned.extend([mine] * len(spoken))
        examples.append(row)
    return examples


def accumulate(model: LlamaForCausalLM, chosen: Sequence[Row], cuts: Sequence[float] = (0.75,)) -> float:
    """Add the gradient of the mean loss per learned token.

    Args:
        model: what learns.
        chosen: the rows.
        cuts: shares at which the rows, from short to long, are divided into parts that are padded apart; that changes
            nothing but the order of sums.
    """
    import torch.nn.functional as F

    ordered = sorted(chosen, key=lambda r: len(r.tokens))
    bounds = [0, *(int(len(ordered) * cut) for cut in cuts), len(ordered)]
    total, count = 0.0, sum(sum(r.learned[1:]) for r in ordered)
    for first, end in pairwise(bounds):
        if first == end:
            continue
        tokens, learned = collate(ordered[first:end])
        hidden = model.model(input_ids=tokens).last_hidden_state[:, :-1][learned[:, 1:]]
        loss = F.cross_entropy(model.lm_head(hidden), tokens[:, 1:][learned[:, 1:]], reduction="sum") / count
        loss.backward()
        total += loss.item()
    return total


def collate(data: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Tokens and learned, both [B, T], padded on the right (attention is causal: no mask is needed)."""
    import torch

    width = max(len(r.tokens) for r in data)
    tokens = torch.tensor([r.tokens + [0] * (width - len(r.tokens)) for r in data])
    learned = torch.tensor([r.learned + [False] * (width - len(r.learned)) for r in data])
    return tokens, learned
