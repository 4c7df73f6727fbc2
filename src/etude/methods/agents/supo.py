"""SUPO: policies that summarise their own history when the context is full (arXiv:2510.06727).

Changes GRPO in four places:

1. what the policy sees is no longer than a working context L: where the next turn might not fit, the policy is asked
   for a summary m of what it sees and goes on from (prompt, m), at most S times (`SummaryAt`; where not even the
   request fits, the last call and its answer are left out of what is summarised);
2. an episode with I summaries is I + 1 rows, one for each context that was sampled from. Calls, answers and the
   summaries themselves are learned; prompts, observations and the summary that a row begins with are not, and

       grad J = E[sum over rows, over sampled tokens of grad log pi A],   A = (R - mean R) / std R,

   with one R and one A for the whole episode, mean and deviation over the episodes of a problem, not over rows;
3. an episode that ends without an answer (no summary left, or no turn) is not learned from, though it counts in mean
   and deviation: else the policy would learn to call less (`AnsweredEpisodes`);
4. every token weighs the same.

At test S may be larger (`etude evaluate RUN --view summary-at,most=8`). What GRPO makes of the same context is
`--set experience.view.most=0`: the episode ends where the next turn might not fit. There is no official code. The paper
says that the last call is removed before it summarises; it was sampled all the same, and here has a row of its own.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.episodes import StopReason
from etude.core.slots import Filter
from etude.experience.groups import Groups
from etude.experience.views import SummaryAt
from etude.methods.rlvr.grpo import grpo


class AnsweredEpisodes(Filter):
    """Only episodes that came to an answer are learned from; the others count in what these are compared with.

    Left out are those that a limit of turns, the environment's own limit or a full context stopped.

    Shapes: [B] weights, of rows that have their advantages.

    >>> from types import SimpleNamespace as Rows
    >>> ends = [Rows(stop=s) for s in (StopReason.TERMINATED, StopReason.MAX_TURNS, StopReason.CONTEXT_OVERFLOW)]
    >>> AnsweredEpisodes().weigh(Rows(episodes=ends, scores=torch.zeros(3))).tolist()
    [1.0, 0.0, 0.0]
    """

    late: ClassVar[bool] = True

    def weigh(self, batch: TokenBatch) -> Tensor:
        stops = [e.stop for e in batch.episodes]
        answered = [not s.truncated and s is not StopReason.CONTEXT_OVERFLOW for s in stops]
        return torch.tensor(answered, device=batch.scores.device).to(batch.scores.dtype)


supo = grpo.replace(
    id="supo",
    title="Scaling LLM Multi-turn RL with End-to-end Summarization-based Context Management",
    paper="arXiv:2510.06727",
    experience=Groups(size=8, view=SummaryAt(limit=64, most=4, tokens=24)),
    filters=(AnsweredEpisodes(),),
    aggregation="token-mean",
    claim=Claim(
        statement="In the same working context a policy that learns to summarise its history answers more often than "
        "one whose history is cut off.",
        bed="language/collect",
        baseline="grpo",
        changes={"experience.view.limit": 40, "experience.view.tokens": 12},
        baseline_changes={
            "experience.view": "summary-at", "experience.view.limit": 40, "experience.view.most": 0,
            "experience.view.tokens": 12,
        },
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),  # of as many games; how many rows these are differs
        paper_effect="3.2 % on CodeGym and 14.0 % on BrowseComp-Plus over GRPO with several turns; 60.0 % on the "
        "latter with more summaries at test than in training",
    ),
)  # fmt: skip
