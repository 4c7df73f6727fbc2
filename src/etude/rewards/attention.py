"""A reward model's score spread over the tokens that it attended to."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.errors import ConfigError
from etude.core.rows import last_action
from etude.core.slots import Context, TokenReward
from etude.core.worlds import World
from etude.rewards.model import TOKENS, RewardModel, values

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy


class AttentionCredit(TokenReward):
    """r_t = a_t v(x, y): a reward model's score on all tokens, by its last layer's attention (arXiv:2402.00782).

    a_t is what the state that the score is read from attends to token t, the mean over heads, divided by what it
    attends to the completion altogether. So the tokens' rewards add up to the score, and what is best stays best.

    Args:
        of: the reward model, its weight included; it has the policy's tokens.

    Shapes: [B, T], 0 outside the action mask.

    Raises: ConfigError for a model with other tokens than the policy's, or without attention.

    >>> mask = torch.tensor([[False, True, True]])
    >>> spread(torch.tensor([4.0]), torch.tensor([[0.5, 0.25, 0.75]]), mask).tolist()
    [[0.0, 1.0, 3.0]]
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    of: RewardModel = RewardModel()

    def shape_in(self, batch: TokenBatch, context: Context) -> Tensor:
        scorer = self.of.scorer(context.policy)
        if scorer.tokenizer.get_vocab() != context.policy.tokenizer.get_vocab():
            raise ConfigError(
                f"AttentionCredit pays the policy's tokens, and {self.of.model!r} has others: train a reward model "
                "from the policy, or pay whole completions with rewards=reward-model."
            )
        scores = self.of.weight * torch.tensor(values(scorer, batch.episodes))
        return spread(scores.to(batch.rewards), attended(scorer, batch).to(batch.rewards), batch.action_mask)


def spread(scores: Tensor, attention: Tensor, mask: Tensor) -> Tensor:
    """[B, T] scores [B] in shares of the attention [B, T] inside the mask; on the last token where there is none."""
    inside = attention * mask
    total = inside.sum(1, keepdim=True)
    places = torch.arange(mask.shape[1], device=mask.device)
    last = places == torch.where(mask, places, -1).amax(1, keepdim=True)
    return scores[:, None] * torch.where(total > 0, inside / total.clamp(min=torch.finfo(total.dtype).tiny), last)


@torch.no_grad()
def attended(scorer: LanguagePolicy, batch: TokenBatch) -> Tensor:
    """[B, T] what the state that each row's score is read from attends to each token: last layer, mean over heads."""
    from etude.policies.micro_batches import micro_batches

    model = scorer.merged()
    usual, found = model.config._attn_implementation, torch.zeros(batch.tokens.shape, device=scorer.device)
    model.set_attn_implementation("eager")
    try:
        for piece in micro_batches(scorer, batch, TOKENS):
            rows = batch.rows(piece, trim=True)
            said = model(input_ids=rows.tokens, attention_mask=rows.attention_mask, output_attentions=True)
            if not said.attentions:
                raise ConfigError(f"AttentionCredit reads attention, and {type(model).__name__} has none to show.")
            of_last = said.attentions[-1].mean(1)[torch.arange(len(piece)), last_action(rows) - 1]
            found[piece, : of_last.shape[1]] = of_last.float()
    finally:
        model.set_attn_implementation(usual)
    return found
