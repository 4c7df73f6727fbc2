"""Pairwise-RL: the reward model and the policy's reward ask the same question, which of two answers is better
(arXiv:2504.04950).

Changes PPO in four places:

1. a language model is fine-tuned to say a verdict on pairs, each in both orders, by next-token likelihood
   (`Verdicts`, then SFT), and the chance that one answer beats another is averaged over both orders:

       pbar(a > b) = (p(first wins | a, b) + 1 - p(first wins | b, a)) / 2

   so that pbar(a > b) + pbar(b > a) = 1 and pbar(a > a) = 1/2, whatever place the model favours;
2. every problem has an anchor, a good answer (its worked one); the reward, at the last token, is R = pbar(y > anchor)
   in [0, 1], and its mean is the rate of wins against the anchors: 1/2 is "as good as the anchor" on every prompt.
   `--set rewards.against-anchor.log_odds=true` pays log(R / (1 - R)): for a judge p(a > b) = sigmoid(r(a) - r(b)) that
   is r(y) - r(anchor), scalar-reward PPO but for a constant of the prompt;
3. every token pays for its distance from the policy at the start;
4. the critic is a network of its own that reads the anchor between the prompt and the answer, V(x, anchor, y_<t), and
   learns alone in the first steps.

What is beyond the abstract is our reading: what the critic reads (`critic=value-model`: the answer alone), and how
long it learns alone. Left out are a penalty on judges that contradict themselves in the other order,
(p(first wins | a, b) + p(first wins | b, a) - 1)^2, and a critique that the judge writes before its verdict: here the
verdict is the first that it says. No code is public.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.episodes import Episode, Problem
from etude.core.errors import DataError, RewardError
from etude.core.fields import Fraction, Positive
from etude.core.learners import Learning
from etude.core.recipe import Recipe
from etude.core.slots import Context, Reward
from etude.core.worlds import World
from etude.learners.value_model import Valued, ValueModel
from etude.methods.foundation.ppo import ppo
from etude.optimizers.adam import AdamW
from etude.policies.forward import predictive_states
from etude.references.frozen import Frozen
from etude.rewards.judged import View, WholeCompletion
from etude.rewards.judges import Duel, Judge, prompt_of
from etude.rewards.kl import KLPenalty
from etude.rewards.pair_judges import ModelPairJudge
from etude.stages.chain import Derive, Train

if TYPE_CHECKING:
    from etude.core.task import LanguageTask
    from etude.policies.language import LanguagePolicy

ANCHOR = "demonstration"
"""What of a problem's info is the answer that others are held against."""
QUESTION, FIRST, SECOND = "{prompt}{given}|{wanted}?", "1", "2"
"""How a judge is asked which of two answers is better, and its verdicts."""


def anchor_of(problem: Problem) -> str:
    """The answer that others are held against. Raises DataError for a problem that has none."""
    if isinstance(anchor := problem.info.get(ANCHOR), str):
        return anchor
    raise DataError(
        f"Problem {problem.id!r} has no anchor, a worked answer that others are compared with: give data files a "
        "'completion' column, or choose a task that has worked answers."
    )


class Verdicts(Derive):
    """Rows that ask which answer of a pair is better, each pair in both orders, with the verdict as what is to be said.

    Pairs are `info['chosen']` and `info['rejected']`.

    Args:
        question: {prompt}, {given} and {wanted} are filled in, the last two with the answers, in their order.
        first, second: the verdicts.

    Raises: DataError for a problem without a pair.

    >>> pair = Problem("p/1", "1+1=", info={"chosen": "2", "rejected": "3"})
    >>> [row["prompt"] + row["completion"] for row in Verdicts(called="verdicts").rows([pair], None, 0)]
    ['1+1=2|3?1', '1+1=3|2?2']
    """

    question: str = QUESTION
    first: str = FIRST
    second: str = SECOND

    def rows(self, problems: Sequence[Problem], task: LanguageTask, seed: int) -> list[dict[str, Any]]:
        return [row for problem in problems for row in self._both(problem)]

    def _both(self, problem: Problem) -> list[dict[str, Any]]:
        chosen, rejected = (problem.info.get(which) for which in ("chosen", "rejected"))
        if not isinstance(chosen, str) or not isinstance(rejected, str):
            raise DataError(
                f"Problem {problem.id!r} has no pair of answers to judge: give data files the columns 'chosen' and "
                "'rejected', or choose a task that has them, like 'digest'."
            )
        orders = (chosen, rejected, self.first), (rejected, chosen, self.second)
        asked = prompt_of(problem)
        return [
            {"prompt": self.question.format(prompt=asked, given=a, wanted=b), "completion": verdict}
            for a, b, verdict in orders
        ]


class AgainstAnchor(Reward):
    """weight pbar(y > anchor), how likely a judge takes the answer for better than the problem's anchor.

    Args:
        judge: who compares; a judge of pairs is asked in both orders.
        sees: what it sees of an answer; nothing to see is an empty answer.
        log_odds: whether log(pbar / (1 - pbar)) is paid instead, pbar kept `edge` away from 0 and 1.

    Raises: DataError for a problem without an anchor; RewardError where the judge has no answer.

    >>> from types import SimpleNamespace as Run
    >>> from etude.core.episodes import Segment
    >>> from etude.rewards.pair_judges import SimulatedJudge
    >>> run = Run(policy=None, task=Run(score=lambda p, text: float(text)))
    >>> problem = Problem("p/1", "how much?", info={"demonstration": "2"})
    >>> said = [Episode(problem, [Segment("assistant", text)]) for text in ("2", "3")]
    >>> [round(x, 4) for x in AgainstAnchor(judge=SimulatedJudge()).bind().score(said, run)]
    [0.5, 0.7311]
    >>> [round(x, 4) for x in AgainstAnchor(judge=SimulatedJudge(), log_odds=True).bind().score(said, run)]
    [0.0, 1.0]
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})  # it reads text

    judge: Judge = ModelPairJudge(question=QUESTION, yes=FIRST, no=SECOND)
    sees: View = WholeCompletion()
    weight: Positive = 1.0
    log_odds: bool = False
    edge: Fraction = 1e-6

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        seen = [self.sees.case(episode, context) for episode in episodes]
        duels = [
            Duel(e.problem, "" if case is None else case.given, anchor_of(e.problem)) for e, case in zip(episodes, seen)
        ]
        found = []
        for episode, opinion in zip(episodes, self.judge.compare(duels, context)):
            if opinion is None:
                raise RewardError(
                    f"{self.judge.name} had no answer for problem {episode.problem.id!r}, whose completion was "
                    f"{episode.completion!r}. {self.judge.why} Mend the judge, or shorten what it is asked."
                )
            found.append(self.weight * self._paid(opinion.chance))
        return found

    def _paid(self, chance: float) -> float:
        if not self.log_odds:
            return chance
        inside = min(max(chance, self.edge), 1 - self.edge)
        return math.log(inside / (1 - inside))


class AnchoredValueModel(ValueModel):
    """As `value-model`, with the problem's anchor between prompt and answer: V(x, anchor, y_<t).

    Shapes: values, returns [B, T] -> [B, T].

    >>> AnchoredValueModel(lead=5).lead
    5
    """

    def build(self, policy: LanguagePolicy) -> Valued:
        return AnchoredValued(policy)


class AnchoredValued(Valued):
    """A copy of a policy's model that reads anchors before answers."""

    def values(self, batch: TokenBatch) -> Tensor:
        own = self.policy
        head, shown = own.add_value_head(), with_anchors(batch, own)
        with torch.autocast(own.device.type, torch.bfloat16, enabled=own.autocast):
            hidden = predictive_states(own.backbone(own.merged()), own.config, shown, share=False)
        flat: Tensor = head(hidden.to(head.weight.dtype))[:, 0]
        return flat.new_zeros(batch.action_mask.shape).masked_scatter(batch.action_mask, flat)


def with_anchors(batch: TokenBatch, policy: LanguagePolicy) -> TokenBatch:
    """The rows with the anchor's tokens before the first that was sampled: tokens and masks [B, T + anchors].

    Raises: DataError for a row whose problem has no anchor.
    """
    rows, masks = [], []
    for tokens, mask, size, episode in zip(
        batch.tokens.tolist(), batch.action_mask.tolist(), batch.lengths.tolist(), batch.episodes
    ):
        begin, anchor = mask.index(True), policy.encode(anchor_of(episode.problem))
        rows.append([*tokens[:begin], *anchor, *tokens[begin:size]])
        masks.append([*mask[:begin], *[False] * len(anchor), *mask[begin:size]])
    longest = max(map(len, rows))
    device = batch.tokens.device
    return dataclasses.replace(
        batch,
        tokens=torch.tensor([r + [0] * (longest - len(r)) for r in rows], device=device),
        attention_mask=torch.tensor([[True] * len(r) + [False] * (longest - len(r)) for r in rows], device=device),
        action_mask=torch.tensor([m + [False] * (longest - len(m)) for m in masks], device=device),
    )


pairwise_rl = Recipe(
    id="pairwise-rl",
    title="A Unified Pairwise Framework for RLHF: Bridging Generative Reward Modeling and Policy Optimization",
    paper="arXiv:2504.04950",
    runs=(
        Verdicts(called="verdicts", problems=4000),
        Train(called="judge", method="sft", steps=250, task="{verdicts}", begins="start"),
        Train(
            called="policy",
            method="pairwise-ppo",
            steps=100,
            begins="start",
            set=("rewards.against-anchor.judge.model={judge}",),
        ),
    ),
    claim=Claim(
        statement="On as many pairs PPO on a pair judge's chances against an anchor ends with a higher true reward "
        "than PPO on a scalar reward model.",
        task="digest",
        setting="4,000 pairs; two layers of width 64 after 1,000 supervised steps; 250 steps of judge or reward model, "
        "then 60 steps of 64 x 2",
        measures=(Measure(name="reward", smallest=0.2, bounds=(-6.75, 17.3)),),
        equal=("completions",),
        sweep={"optimizer.lr": (3e-4, 1e-3)},
        learned_on="reward",
        paper_effect="gains on internal sets and public benchmarks; no single number in the abstract",
    ),
)

pairwise_ppo = ppo.replace(
    id="pairwise-ppo",
    title="A Unified Pairwise Framework for RLHF, on a judge of pairs",
    paper="arXiv:2504.04950",
    rewards=(AgainstAnchor(), KLPenalty(coefficient=0.02)),
    critic=AnchoredValueModel(learning=Learning(optimizer=AdamW(), epochs=2, minibatches=2), lead=5),
    reference=Frozen(),
)
