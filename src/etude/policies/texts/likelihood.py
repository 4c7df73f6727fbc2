"""How likely a model finds a text that was given: teacher forcing, many texts at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from etude.core.batches import LOGITS, TokenBatch, pieces
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError, DataError
from etude.core.rows import to_batch
from etude.policies.micro_batches import micro_batches
from etude.policies.texts.models import Model

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

BUDGET = 8192
"""Padded tokens that are looked at together."""
Tokens = Sequence[int]


def logp(
    model: Model, contexts: Sequence[Tokens], texts: Sequence[Tokens], policy: LanguagePolicy, *,
    gradient: bool = False, temperature: float = 1.0, budget: int = BUDGET,
) -> Tensor:  # fmt: skip
    """log p(text | context) under a model, token by token; the sum of a row is the text's.

    A pair that stands in the lists several times is looked at once. An empty text has log-probability 0.

    Args:
        model: whose word it is.
        contexts, texts: N of each, as the policy's token ids.
        policy: the policy that is trained.
        gradient: whether it can be differentiated by the policy's weights; all texts are then held in memory at once.
        temperature: what logits are divided by.
        budget: padded tokens that are looked at together, without gradient.

    Shapes: [N, T] in nats, T tokens of the longest text, 0 after a text's end.

    Raises: DataError for an empty context, and for a context that leaves its text no room in the model's window;
        ConfigError if a gradient is asked of a model that the policy's weights are not in.
    """
    if gradient and not model.learns:
        raise ConfigError(
            f"{type(model).__name__} is not what is trained, so its likelihood has no gradient: ask CurrentPolicy."
        )
    pairs = [(tuple(c), tuple(t)) for c, t in zip(contexts, texts, strict=True)]
    speaker, different = model.speaker(policy), list(dict.fromkeys(pair for pair in pairs if pair[1]))
    for context, text in different:
        _check_window(len(context), len(text), speaker.context)
    width = max((len(text) for _, text in pairs), default=0)
    nothing = torch.zeros(1, width, device=policy.device)
    if not different:
        return nothing.repeat(len(pairs), 1)
    batch = _rows(different, temperature, speaker)
    with torch.set_grad_enabled(gradient):
        found = model.logp(speaker, batch) if gradient else rows_logp(model, speaker, batch, budget)
    number = {pair: i for i, pair in enumerate(different)}
    said = torch.cat([_of_texts(found, batch, width), nothing.to(found)])
    return said[[number.get(pair, len(number)) for pair in pairs]]


def _check_window(context: int, text: int, window: int) -> None:
    if not context:
        raise DataError("A likelihood needs a context of one token at least: nothing predicts a text's first token.")
    if context + text > window:
        raise DataError(
            f"A context of {context} tokens and a text of {text} do not fit the model's window of {window}: shorten "
            "the context (or what is said before the text), or take a model with a longer one."
        )


def _rows(pairs: Sequence[tuple[Tokens, Tokens]], temperature: float, speaker: LanguagePolicy) -> TokenBatch:
    """One row per pair: the text is what the policy says."""
    episodes = []
    for group, (context, text) in enumerate(pairs):
        tokens, mask = [*context, *text], [0] * len(context) + [1] * len(text)
        segment = Segment("assistant", "", tokens, mask, [0.0] * len(tokens))
        episodes.append(Episode(Problem(str(group), ""), [segment], group))
    return to_batch(episodes, speaker.tokenizer.pad_token_id, temperature, speaker.device)


@torch.no_grad()
def rows_logp(model: Model, speaker: LanguagePolicy, batch: TokenBatch, budget: int = BUDGET) -> Tensor:
    """[B, T] log-probabilities of the rows' action tokens, micro-batch by micro-batch."""
    found = torch.zeros(batch.tokens.shape, dtype=speaker.head_dtype, device=batch.tokens.device)
    for piece in micro_batches(speaker, batch, budget):
        said = model.logp(speaker, batch.rows(piece, trim=True))
        found[piece, : said.shape[1]] = said.to(found)
    return found


def _of_texts(found: Tensor, batch: TokenBatch, width: int) -> Tensor:
    """[B, width] the action tokens' entries of [B, T], from the left."""
    places = batch.action_mask.cumsum(1)[batch.action_mask] - 1
    rows = batch.action_mask.nonzero()[:, 0]
    return found.new_zeros(len(batch), width).index_put((rows, places), found[batch.action_mask])


@torch.no_grad()
def likeliest(
    contexts: Sequence[Tokens], texts: Sequence[Tokens], policy: LanguagePolicy, budget: int = BUDGET
) -> Tensor:
    """[N] whether a text is what a policy says after its context at temperature 0: each token the likeliest one there.

    A pair that stands in the lists several times is looked at once. An empty text is.

    Args:
        contexts, texts: N of each, as the policy's token ids.
        budget: padded tokens that are looked at together.

    Raises: DataError as `logp`.
    """
    pairs = [(tuple(c), tuple(t)) for c, t in zip(contexts, texts, strict=True)]
    different = list(dict.fromkeys(pairs))
    for context, text in different:
        _check_window(len(context), len(text), policy.context)
    batch, head = _rows(different, 1.0, policy), policy.head()
    said = torch.ones(len(different), dtype=torch.bool, device=policy.device)
    for piece in micro_batches(policy, batch, budget):
        rows = batch.rows(piece, trim=True)
        states = policy.evaluate(rows, {"hidden"}).hidden
        assert states is not None
        hidden, tokens = states[rows.action_mask], rows.tokens[rows.action_mask]
        words, parts = len(head.weight) // policy.voices, pieces(len(hidden), LOGITS // len(head.weight))
        right = torch.cat([head.logits(hidden[part]).argmax(-1) % words == tokens[part] for part in parts])
        wrong = rows.action_mask.nonzero()[:, 0][~right]
        said[piece.to(said.device)[wrong]] = False
    number = {pair: i for i, pair in enumerate(different)}
    return said[[number[pair] for pair in pairs]]


def reference_logits(policy: LanguagePolicy, rows: TokenBatch) -> Tensor:
    """[B, T, V] of the reference; with an adapter that is the base."""
    from etude.policies.language import LanguagePolicy

    if policy.has_adapter:
        with policy.model.disable_adapter():  # type: ignore[operator]
            logits = policy.evaluate(rows, {"logits"}).logits
    else:
        assert policy.reference is not None
        kept = LanguagePolicy(policy.reference, policy.tokenizer, share_prompts=policy.share_prompts, shadow=False)
        logits = kept.evaluate(rows, {"logits"}).logits
    assert logits is not None
    return logits
