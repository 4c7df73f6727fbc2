"""G2RL: gradient-guided reinforcement learning (arXiv:2512.15687).

Changes GRPO in one place, the reward r in {-1, +1}: it grows with how much the completion's gradient differs in
direction from those of the other completions of its problem.

1. What a token does to the policy goes through phi_t = W'(onehot(y_t) - p_t), the row of the head that was drawn minus
   the mean row; phi_t / temperature is d log p(y_t) / d h_t. A completion's feature Phi_i is the mean of its tokens'.
2. With S_ij = cos(Phi_i, Phi_j) and weights w_ij = exp(r_j) / sum_{k != i} exp(r_k) that look at right answers most,

       nu_i = max(1 - sum_{j != i} w_ij S_ij^2, 0),

   0 where the others span the completion's direction, 1 where it is orthogonal to all of them.
3. nu is stretched to [0, 1] within the group, and r_i becomes clip(r_i (1 + lambda nu_i), -3, 3): a novel right answer
   gains, a novel wrong one loses more, and a wrong one that resembles right ones loses least.

The paper writes the factor with |r| (the reading here); without the bars a novel wrong answer would lose less,
which is `rewards.1.wrong=spared`. It gives no lambda: 1 here. Features need the hidden states under which the
completion was sampled, which are computed in a pass of their own, without gradient.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from etude.advantages.group import group_max, group_min
from etude.core.batches import Head, TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.fields import NonNegative, Positive
from etude.core.part import Need
from etude.core.slots import GroupReward
from etude.methods.rlvr.grpo import grpo

NOTICEABLE = 1e-5
"""Differences of novelty within a group that are more than rounding: equal completions are equally novel."""


class GradientNovelty(GroupReward):
    """r~_i = clip(r_i (1 + strength nubar_i), -limit, limit) with r_i = 2 score_i - 1, for scores of 0 and 1.

    Shapes: [B] -> [B], in [-limit, limit]. A completion alone in its group has nubar 0.

    Args:
        strength: lambda.
        limit: c.
        wrong: whether novel wrong answers are 'punished' more than others, or 'spared'.

    Of three right answers the first two have opposite features, which is the same direction:

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.ones(3), group=torch.zeros(3), once=lambda: None, tokens=torch.tensor([[0], [1], [2]]))
    >>> rows.hidden, rows.action_mask = torch.zeros(3, 1, 2), torch.ones(3, 1, dtype=torch.bool)
    >>> rows.head = Head(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    >>> GradientNovelty(strength=1.0).rescore(rows).round(decimals=4).tolist()
    [1.0, 1.0, 2.0]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.HIDDEN})
    strength: NonNegative = 1.0
    limit: Positive = 3.0
    wrong: Literal["punished", "spared"] = "punished"

    def rescore(self, batch: TokenBatch) -> Tensor:
        assert batch.head is not None and batch.hidden is not None
        rewards = 2 * batch.scores - 1
        features = completion_features(batch.hidden, batch.tokens, batch.action_mask, batch.head)
        nu = novelty(features, rewards, batch.group)
        weight = rewards.abs() if self.wrong == "punished" else rewards
        shaped = rewards * (1 + self.strength * weight * stretched(nu, batch.group))
        return shaped.clamp(-self.limit, self.limit)


def token_features(hidden: Tensor, tokens: Tensor, head: Head) -> Tensor:
    """phi [N, H] = W'(onehot(y) - p) for hidden [N, H] and tokens [N]."""
    return head.score(hidden, tokens) * head.temperature


def completion_features(hidden: Tensor, tokens: Tensor, mask: Tensor, head: Head) -> Tensor:
    """Phi [B, H]: the mean of phi over each row's action tokens, for hidden [B, T, H] and tokens [B, T]."""
    phi = token_features(hidden[mask], tokens[mask], head)
    row = mask.nonzero()[:, 0]
    total = phi.new_zeros(len(mask), phi.shape[1]).index_add_(0, row, phi)
    return total / mask.sum(1).clamp(min=1)[:, None]


def novelty(features: Tensor, rewards: Tensor, group: Tensor, epsilon: float = 1e-8) -> Tensor:
    """nu [B] in [0, 1], for features [B, H] and rewards [B]; 1 for a row alone in its group."""
    unit = features / (features.norm(dim=1, keepdim=True) + epsilon)
    others = (group[:, None] == group).fill_diagonal_(False)
    weights = torch.where(others, rewards.exp(), 0.0)
    weights = weights / (weights.sum(1, keepdim=True) + epsilon)
    explained: Tensor = (weights * (unit @ unit.T) ** 2).sum(1)
    return (1 - explained).clamp(min=0)


def stretched(values: Tensor, group: Tensor) -> Tensor:
    """[B] values moved to [0, 1] within each group; 0 where all of a group are equal up to rounding."""
    low = group_min(values, group)
    spread = group_max(values, group) - low
    return torch.where(spread > NOTICEABLE, (values - low) / spread.clamp(min=NOTICEABLE), 0.0)


g2rl = grpo.replace(
    id="g2rl",
    title="Can LLMs Guide Their Own Exploration? Gradient-Guided Reinforcement Learning for LLM Reasoning",
    paper="arXiv:2512.15687",
    rewards=(*grpo.rewards, GradientNovelty()),
    claim=Claim(
        statement="Paying for gradients in new directions solves more problems in 16 attempts and finds more different "
        "solutions than GRPO, at no cost in a single attempt.",
        task="countdown",
        setting="three numbers, 32 problems, 32 steps, from tiny",
        measures=(
            Measure(name="pass@16", smallest=0.02),
            Measure(name="solutions", smallest=0.1, bounds=(0.0, None)),
            Measure(name="pass@1", margin=-0.02, smallest=0.02),
            Measure(name="pass@16 against an entropy bonus", role="mechanism", smallest=0.02),
            Measure(name="solutions against an entropy bonus", role="mechanism", smallest=0.1, bounds=(0.0, None)),
            Measure(name="cosine", role="mechanism", direction="lower", smallest=0.01),
        ),
        equal=("completions",),
        learned_on="pass@1",
        paper_effect="AIME25, Qwen3-4B-Base: pass@16 45.0 against 32.5, pass@1 20.1 against 10.0 (entropy bonus 16.1)",
    ),
)
