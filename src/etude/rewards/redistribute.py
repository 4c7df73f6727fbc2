"""A return shared out over turns by a learned additive model."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from etude.advantages.turns import turn_ends
from etude.core.batches import TokenBatch
from etude.core.errors import ConfigError, RewardError
from etude.core.fields import NonNegative
from etude.core.rows import read_behind_turns, to_batch
from etude.core.slots import Context, TokenReward
from etude.core.task import VALID
from etude.core.worlds import World
from etude.rewards.model import TOKENS, SavedScorer

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.policies.language import LanguagePolicy


class Redistribute(SavedScorer, TokenReward):
    """r_t = alpha c_t + beta g_t at the end of each turn, in the place of what was paid (arXiv:2505.20732).

    c_t is what an additive model says of the history up to the end of turn t, where it has learned that sum_t c_t is
    the return (`summed-return`). g_t is 1 where the environment could do what was said in turn t (`valid` in the info
    of its steps), else 0. Of an exact model alpha = 1, beta = 0 leave every undiscounted return as it was; c_t are not
    unique: c_t + w_t - w_{t-1} with w_0 = w_T = 0 add up to the same.

    Rows that go on in a later step are paid nothing yet.

    Args:
        model: what `spa-estimator` trained: its run, or a folder `model`, with the policy's tokens.
        alpha, beta: weights of the two terms.

    Shapes: [B, T], 0 but on the last token of each turn; in the units of the return.

    Raises: ConfigError for a model without a value head or with other tokens; RewardError where beta is above 0 and the
    environment does not say what could be done.

    >>> Redistribute(model="RUN").turn_rewards(torch.tensor([0.25, 0.0]), torch.tensor([1.0, 0.0])).tolist()
    [0.75, 0.0]
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    trained_by: ClassVar[str] = "spa-estimator"
    alpha: NonNegative = 1.0
    beta: NonNegative = 0.5

    def objection(self, method: Method) -> str | None:
        view = getattr(method.slots()["experience"], "view", None)
        if view is not None and not view.whole:
            return (
                f"reads histories as they are, and {type(view).__name__} leaves some of them out: set "
                "experience.view=full-history."
            )
        return super().objection(method)

    def shape_in(self, batch: TokenBatch, context: Context) -> Tensor:
        scorer = self.scorer(context.policy)
        if scorer.tokenizer.get_vocab() != context.policy.tokenizer.get_vocab():
            raise ConfigError(
                f"Redistribute reads the policy's tokens, and {self.model!r} has others: train the estimator from the "
                "policy that is trained here."
            )
        said = contributions(scorer, batch).to(batch.rewards)
        found = self.turn_rewards(said, executed(batch) if self.beta else torch.zeros_like(said))
        return (found - batch.rewards) * batch.finished[:, None]

    def turn_rewards(self, contributions: Tensor, executed: Tensor) -> Tensor:
        """alpha c + beta g, shaped as both."""
        return self.alpha * contributions + self.beta * executed


@torch.no_grad()
def contributions(scorer: LanguagePolicy, batch: TokenBatch) -> Tensor:
    """[B, T] c_t at the last action token of each turn, 0 elsewhere: the scorer's value read behind it."""
    from etude.policies.micro_batches import micro_batches

    pad = scorer.tokenizer.pad_token_id
    names = tuple(dict.fromkeys(e.player for e in batch.episodes))
    read = to_batch([read_behind_turns(e, pad) for e in batch.episodes], pad, 1.0, scorer.device, names)
    values = torch.zeros(read.tokens.shape, device=scorer.device)
    for piece in micro_batches(scorer, read, TOKENS):
        rows = read.rows(piece, trim=True)
        said = scorer.evaluate(rows, {"values"}).values
        assert said is not None
        values[piece, : said.shape[1]] = said.to(values)
    ends = turn_ends(batch)
    return torch.zeros_like(batch.rewards).masked_scatter(ends, values[read.action_mask].to(batch.rewards))


def executed(batch: TokenBatch) -> Tensor:
    """[B, T] 1 at the last action token of each turn that the environment could execute, 0 elsewhere.

    Raises RewardError for a turn of which the environment does not say so.
    """
    found = list[float]()
    for episode in batch.episodes:
        for said in episode.segments:
            if not any(said.action_mask):
                continue
            if VALID not in said.info:
                raise RewardError(
                    f"A turn is paid for what the environment could do, and that of problem {episode.problem.id!r} "
                    f"does not say so: have its steps return `info={{'{VALID}': ...}}`, or set beta to 0."
                )
            found.append(float(said.info[VALID]))
    flat = torch.tensor(found, dtype=batch.rewards.dtype, device=batch.rewards.device)
    return torch.zeros_like(batch.rewards).masked_scatter(turn_ends(batch), flat)
