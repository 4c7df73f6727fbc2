"""PACS: implicit actor critic coupling by supervised learning (arXiv:2509.02522).

Changes RLOO in two places:

1. the outcome R in {0, 1} is a label, predicted by a score that the policy itself gives. With
   rhat_i = beta log (pi(y_i) / pi_old(y_i)), a sum over tokens,

       psi_i = rhat_i - 1/(K-1) sum_{j != i} rhat_j,   loss = mean_i omega_i BCE(sigma(psi_i), R_i),

   where omega_i = K / (2 K_class) balances right and wrong answers in groups that have both, and is 1 in others.
   The gradient is sum_i omega_i (sigma(psi_i) - R_i) grad psi_i: the first factor is a critic's error, the second an
   actor's score. There are no advantages; groups that are all right or all wrong teach as soon as psi differs from 0;
2. pi_old stays for four minibatches, and the gradient's norm is not clipped (steps with a norm that is not finite are
   skipped, as everywhere here).

At pi = pi_old all psi are 0, and without omega the gradient is beta times RLOO's.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from etude.advantages.group import episode_sum, group_mean, group_size, group_sum, lone_completion, of_episodes
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.fields import Positive
from etude.core.method import Method
from etude.core.slots import TokenObjective
from etude.methods.rlvr.rloo import rloo
from etude.objectives.sequence import sequence_log_ratio, sequence_sum


class OutcomePrediction(TokenObjective):
    """omega BCE(sigma(psi), R): the policy's own score of a completion predicts its outcome (arXiv:2509.02522).

    Shapes: psi, omega, R and the loss [B]; the group stays together. R is 1 where the reward is above `threshold`. Rows
    of one episode share its psi, and its loss between them.

    Args:
        beta: scale of the implicit reward.
        implicit: 'ratio' is beta log (pi / pi_old) of the completion, 'likelihood' is beta times its mean log pi.
        compared: psi is rhat minus the mean of the others ('leave-one-out'), (rhat - mean) / std ('standardized'), or
            rhat itself ('none').
        balanced: whether right and wrong answers of a group weigh the same in total.

    The right one has become three times as likely, so psi = log 3 and -log 3, and both chances are 3/4:

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([1.0, 0.0]), group=torch.zeros(2), action_mask=torch.ones(2, 1))
    >>> rows.once = lambda: None  # every row is an episode of its own
    >>> rows.behaviour_logp = torch.tensor([[0.25], [0.5]]).log()
    >>> loss = OutcomePrediction()(rows, TokenLogProbs(torch.tensor([[0.75], [0.5]]).log()))
    >>> [round(x, 4) for x in loss.tolist()]
    [0.2877, 0.2877]
    """

    couples: ClassVar[Literal["row", "group"]] = "group"
    per_row: ClassVar[bool] = True
    uses_behaviour: ClassVar[bool] = True
    beta: Positive = 1.0
    implicit: Literal["ratio", "likelihood"] = "ratio"
    compared: Literal["leave-one-out", "standardized", "none"] = "leave-one-out"
    balanced: bool = True
    threshold: float = 0.5

    def objection(self, method: Method) -> str | None:
        return None if self.compared == "none" else lone_completion(method)

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        right = (batch.scores > self.threshold).to(policy.logp.dtype)
        omega = of_episodes(balance, batch, right) if self.balanced else None
        loss = binary_cross_entropy_with_logits(self.score(batch, policy), right, omega, reduction="none")
        return loss / episode_sum(torch.ones_like(loss), batch)

    def score(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """psi [B], with gradient."""
        if self.implicit == "ratio":
            implicit = self.beta * episode_sum(sequence_log_ratio(batch, policy), batch)
        else:
            count = episode_sum(batch.action_counts, batch)
            implicit = self.beta * episode_sum(sequence_sum(policy.logp, batch), batch) / count.clamp(min=1)
        return implicit if self.compared == "none" else of_episodes(self._compared, batch, implicit)

    def _compared(self, implicit: Tensor, group: Tensor) -> Tensor:
        """psi [B] from implicit rewards [B] of completions."""
        centred, size = implicit - group_mean(implicit, group), group_size(group).to(implicit.dtype)
        degrees = (size - 1).clamp(min=1)
        if self.compared == "leave-one-out":
            return centred * size / degrees
        variance = group_sum(centred**2, group) / degrees
        return centred / (variance.clamp(min=1e-24).sqrt() + 1e-6)

    def metrics(self, batch: TokenBatch, policy: TokenLogProbs) -> dict[str, Tensor]:
        """`prediction`: share of outcomes on the right side of psi = 0. `score_size`: |psi|."""
        psi = self.score(batch, policy).detach()
        return {"prediction": ((psi > 0) == (batch.scores > self.threshold)).float(), "score_size": psi.abs()}


def balance(right: Tensor, group: Tensor) -> Tensor:
    """omega [B] = K / (2 K_class) in groups with right and wrong answers, 1 in others.

    >>> balance(torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0]), torch.tensor([0, 0, 0, 0, 1]))[:4].tolist()
    [2.0, 0.6666666865348816, 0.6666666865348816, 0.6666666865348816]
    """
    share = group_mean(right, group)
    mine = torch.where(right > 0, share, 1 - share)
    return torch.where((share > 0) & (share < 1), 0.5 / mine.clamp(min=1e-12), torch.ones_like(mine))


assert rloo.optimizer is not None
pacs = rloo.replace(
    id="pacs",
    title="Implicit Actor Critic Coupling via a Supervised Learning Framework for RLVR",
    paper="arXiv:2509.02522",
    advantages=None,
    objective=OutcomePrediction(beta=1.0),
    optimizer=rloo.optimizer.replace(clip_norm=None),
    minibatches=4,
    claim=Claim(
        statement="PACS has at least GRPO's pass@1, and at equal pass@1 a higher pass@16 and more entropy.",
        task="compose",
        setting="compose, enumerable",
        measures=(
            Measure(name="pass@1", margin=-0.02),
            Measure(name="pass@16 at equal pass@1", smallest=0.02),
            Measure(name="entropy at equal pass@1", smallest=0.05, bounds=(0.0, None)),
            Measure(name="pass@1 against ppo", role="mechanism", margin=-0.02),
            Measure(name="exact pass@1", role="mechanism", margin=-0.02),
        ),
        equal=("completions",),
        learned_on="pass@1",
        paper_effect="AIME 2025 pass@256 59.8% against 46.5% (PPO) and 45.4% (GRPO); entropy decays more slowly.",
    ),
)
