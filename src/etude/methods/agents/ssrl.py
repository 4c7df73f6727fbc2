"""SSRL: the policy is its own search engine while it learns (arXiv:2508.10874).

Changes GRPO in four places:

1. a completion is one text in a grammar, <think>..</think>, <search>..</search>, <information>..</information>, ...,
   <answer>..</answer>, all of it written by the policy: what a search would find, too. No search is asked;
2. R = (1 - lam) EM + lam F, lam = 0.1, with EM the task's reward for the last answer and F in [0, 1] how well the text
   keeps to the grammar (`SearchFormat`; with n thoughts and s queries, n <= 8,

       F = min(1, n / 2) min(n, s + 1) / max(n, s + 1),    0 outside of the grammar);

3. from <information> to </information> nothing is learned, by the objective and by the KL alike: these tokens are no
   actions, though the policy sampled them, and stay in view of what follows (`OwnInformation`);
4. five completions of each problem, and 0.001 of the KL to the reference, k3.

At test a search may answer instead (`etude evaluate RUN --set task.tools=tag-search`): a turn then ends with a query,
and what was found stands in the place of what the policy would have written. The task says how many facts are found,
the tool how many turns there are. Not here: asking a search only where the entropy of a query rose against the last.

As published 256 problems a step and a learning rate of 1e-6; those are of models with billions of weights, and here the
parent's. Which texts are copied placeholders is not said: `rewards/search_tags.py` has ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.episodes import Episode
from etude.core.fields import NonNegative
from etude.core.slots import Context, Reward, TokenReward
from etude.core.worlds import World
from etude.experience.groups import Groups
from etude.methods.rlvr.grpo import grpo
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference
from etude.rewards.outcome import TaskReward
from etude.rewards.search_tags import format_score, informed_spans

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class SearchFormat(Reward):
    """`scale` times F: how well a completion keeps to the grammar of answers that search, in [0, 1].

    What a search answered belongs to it as what the policy wrote itself.

    >>> from etude.core.episodes import Problem, Segment
    >>> parts = ("<think>q</think><search>a</search>", "<information>b</information>", "<answer>c</answer>")
    >>> said = Episode(Problem("1", "?"), [Segment("assistant", "".join(parts))])
    >>> SearchFormat(scale=0.1).score([said], Context(None, None, None))
    [0.025]
    """

    judges: ClassVar[bool] = False
    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    scale: NonNegative = 0.1

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [self.scale * format_score(transcript(episode)) for episode in episodes]


class OwnInformation(TokenReward):
    """Pays nothing, and takes the tokens from <information> to </information> out of what is learned.

    A token that is only partly in such a block is left out whole; a block that is not closed goes to the end. The
    tokens stay in the row, where later ones see them, and count in no denominator.

    Shapes: action mask, log-probabilities and versions [B, T] -> [B, T], 0 on those tokens.

    >>> from types import SimpleNamespace as Rows
    >>> OwnInformation().shape(Rows(rewards=torch.ones(1, 2))).tolist()
    [[0.0, 0.0]]
    """

    judges: ClassVar[bool] = False
    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})

    def marked(self, batch: TokenBatch, context: Context) -> TokenBatch:
        learned = batch.action_mask & ~own_information(batch, context.policy.tokenizer)
        version = None if batch.version is None else batch.version * learned
        return batch.replace(action_mask=learned, behaviour_logp=batch.behaviour_logp * learned, version=version)

    def shape(self, batch: TokenBatch) -> Tensor:
        return torch.zeros_like(batch.rewards)


def transcript(episode: Episode) -> str:
    """What the policy said, with what a search answered in between."""
    text = ""
    for segment in episode.segments:
        if segment.role == "assistant":
            text += segment.text
        elif segment.role == "tool":
            before, after = segment.info.get("around", ("", ""))
            text += before + segment.text + after
    return text


def own_information(batch: TokenBatch, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """[B, T] True on action tokens that stand in an information block of what the policy said."""
    texts = {t: str(tokenizer.decode([t])) for t in batch.tokens[batch.action_mask].unique().tolist()}
    inside = torch.zeros_like(batch.action_mask)
    for row, (tokens, said) in enumerate(zip(batch.tokens, batch.action_mask)):
        places = said.nonzero()[:, 0].tolist()
        pieces = [texts[t] for t in tokens[said].tolist()]
        spans, end = informed_spans("".join(pieces)), 0
        for place, piece in zip(places, pieces):
            begin, end = end, end + len(piece)
            inside[row, place] = any(begin < stop and end > start for start, stop in spans)
    return inside


ssrl = grpo.replace(
    id="ssrl",
    title="SSRL: Self-Search Reinforcement Learning",
    paper="arXiv:2508.10874",
    experience=Groups(size=5),
    rewards=(TaskReward(weight=0.9), SearchFormat(scale=0.1), OwnInformation()),
    regularizers=(KLToReference(coefficient=0.001, estimator="k3"),),
    reference=Frozen(),
    claim=Claim(
        statement="Not learning from the information that it wrote itself, the policy answers chains of two facts more "
        "often than one that learns from it, too.",
        bed="language/kb-search",
        baseline="grpo",
        baseline_changes={
            "experience.size": 5, "rewards": "task-reward,search-format", "rewards.0.weight": 0.9,
            "regularizers": "kl-to-reference", "regularizers.0.coefficient": 0.001,
        },
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps", "completions"),
        paper_effect="models that learned so match or beat ones that learned with a search engine, on seven sets of "
        "questions, and gain again with one; no number verified",
    ),
)  # fmt: skip
