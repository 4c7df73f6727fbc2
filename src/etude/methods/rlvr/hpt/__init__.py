"""HPT: hybrid post-training, by the unified policy gradient estimator (arXiv:2509.04419).

The paper reads SFT and the policy-gradient methods as one estimator, m * (1 / pi_ref) * A * grad pi, which is
`UnifiedGradient` here. HPT mixes two of its cases by how well the policy does. It changes GRPO in four places:

1. every problem also brings its worked answer tau* (`GroupsAndDemonstrations`);
2. with P the share of the problem's n completions that are right, its loss is alpha L_RL + beta c L_SFT, where
   alpha = 1[P > gamma] and beta = 1[P <= gamma] (`PerformanceGate`): by default only problems of which every
   completion fails, where comparing teaches nothing, learn from tau*, and their completions are dropped;
3. L_RL is that of Dr. GRPO without a clip, L_SFT the mean log-likelihood per token of tau* (`Hybrid`):

       L_RL = -1/(n L) sum_i sum_t (pi / pi_old) (r_i - mean r),   L_SFT = -1/|tau*| sum_t log pi(tau*_t);

4. an entropy bonus of 0.001 on the policy's own completions.

The loss of a minibatch is the mean of its problems' losses, however a batch is cut into minibatches: the loop averages
each kind of rows that the gate kept, and counts it by its share of the minibatch's problems.

The released code (TsinghuaC3I/Unify-Post-Training) normalises otherwise. Of each micro-batch it takes the sum, not the
mean, of all completions' token losses over L, the width of the response; the mean over all demonstrated tokens at
once, so that long answers count for more and one demonstration for as much as many; and 0.001 times the mean entropy
of all tokens, those of worked answers included. Micro-batches, cut by memory, are then added. What a problem weighs
there depends on the cut; here on nothing. The entropy bonus here is summed over a completion and divided by L, as L_RL.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, GroupMean, group_sum, of_episodes
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.errors import ConfigError
from etude.core.fields import Interval, NonNegative
from etude.core.slots import Filter, TokenRegularizer
from etude.experience.mixed import GroupsAndDemonstrations
from etude.methods.rlvr.grpo import grpo
from etude.objectives.unified import BehaviourDenominator, Hybrid, UnifiedGradient
from etude.regularizers.entropy import EntropyBonus

SOFT_RL = (0.0, 0.0, 0.125, 0.25, 0.5, 1.0)
SOFT_SFT = (1.0, 1.0, 0.5, 0.25, 0.125, 0.0)
"""The paper's soft gate: weights of the two losses when 0, 1, 2, 3, 4 or more of 8 completions are right."""


class PerformanceGate(Filter):
    """Weights alpha of a problem's completions and beta of its worked answer, from how many completions are right.

    Args:
        gamma: alpha = 1 and beta = 0 if the share that is right is above gamma, else the other way round; 0 for a
            model that knows the field, 2/8 for one that does not. Below 0 nothing is imitated, from 1 on all is.
        rl, sft: alpha and beta by the number that is right instead, the last for it and all above; both or neither.

    `state["imitated"]` is the share of the batch's problems that are imitated.

    Shapes: [B]. Problems of which no completion is left are imitated.

    One of two completions is right, the last row is the worked answer:

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(solved=torch.tensor([True, False, True]), sampled=torch.tensor([True, True, False]))
    >>> rows.scores, rows.group, rows.once = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0, 0, 0]), lambda: None
    >>> [PerformanceGate(gamma=gamma).bind().weigh(rows).tolist() for gamma in (0.25, 0.5)]
    [[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """

    gamma: Annotated[float, Interval(ge=-1, le=1)] = 0.0
    rl: tuple[NonNegative, ...] = ()
    sft: tuple[NonNegative, ...] = ()

    def check(self) -> None:
        if len(self.rl) != len(self.sft):
            raise ConfigError(
                f"PerformanceGate.rl and sft must be as long as each other, got {len(self.rl)} and {len(self.sft)}."
            )

    def initial_state(self) -> dict[str, Any]:
        return {"imitated": 0.0}

    def weigh(self, batch: TokenBatch) -> Tensor:
        assert batch.solved is not None
        sampled = batch.sampled.to(batch.scores.dtype)
        solved = of_episodes(group_sum, batch, batch.solved.to(sampled) * sampled)
        if self.rl:
            place = solved.long().clamp(max=len(self.rl) - 1)
            alpha, beta = (torch.tensor(table).to(sampled)[place] for table in (self.rl, self.sft))
        else:
            share = solved / of_episodes(group_sum, batch, sampled).clamp(min=1)
            alpha = (share > self.gamma).to(sampled)
            beta = 1 - alpha
        self.state["imitated"] = len(batch.group[beta > 0].unique()) / len(batch.group.unique())
        return torch.where(batch.sampled, alpha, beta)


class OnSampled(TokenRegularizer):
    """Another regularizer, on the rows that the policy sampled only.

    Shapes: as `of`, [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> policy = TokenLogProbs(torch.tensor([[-1.0], [-1.0]]), entropy=torch.tensor([[3.0], [0.0]]))
    >>> OnSampled(of=EntropyBonus(coefficient=0.5))(Rows(sampled=torch.tensor([1.0, 0.0])), policy).sum().item()
    -1.5
    """

    of: TokenRegularizer = EntropyBonus(coefficient=0.001)

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        return self.of(batch, policy) * batch.sampled[:, None]


hpt = grpo.replace(
    id="hpt",
    title="Towards a Unified View of Large Language Model Post-Training",
    paper="arXiv:2509.04419",
    experience=GroupsAndDemonstrations(size=8),
    filters=(PerformanceGate(gamma=0.0),),
    advantages=GroupAdvantage(centre=GroupMean(), scale=None),
    objective=Hybrid(sampled=UnifiedGradient(denominator=BehaviourDenominator(), mask=None), coefficient=1.0),
    aggregation="fixed-length",
    regularizers=(OnSampled(),),
    minibatches=2,
    claim=Claim(
        statement="Imitating only what the policy always fails at beats SFT, GRPO and one after the other at equal "
        "steps, each with the best of four settings of its own.",
        task="compose",
        measures=(
            Measure(name="accuracy against sft-then-grpo"),
            Measure(name="accuracy against grpo"),
            Measure(name="accuracy against sft"),
            Measure(name="as published, accuracy against sft-then-grpo", role="mechanism"),
            Measure(name="as published, accuracy against grpo", role="mechanism"),
            Measure(name="as published, accuracy against sft", role="mechanism"),
            Measure(name="accuracy on other pairs", role="mechanism", margin=-0.05),
            Measure(name="imitated early", role="mechanism", minimum=0.05),
        ),
        learned_on="accuracy against sft-then-grpo",
        paper_effect="Qwen2.5-Math-7B: about 7 points above the strongest rival on AIME 2024",
    ),
)
