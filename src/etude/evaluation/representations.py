"""What checkpoints make of a text, layer by layer: hidden states at the last token and how similar they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

BATCH = 256
"""Texts passed through the model at a time."""


@torch.no_grad()
def last_states(policy: LanguagePolicy, texts: Sequence[str]) -> Tensor:
    """Hidden states [L + 1, N, H] at the last token of each text: embeddings, then after every layer.

    (Models of the Llama family give the last layer's after their final norm.)

    """
    last = []
    for start in range(0, len(texts), BATCH):
        rows = [policy.encode(t) for t in texts[start : start + BATCH]]
        ends = torch.tensor([len(r) - 1 for r in rows])
        width = int(ends.max()) + 1
        tokens = torch.tensor([r + [policy.tokenizer.pad_token_id] * (width - len(r)) for r in rows])
        mask = torch.arange(width) <= ends[:, None]
        seen = {"input_ids": tokens.to(policy.device), "attention_mask": mask.to(policy.device)}
        states = policy.model(**seen, output_hidden_states=True).hidden_states
        last.append(torch.stack([s[torch.arange(len(rows)), ends].float().cpu() for s in states]))
    return torch.cat(last, 1)


def similarity(one: Tensor, other: Tensor) -> Tensor:
    """[L + 1] mean cosine similarity of states [L + 1, N, H], layer by layer."""
    return torch.cosine_similarity(one.double(), other.double(), dim=-1).mean(-1)


def between_models(one: LanguagePolicy, other: LanguagePolicy, texts: Sequence[str]) -> Tensor:
    """[L + 1] similarity of what two checkpoints make of the same texts."""
    return similarity(last_states(one, texts), last_states(other, texts))


def between_forms(policy: LanguagePolicy, texts: Sequence[str], others: Sequence[str]) -> Tensor:
    """[L + 1] similarity of what one checkpoint makes of two forms of the same things, text i and other i."""
    return similarity(last_states(policy, texts), last_states(policy, others))
