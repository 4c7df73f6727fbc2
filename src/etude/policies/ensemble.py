"""Several models of one run, by name: each its own weights, over one base where adapters are trained."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from etude.core.errors import ConfigError
from etude.policies.language import LanguagePolicy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAMPLE = "Two players, 12 turns:\n<answer>ab</answer> é"
"""A text that tokenizers of one vocabulary must write alike."""


def beside(first: LanguagePolicy, name: str, start: str = "") -> LanguagePolicy:
    """A second policy, to be trained beside the first: a copy of it, or what `start` names.

    A copy of a policy whose adapter is trained is another adapter; both share the tensors of the base.

    Raises: ConfigError for one of other tokens than the first's.
    """
    policy = LanguagePolicy.load(start, device=str(first.device), dtype=_dtype(first)) if start else twin(first)
    check_alike(first.tokenizer, policy.tokenizer, name, start)
    return policy


def twin(policy: LanguagePolicy) -> LanguagePolicy:
    """A copy that shares what neither of them trains."""
    shared = [t for t in policy.model.parameters() if not t.requires_grad] if policy.has_adapter else []
    memo: dict[int, object] = {id(t): t for t in shared}
    model = copy.deepcopy(policy.model, memo)
    other = LanguagePolicy(
        model, policy.tokenizer, share_prompts=policy.share_prompts, autocast=policy.autocast, shadow=policy.shadow
    )
    other.base = policy.base
    if policy.value_head is not None:
        other.add_value_head().load_state_dict(policy.value_head.state_dict())
    return other


def check_alike(mine: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase, name: str, start: str) -> None:
    """Raise ConfigError unless both write texts in the same tokens."""
    if mine is other:
        return
    same = mine.get_vocab() == other.get_vocab() and mine.encode(SAMPLE) == other.encode(SAMPLE)
    if not same or mine.eos_token_id != other.eos_token_id:
        raise ConfigError(
            f"The model {name!r} ({start}) has other tokens than the run's own ({len(other.get_vocab())} and "
            f"{len(mine.get_vocab())} words), and players of one episode must share theirs: choose a start with the "
            "same tokenizer."
        )


def _dtype(policy: LanguagePolicy) -> str:
    dtype: torch.dtype = policy.model.dtype
    return str(dtype).removeprefix("torch.")
