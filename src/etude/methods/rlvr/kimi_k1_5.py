"""Kimi k1.5: a recipe for reinforcement learning on long chains of thought (arXiv:2501.12599).

Changes REINFORCE in six places:

1. online mirror descent: each batch's policy pi_i is the reference of its own update; max E[r] - tau KL(pi || pi_i) has
   r - tau log Z = tau log(pi* / pi_i), and with the mean reward of the k completions for tau log Z (`MirrorDescent`)

       loss = 1/(2 tau) (r - rbar - tau log(pi(y) / pi_i(y)))^2,    of whole completions,
       -grad = (r - rbar) grad log pi(y) - tau/2 grad (log(pi(y) / pi_i(y)))^2;

   several minibatches per batch, after which the optimizer forgets what it averaged (`RestartingAdamW`);
2. a length reward once a share of the steps is over (`LengthReward`): with lam = 0.5 - (len - min) / (max - min) over
   the completions of a problem, right ones get lam and wrong ones min(0, lam);
3. problems are drawn by 1 - success rate, easy levels first (`Prioritised`);
4. partial rollouts: completions grow by a number of tokens per step (`PartialRollouts`), and loops are stopped;
5. loops cost reward (`PatternPenalty`);
6. no critic, no process reward, no search.

Completions that ended in an earlier step take part in rbar, not in the loss. The paper gives neither tau nor the weight
of the length reward: 0.1 and 0.2 here. Its warm-up on verified chains is a first stage, `Phase(like="sft", end=0.1)`.
How hard problems are and which can be guessed is in `evaluation.difficulty`, the four ways from long to short answers
in `evaluation.long_to_short`; making tests for problems of coding is left to tasks that run code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from etude.advantages.group import group_max, group_min, group_size, group_sum, of_episodes
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.episodes import Episode
from etude.core.fields import NonNegative, Positive, Probability
from etude.core.slots import Context, Reward, TokenAdvantages, TokenObjective
from etude.curricula.prioritised import Prioritised
from etude.experience.pieces import PartialRollouts
from etude.methods.foundation.reinforce import reinforce
from etude.objectives.sequence import sequence_log_ratio
from etude.optimizers.restarting import RestartingAdamW
from etude.rewards.unexpected import PatternPenalty


class MirrorDescent(TokenObjective):
    """loss[b] = (A - tau log(pi(y) / pi_old(y)))^2 / (2 tau), A the row's advantage (arXiv:2501.12599, eq. 3).

    With A = r - tau log Z it is 0 for every completion exactly at pi ~ pi_old exp(r / tau).

    Shapes: [B]; log-probabilities are summed over a row's action tokens.

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(advantages=torch.ones(2, 1), action_mask=torch.ones(2, 1), action_counts=torch.ones(2))
    >>> rows.behaviour_logp = torch.tensor([[-3.0], [-3.0]])
    >>> MirrorDescent(tau=0.5)(rows, TokenLogProbs(torch.tensor([[-3.0], [-1.0]]))).tolist()
    [1.0, 0.0]
    """

    per_row: ClassVar[bool] = True
    uses_behaviour: ClassVar[bool] = True
    tau: Positive = 0.1

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        return (advantage(batch) - self.tau * sequence_log_ratio(batch, policy)) ** 2 / (2 * self.tau)


def advantage(batch: TokenBatch) -> Tensor:
    """[B] mean advantage of each row's action tokens, which all have the same."""
    assert batch.advantages is not None
    return (batch.advantages * batch.action_mask).sum(1) / batch.action_counts.clamp(min=1)


class MeanBaseline(TokenAdvantages):
    """r - rbar, rbar the mean over the completions of a problem, those that ended in earlier steps included.

    Shapes: [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([1.0, 0.0]), group=torch.zeros(2), action_mask=torch.ones(2, 1))
    >>> rows.once = lambda: None  # every row is an episode of its own
    >>> rows.episodes = [Rows(info={"earlier": [1.0, 1.0]})] * 2
    >>> MeanBaseline()(rows).tolist()
    [[0.25], [-0.75]]
    """

    def __call__(self, batch: TokenBatch) -> Tensor:
        earlier = {int(g): e.info.get("earlier", ()) for g, e in zip(batch.group.tolist(), batch.episodes)}
        total = batch.scores.new_tensor([sum(earlier.get(g, ())) for g in batch.group.tolist()])
        count = batch.scores.new_tensor([len(earlier.get(g, ())) for g in batch.group.tolist()])
        here = of_episodes(group_size, batch).to(count)
        mean = (of_episodes(group_sum, batch, batch.scores) + total) / (here + count)
        return (batch.scores - mean)[:, None] * batch.action_mask


class LengthReward(Reward):
    """weight * lam for right completions and weight * min(0, lam) for wrong ones; 0 where all are equally long.

    lam = 0.5 - (len - min) / (max - min), min and max over the completions of the problem in the batch.

    Args:
        start: share of the training steps before which it is 0.

    Shapes: lengths, right, group [B] -> [B]. Two right answers of 10 and 20 tokens and a wrong one of 30:

    >>> length, right = torch.tensor([10.0, 20.0, 30.0]), torch.tensor([True, True, False])
    >>> (LengthReward(weight=0.5).weight * length_reward(length, right, torch.zeros(3))).tolist()
    [0.25, 0.0, -0.25]
    """

    judges: ClassVar[bool] = False
    weight: NonNegative = 0.2
    start: Probability = 0.3

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        if context.step < self.start * context.steps:
            return [0.0] * len(episodes)
        length = torch.tensor([float(completion_length(e)) for e in episodes], dtype=torch.float64)
        group = torch.tensor([e.group for e in episodes])
        right = torch.tensor([bool(context.task.success(e)) for e in episodes])
        return (self.weight * length_reward(length, right, group)).tolist()


def completion_length(episode: Episode) -> int:
    """Tokens of a completion, whoever sampled them."""
    return sum(len(s.tokens) for s in episode.segments if s.role == "assistant")


def length_reward(length: Tensor, right: Tensor, group: Tensor) -> Tensor:
    """[B] length rewards of completions [B] of problems [B]."""
    low, high = group_min(length, group), group_max(length, group)
    lam = 0.5 - (length - low) / (high - low).clamp(min=1e-12)
    return torch.where(high > low, torch.where(right, lam, lam.clamp(max=0.0)), 0.0)


kimi_k1_5 = reinforce.replace(
    id="kimi-k1-5",
    title="Kimi k1.5: Scaling Reinforcement Learning with LLMs",
    paper="arXiv:2501.12599",
    row="system",
    curriculum=Prioritised(),
    experience=PartialRollouts(size=8),
    rewards=(*reinforce.rewards, PatternPenalty(cut=False, garbled=False), LengthReward()),
    advantages=MeanBaseline(),
    objective=MirrorDescent(tau=0.1),
    aggregation="fixed-length",
    optimizer=RestartingAdamW(),
    minibatches=4,
    claim=Claim(
        statement="Learning from wrong answers too raises accuracy faster than from right ones alone, priority and "
        "easy problems first faster than uniform draws, and where answers have slack the length reward shortens them.",
        task="compose",
        measures=(
            Measure(name="accuracy against right answers only"),
            Measure(name="accuracy against uniform draws"),
            Measure(name="length", direction="lower", smallest=0.25, bounds=(1.0, 32.0)),
            Measure(name="accuracy against no length reward", role="mechanism", margin=-0.05),
            Measure(name="accuracy per token against average", role="mechanism", smallest=0.003),
            Measure(name="accuracy per token against rejection", role="mechanism", smallest=0.003),
            Measure(name="accuracy per token against dpo", role="mechanism", smallest=0.003),
        ),
        learned_on="accuracy against uniform draws",
        paper_effect="AIME 2024: 77.5 with long, 60.8 with short chains of thought; MATH500: 96.2 and 94.6",
    ),
)
