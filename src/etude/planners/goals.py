"""Searching towards a goal state: how near the states of an answer come to where preferred answers end.

A goal-conditioned reward model (arXiv:2407.13887) says of every token of an answer

    q_t = cos(h_t, g),   g the mean state at the end of preferred answers,

which is read as the likelihood of coming to the goal from there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from etude.core.episodes import Episode
from etude.core.errors import ConfigError
from etude.core.fields import Count, Interval, NonNegative, WholeNumber
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.experience.data import Pairs
from etude.planners.guides import Guide
from etude.planners.search import MajorityVote
from etude.planners.trees import Node, Trees
from etude.rewards.model import TOKENS, RewardModel

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy


class GoalLikeness(Guide):
    """sigmoid(w mean log pi + cos(mean_t h_t, g)): the policy's own word, raised by how near an answer is to the goal.

    With w = 0 it goes by the goal alone.

    Args:
        scored_by: the reward model whose states are compared; its tokens are the policy's.
        examples: problems of the split 'train' whose preferred answers make the goal.
        likelihood: w.

    Shapes: states of T tokens [T, H], the goal [H].

    Raises: ConfigError for a model with other tokens than the policy's; DataError where problems have no pairs.

    >>> GoalLikeness(likelihood=0.0).examples
    256
    """

    scored_by: RewardModel = RewardModel()
    examples: Count = 256
    likelihood: NonNegative = 1.0

    def values(self, nodes: Sequence[Node], trees: Trees) -> list[float]:
        goal = self.goal(trees.context)
        likeness = [
            float(cosine_similarity(own[1:].mean(0) if len(own) > 1 else own[0], goal, dim=0))
            for own in self.states(nodes, trees)
        ]
        said = [sum(node.logp) / max(1, len(node.logp)) for node in nodes]
        return [1 / (1 + math.exp(-self.likelihood * logp - cos)) for logp, cos in zip(said, likeness)]

    def along(self, nodes: Sequence[Node], trees: Trees) -> list[list[float]]:
        """q_t of every token of the answers so far, after it was said; of an end token nothing."""
        goal = self.goal(trees.context)
        return [cosine_similarity(own[1:], goal[None], dim=1).tolist() for own in self.states(nodes, trees)]

    def goal(self, context: Context) -> Tensor:
        """g [H], found once."""
        if "goal" not in self.made:
            scorer, pool = self._scorer(context), context.task.problems("train")
            asked = [pool[i] for i in range(min(self.examples, len(pool)))]
            chosen = Pairs().collect(asked, dataclasses.replace(context, policy=scorer))[::2]
            self.made["goal"] = torch.stack([own[-1] for own in answer_states(scorer, chosen)]).mean(0)
        found: Tensor = self.made["goal"]
        return found

    def states(self, nodes: Sequence[Node], trees: Trees) -> list[Tensor]:
        """[n + 1, H] of each node: the states before its answer and after each of the n tokens so far."""
        scorer = self._scorer(trees.context)
        end, ends = scorer.tokenizer.eos_token_id, {*trees.context.policy.end_ids}
        episodes = trees.episodes(nodes)
        for episode in episodes:
            said = episode.segments[-1]
            if not said.tokens or said.tokens[-1] not in ends:  # a place from which all that was said is seen
                said.tokens, said.action_mask = [*said.tokens, end], [*said.action_mask, 1]
                said.behaviour_logp = [*said.behaviour_logp, 0.0]
        return answer_states(scorer, episodes)

    def _scorer(self, context: Context) -> LanguagePolicy:
        scorer = self.scored_by.scorer(context.policy)
        if scorer.tokenizer.get_vocab() != context.policy.tokenizer.get_vocab():
            raise ConfigError(
                f"{self.name} reads the policy's answers token by token, and the tokens of {self.scored_by.model} are "
                "others: take a reward model of the same tokenizer."
            )
        return scorer


class FilteredVote(MajorityVote):
    """A majority vote over those answers that never look lost: the others are left off as soon as they do.

    An answer is left off at the first token after `skip` of them with q_t < threshold. Answers go on `every` tokens at
    a time, side by side, so that what is left off costs up to as many more. Where all of a problem's are left off they
    are brought to their end, and all vote. With a threshold of -1 it is `majority-vote`, sample by sample.

    Args:
        guide: who says q_t.
        threshold: a cosine.
        skip: tokens at the beginning whose q_t is not looked at.
        every: tokens between two looks.

    Source: arXiv:2407.13887, which drops five tokens.

    >>> vote = FilteredVote(threshold=0.5, skip=1)
    >>> vote.lost([0.0, 0.9]), vote.lost([0.0, 0.9, 0.4])
    (False, True)
    """

    guide: GoalLikeness = GoalLikeness()
    threshold: Annotated[float, Interval(ge=-1, le=1)] = 0.0
    skip: WholeNumber = 5
    every: Count = 1

    def lost(self, along: Sequence[float]) -> bool:
        """Whether an answer of which this is said by token is to be left off."""
        return any(q < self.threshold for q in along[self.skip :])

    def find(self, trees: Trees) -> list[Node]:
        groups = [trees.begin(root, self.samples) for root in trees.roots]
        dropped: set[int] = set()
        going = [node for group in groups for node in group]
        while going:
            trees.resume(going, self.every)
            dropped |= {id(n) for n, said in zip(going, self.guide.along(going, trees)) if self.lost(said)}
            going = [node for node in going if not node.ended and id(node) not in dropped]
        kept = [[node for node in group if id(node) not in dropped] or list(group) for group in groups]
        while begun := [node for group in kept for node in group if not node.ended]:
            trees.resume(begun, trees.sampling.max_tokens)
        trees.close([node for group in groups for node in group])
        return [self._elected(group, trees) for group in kept]


@torch.no_grad()
def answer_states(scorer: LanguagePolicy, episodes: Sequence[Episode]) -> list[Tensor]:
    """[n, H] of each episode the states that predict its n action tokens."""
    from etude.policies.micro_batches import micro_batches

    batch = to_batch(episodes, scorer.tokenizer.pad_token_id, 1.0, scorer.device)
    found: dict[int, Tensor] = {}
    for piece in micro_batches(scorer, batch, TOKENS):
        rows = batch.rows(piece, trim=True)
        hidden = scorer.evaluate(rows, {"hidden"}).hidden
        assert hidden is not None
        for place, own, mask in zip(piece.tolist(), hidden, rows.action_mask):
            found[place] = own[mask].float()
    return [found[i] for i in range(len(episodes))]
