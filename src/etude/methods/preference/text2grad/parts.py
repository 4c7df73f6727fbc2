"""Rewards of tokens from critiques in words, and a divergence over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.draws import Draw
from etude.core.episodes import Episode
from etude.core.fields import Count, NonNegative
from etude.core.part import Need, Part
from etude.core.slots import Context, TokenReward
from etude.core.task import Task
from etude.core.worlds import World
from etude.methods.preference.text2grad.matching import matched, read_scores
from etude.policies.micro_batches import micro_batches
from etude.policies.texts.likelihood import reference_logits
from etude.policies.texts.models import read_once
from etude.rewards.kl import AdaptiveKLPenalty
from etude.runtime.checkpoints import newest_model

if TYPE_CHECKING:
    from etude.core.method import Method

Words = list[tuple[str, float]]
TOKENS = 2048
"""Padded tokens of which all logits are held at a time."""


class WordCritic(Part, abstract=True):
    """Who says which words of a completion are good and which are poor."""

    slot = "critic"
    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})

    def lacks(self, task: Task) -> str | None:
        return None

    def words(self, episodes: Sequence[Episode], context: Context) -> list[Words]:
        """Of each completion its words, with +1, -1 or 0."""
        raise NotImplementedError


class TaskCritic(WordCritic):
    """The task itself: `critique(problem, completion)` returns a critique as text, its list of words at the end.

    >>> from types import SimpleNamespace as Run
    >>> said = Run(problem="?", completion="ab")
    >>> TaskCritic().words([said], Run(task=Run(critique=lambda problem, text: f"|{text[0]}+ {text[1]}-")))
    [[('a', 1.0), ('b', -1.0)]]
    """

    def lacks(self, task: Task) -> str | None:
        if callable(getattr(task, "critique", None)):
            return None
        return "TaskCritic asks the task for a critique, and it has none: give it critique(problem, completion) -> str."

    def words(self, episodes: Sequence[Episode], context: Context) -> list[Words]:
        return [read_scores(context.task.critique(e.problem, e.completion)) for e in episodes]


class CritiqueModel(WordCritic):
    """A language model that was taught to write critiques, asked greedily.

    Args:
        model: the run or the folder of what learned them.
        question: what it is asked; {prompt} and {given} are filled in.
        length: most tokens of a critique.

    >>> CritiqueModel().question.format(prompt="2+5>", given="7")
    '2+5>7~'
    """

    model: str = ""
    question: str = "{prompt}{given}~"
    length: Count = 48

    def check(self) -> None:
        object.__setattr__(self, "model", newest_model(self.model))  # named as it is now: a run may go on

    def objection(self, method: Method) -> str | None:
        return None if self.model else "has no model that writes critiques: set its field model to a run."

    def words(self, episodes: Sequence[Episode], context: Context) -> list[Words]:
        from etude.policies.sampling import Sampling

        model = read_once(self, self.model, context.policy)
        asked = [self.question.format(prompt=e.problem.prompt, given=e.completion) for e in episodes]
        draws = [Draw.at(0, text) for text in asked]
        greedy = Sampling(temperature=0.0, max_tokens=self.length)
        said = model.generate([model.encode(text) for text in asked], greedy, draws)
        return [read_scores(model.decode(c.tokens)) for c in said]


class WordRewards(TokenReward):
    """delta_t of every token: the score that a critic gives the word which it is, or is a part of; else 0.

    Args:
        critic: who says which words are good.
        shrink: alpha of the factor 2 / (1 + exp(alpha (n - longest) / longest)), at most 1, on the score of a
            completion's nth token; 0: none.
        longest: tokens up to which nothing shrinks.

    Shapes: [B, T], 0 outside the action mask.

    >>> [round(x, 3) for x in WordRewards(shrink=1.0, longest=2).factors(4).tolist()]
    [1.0, 1.0, 0.755, 0.538]
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    critic: WordCritic = CritiqueModel()
    shrink: NonNegative = 0.0
    longest: Count = 48

    def lacks(self, task: Task) -> str | None:
        return self.critic.lacks(task)

    def shape_in(self, batch: TokenBatch, context: Context) -> Tensor:
        paid = torch.zeros_like(batch.rewards)
        tokenizer, special = context.policy.tokenizer, set(getattr(context.policy.tokenizer, "all_special_ids", ()))
        for row, words in enumerate(self.critic.words(batch.episodes, context)):
            places = batch.action_mask[row].nonzero()[:, 0]
            ids = batch.tokens[row, places].tolist()
            texts = ["" if i in special else str(tokenizer.decode([i])) for i in ids]
            paid[row, places] = paid.new_tensor(matched(words, texts)) * self.factors(len(ids)).to(paid)
        return paid

    def factors(self, tokens: int) -> Tensor:
        """[tokens] what the scores of a completion's tokens are multiplied by."""
        beyond = (torch.arange(1, tokens + 1) - self.longest).clamp(min=0) / self.longest
        return 2 * torch.sigmoid(-self.shrink * beyond)


class AdaptiveFullKLPenalty(AdaptiveKLPenalty):
    """As `AdaptiveKLPenalty`, of KL(pi || reference) at every token, exactly: over all of the vocabulary.

    Its sum over a completion has the same mean as that of the sampled log-ratios, and less variance.

    Shapes: [B, T], 0 outside the action mask; nats times the coefficient.

    Of a policy that is sure of one of two words and a reference that is not:

    >>> policy, reference = torch.tensor([[[1.0, 0.0]]]).log(), torch.tensor([[[0.5, 0.5]]]).log()
    >>> round(full_kl(policy, reference).item(), 4)
    0.6931
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    uses_behaviour: ClassVar[bool] = False
    needs: ClassVar[frozenset[Need]] = frozenset({Need.REFERENCE})

    def shape_in(self, batch: TokenBatch, context: Context) -> Tensor:
        away = torch.zeros_like(batch.rewards)
        with torch.no_grad():
            for piece in micro_batches(context.policy, batch, TOKENS):
                rows = batch.rows(piece, trim=True)
                mine = context.policy.evaluate(rows, {"logits"}).logits / batch.temperature
                found = full_kl(mine, reference_logits(context.policy, rows) / batch.temperature) * rows.action_mask
                away[piece, : found.shape[1]] = found.to(away)
        return self.paid(away, batch)


def full_kl(policy: Tensor, reference: Tensor) -> Tensor:
    """[...] sum over words of pi (log pi - log ref), of logits [..., V]."""
    mine, theirs = policy.log_softmax(-1), reference.log_softmax(-1)
    return torch.where(mine > -torch.inf, mine.exp() * (mine - theirs), 0.0).sum(-1)
