"""What a model must be able to do before anything is trained: asked once, and answered in a sentence if it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from etude.core.errors import ConfigError
from etude.policies.cache import CachedDecoder, decoding_cache, feed, recurrent, rope_positions
from etude.policies.loading import READABLE_TYPE
from etude.policies.native import TOLERANCE
from etude.policies.protocols import embedded

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from etude.policies.language import LanguagePolicy
    from etude.policies.protocols import Backbone

PROBE = ((5, 3, 4), (1, 2, 3, 4, 0, 2))
"""Prompts of two lengths, the shorter of which is padded."""
NEXT = ((4, 1, 2), (3, 5, 0))
"""Two tokens more for three rows: one of the first prompt, two of the second."""


@torch.no_grad()
def check_model(policy: LanguagePolicy, causal: PreTrainedModel) -> None:
    """Raise ConfigError if the tokenizer does not fit, a weight is not a number, or the model cannot be run here."""
    _check_tokenizer(policy.tokenizer, causal)
    _check_weights(causal)
    _check_head(policy, causal)
    _check_decoding(policy, causal)


def _check_tokenizer(tokenizer: PreTrainedTokenizerBase, causal: PreTrainedModel) -> None:
    """Added tokens outside the embedding harm nobody until a text uses one; `check_tokens` says so then."""
    rows = embedded(causal)
    used = [tokenizer.vocab_size - 1, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id]
    check_tokens([t for t in used if t is not None], rows)


def check_text(text: str, tokens: Sequence[int], policy: LanguagePolicy) -> None:
    """Raise ConfigError for a text that the policy's model does not embed; `tokens` are its own."""
    config = policy.config
    if config.model_type == READABLE_TYPE and policy.tokenizer.unk_token_id in tokens:
        raise ConfigError(
            f"{text!r} is not written in the {config.nodes} nodes that {config.kind} knows: ask for "
            "as many as the task has, or take the task that it is for (paths; chains for linear-attention)."
        )
    check_tokens(tokens, embedded(policy._causal(policy.model)))


def check_tokens(tokens: Sequence[int], rows: int) -> None:
    """Raise ConfigError if a token has no row in an embedding of `rows`."""
    if tokens and (largest := max(tokens)) >= rows:
        raise ConfigError(
            f"The tokenizer has a token of number {largest}, and the model's embedding has {rows} rows: it is another "
            "model's, or was enlarged alone. Use the model's own tokenizer, or enlarge the model with "
            f"`resize_token_embeddings({largest + 1})` and save it."
        )


def _check_weights(causal: PreTrainedModel) -> None:
    for name, weight in causal.named_parameters():
        if not all(bool(x.isfinite()) for x in weight.aminmax()):
            raise ConfigError(
                f"The model's weight {name} holds numbers that are not finite, so all that it says would be NaN: the "
                "file is damaged, or its training had diverged. Take an earlier checkpoint."
            )


def _check_head(policy: LanguagePolicy, causal: PreTrainedModel) -> None:
    """The library computes logits itself; refuse a model whose own logits differ."""
    name, ids = type(causal).__name__, torch.tensor([[0, 1, 2, 3]], device=policy.device)
    seen = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if causal.get_output_embeddings() is None:
        raise ConfigError(f"{name} has no output layer over tokens, so it has no policy to train.")
    try:
        own = causal(**seen).logits
        hidden = policy.backbone(causal)(**seen).last_hidden_state
    except Exception as error:  # whatever a model of an unknown kind raises
        raise ConfigError(f"{name} cannot read four tokens here: {_brief(error)}.") from error
    if hidden.shape[-1] != causal.get_output_embeddings().weight.shape[1]:
        raise ConfigError(
            f"{name} has layers between its last hidden states and its output layer, which etude does not know; its "
            "log-probabilities would be wrong, so it cannot be trained here."
        )
    ours, close = policy.head_logits(causal, hidden).float(), min(1e-2, TOLERANCE[own.dtype])
    if not float((own.float() - ours).abs().max()) <= close * max(1.0, float(own.abs().max())):  # nor if it is NaN
        raise ConfigError(
            f"{name} scales its logits in a way that etude does not know; its log-probabilities would be wrong, so it "
            "cannot be trained here."
        )


def _check_decoding(policy: LanguagePolicy, causal: PreTrainedModel) -> None:
    """Token by token, with a cache and padded prompts, a model with recurrent layers says what it says at once."""
    name, backbone = type(causal).__name__, policy.backbone(causal)
    try:
        stepwise = _token_by_token(backbone, policy.config, policy.device)
    except Exception as error:
        raise ConfigError(
            f"{name} cannot be sampled from here: its cache is of a kind that etude does not know ({_brief(error)})."
        ) from error
    if not recurrent(policy.config) or stepwise.dtype not in (torch.float32, torch.float64):
        return  # attention is exact, and coarse rounding may turn a choice of experts
    whole = _at_once(backbone, policy.device)
    if float((stepwise - whole).abs().max()) > TOLERANCE[stepwise.dtype] * max(1.0, float(whole.abs().max())):
        raise ConfigError(
            f"{name} says something else token by token than at once when prompts of different lengths share a "
            "batch: its recurrent layers do not leave padding out, so it cannot be trained here."
        )


def _token_by_token(backbone: Backbone, config: PreTrainedConfig, device: torch.device) -> Tensor:
    """Hidden states [6, H] of two tokens of three rows."""
    width = max(map(len, PROBE))
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in PROBE], device=device)
    mask = torch.tensor([[i >= width - len(p) for i in range(width)] for p in PROBE], device=device)
    owner, cache = torch.tensor([0, 1, 1], device=device), decoding_cache(config, width + len(NEXT))
    feed(backbone, cache, input_ids=ids, attention_mask=mask, position_ids=rope_positions(mask))
    rows, position = CachedDecoder(backbone, cache, mask, owner, len(NEXT)), mask.sum(1)[owner]
    return torch.cat([rows(torch.tensor(t, device=device), position + i) for i, t in enumerate(NEXT)])


def _at_once(backbone: Backbone, device: torch.device) -> Tensor:
    """The same states, each row by itself."""
    rows = [[*PROBE[owner], *(tokens[i] for tokens in NEXT)] for i, owner in enumerate((0, 1, 1))]
    states = [
        backbone(input_ids=torch.tensor([r], device=device), use_cache=False).last_hidden_state[0, -2:] for r in rows
    ]
    return torch.stack(states, 1).flatten(0, 1)


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}".rstrip(".")
