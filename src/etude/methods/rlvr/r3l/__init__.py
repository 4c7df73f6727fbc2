"""R3L: reflect, then retry; learn from where the two part (arXiv:2601.03715).

Changes GRPO in four places:

1. of a group of N, N / 2 are attempts. After each the policy reports how it ended, from which step k to retry, and one
   word of advice; unless it reports success, step k is returned to and the policy goes on with the advice in view.
   The retry is learned without the advice, so that the policy learns to do well unadvised (`ReflectThenRetry`). Rows
   learned so carry log-probabilities of another context: they are marked, and not compared with the trainer's;
2. pivotal credit: the k steps that attempt and retry have in common get no gradient in either;
3. A = r - mean(r) over the attempts and retries of a problem, times alpha = 3 where it is not negative
   (`AmplifiedAdvantage`): where most fail, what worked still weighs more than the many things that did not. Reports
   that led to a success that was paid better or took fewer steps than the attempt, the retries they led to with the
   advice in view, and true reports of success are further rows, with A = 1;
4. the loss has neither ratio nor clip nor standard deviation:

       loss = -1/(1 + tau) mean_t A log pi,    tau = 1    (`OPMD`).

The published code gives every completion with full reward A = 1 in the end, whatever its group (`full=1`); the default
is the paper's rule alone. Reports are the paper's JSON shrunk to what a small model can say: outcome, step, a word.
That r2 > r1 is judged by what the environment paid; that fewer steps count too is from the published code (a slow
success may be worth a retry), and steps that attempt and retry have in common count in both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, GroupMean
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.fields import NonNegative, Positive
from etude.core.slots import TokenAdvantages
from etude.methods.rlvr.grpo import grpo
from etude.methods.rlvr.r3l.retry import ReflectThenRetry
from etude.objectives.policy_gradient import PolicyGradient


class AmplifiedAdvantage(TokenAdvantages):
    """alpha A where A >= 0, A where it is negative; 1 for rows that are only imitated, which nothing is compared with.

    Args:
        of: A.
        alpha: the factor.
        full: scores from here on get 1 instead; None: no such score.

    Shapes: scores [B] -> advantages [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([1.0, 0.0]), group=torch.tensor([0, 0]), action_mask=torch.ones(2, 1))
    >>> rows.episodes, rows.sampled = [Rows(auxiliary=False)] * 2, torch.ones(2, dtype=torch.bool)
    >>> rows.once, rows.rows = lambda: None, lambda chosen: rows
    >>> AmplifiedAdvantage(alpha=3.0)(rows).tolist()
    [[1.5], [-0.5]]
    """

    of: GroupAdvantage = GroupAdvantage(centre=GroupMean(), scale=None)
    alpha: Positive = 3.0
    full: float | None = None

    def __call__(self, batch: TokenBatch) -> Tensor:
        extra = torch.tensor([e.auxiliary for e in batch.episodes], device=batch.scores.device)
        advantages = torch.ones_like(batch.scores)
        compared = (~extra).nonzero()[:, 0]
        if len(compared):
            rows = batch.rows(compared)
            found = self.of.of_scores(rows, rows.scores)
            found = torch.where(found >= 0, self.alpha * found, found)
            advantages[compared] = found if self.full is None else found.masked_fill(rows.scores >= self.full, 1.0)
        return advantages[:, None] * batch.action_mask


class OPMD(PolicyGradient):
    """-A log pi / (1 + tau): one step of online policy mirror descent, tau the weight of staying close.

    Shapes: [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> OPMD(tau=1.0)(Rows(advantages=torch.tensor([[2.0]])), TokenLogProbs(torch.tensor([[-3.0]]))).tolist()
    [[3.0]]
    """

    tau: NonNegative = 1.0

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        return super().__call__(batch, policy) / (1 + self.tau)


r3l = grpo.replace(
    id="r3l",
    title="R^3L: Reflect-then-Retry Reinforcement Learning with Language-Guided Exploration, Pivotal Credit, and "
    "Positive Amplification",
    paper="arXiv:2601.03715",
    experience=ReflectThenRetry(size=8),
    advantages=AmplifiedAdvantage(alpha=3.0),
    objective=OPMD(tau=1.0),
    aggregation="token-mean",
    claim=Claim(
        statement="On a text grid world, with at most as many episodes, it solves more than GRPO and more than without "
        "retries, and retries succeed more often than other attempts at the same problems.",
        task="compose",
        measures=(
            Measure(name="success against grpo"),
            Measure(name="success against without retries"),
            Measure(name="success of retries", smallest=0.02),
            Measure(name="retries", role="mechanism", minimum=0.1),
        ),
        learned_on="success against grpo",
        paper_effect="5% to 52% relative improvement over its rivals on ALFWorld, WebShop, ScienceWorld and in math",
    ),
)
