"""P3O: pairwise proximal policy optimization (arXiv:2310.00212).

Changes PPO in four places:

1. two responses to each prompt are compared, and only the difference of their rewards has a say: what is paid to all
   responses of a prompt changes nothing, as in the likelihood that reward models are fitted by;
2. a response is one action: with u = pi(y) / pi_old(y) of whole responses and sg a stop-gradient, what is maximised is

       1/2 sum_i min(w_i u_i, w_i clip(u_i, 1 - epsilon, 1 + epsilon)),   w_i = sg[(r_i - r_j) u_j]        (V1)

   `--set objective=joint-pairwise-surrogate` is the variant that clips the difference d = log pi(y_1) - log pi(y_2):

       1/2 min(w d, w clip(d, d_old - epsilon, d_old + epsilon)),   w = sg[(r_1 - r_2) u_1 u_2]              (V2)

3. the distance from the policy at the start is in the reward, r - beta log(pi_old / ref), beta = 0.05;
4. neither critic nor GAE.

The weight holds the ratios of both responses, so that without clipping the gradient is that of E[r] off the policy too:

    grad E[r] = 1/2 E_old[(r_1 - r_2) u_1 u_2 (grad log pi(y_1) - grad log pi(y_2))]

On fresh samples it is that of RLOO with two completions. Of more than two, all pairs of a prompt are compared. Where
exactly the clip acts in V1 and V2 is read from the paper's two variants; there is no code of the authors'.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from etude.advantages.group import episode_sum
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.fields import Positive
from etude.core.slots import TokenObjective
from etude.experience.groups import Groups
from etude.methods.foundation.ppo import ppo
from etude.objectives.pairs import AllPairs, answers_of
from etude.objectives.sequence import sequence_log_ratio
from etude.references.frozen import Frozen
from etude.rewards.kl import KLPenalty


class Versus(NamedTuple):
    """Every answer against every other one of its problem, both ways round: [N] each but the last two.

    Args:
        mine, other: log-ratios log u of the answer and of the one that it is compared with, the first with gradient.
        gap: r - r' of the two.
        row: number of the answer, among E.
        of: [E] how many others each answer is compared with.
        place: [B] the answer of each row; None: a row each.
    """

    mine: Tensor
    other: Tensor
    gap: Tensor
    row: Tensor
    of: Tensor
    place: Tensor | None

    def mean(self, values: Tensor) -> Tensor:
        """[B] mean of values [N] over those that each row's answer is compared with; 0 for one alone."""
        total = torch.zeros_like(self.of, dtype=values.dtype).index_add(0, self.row, values) / self.of.clamp(min=1)
        return total if self.place is None else total[self.place]


class PairwiseSurrogate(TokenObjective):
    """-min(w u, w clip(u, 1 - epsilon, 1 + epsilon)), w = sg[(r - r') u'], of each answer against the others (V1).

    u = pi(y) / pi_old(y) of the whole answer y, u' of the one that it is compared with. The mean over rows is the mean
    over pairs of what the paper maximises, with its 1/2.

    Shapes: returns [B], in rewards.

    Args:
        epsilon: of the clip.
        clip_weights: whether the u' inside the weight are clipped as well, for safety.

    A pair that has not moved, of which the first answer is worth 2 more:

    >>> from types import SimpleNamespace as Rows
    >>> old = torch.tensor([[-1.0], [-2.0]])
    >>> rows = Rows(behaviour_logp=old, action_mask=torch.ones(2, 1), group=torch.zeros(2), episode=None)
    >>> rows.scores, rows.once = torch.tensor([2.0, 0.0]), lambda: None
    >>> PairwiseSurrogate()(rows, TokenLogProbs(old)).tolist()
    [-2.0, 2.0]
    """

    couples: ClassVar[Literal["row", "group"]] = "group"
    per_row: ClassVar[bool] = True
    uses_behaviour: ClassVar[bool] = True
    epsilon: Positive = 0.2
    clip_weights: bool = False

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        pair = versus(batch, policy)
        ratio, weight = pair.mine.exp(), pair.gap * self._weighing(pair.other)
        return pair.mean(-torch.minimum(weight * ratio, weight * self._clipped(ratio)))

    def metrics(self, batch: TokenBatch, policy: TokenLogProbs) -> dict[str, Tensor]:
        """`pairs_clipped`: share of an answer's comparisons in which the clip takes its gradient."""
        pair = versus(batch, policy)
        above, below = (pair.gap > 0) & (pair.mine > 0), (pair.gap < 0) & (pair.mine < 0)
        beyond = (pair.mine.exp() - 1).abs() > self.epsilon
        return {"pairs_clipped": pair.mean(((above | below) & beyond).to(pair.mine))}

    def _clipped(self, ratio: Tensor) -> Tensor:
        return ratio.clamp(1 - self.epsilon, 1 + self.epsilon)

    def _weighing(self, log_ratio: Tensor) -> Tensor:
        """u inside the weight, without gradient."""
        ratio = log_ratio.detach().exp()
        return self._clipped(ratio) if self.clip_weights else ratio


class JointPairwiseSurrogate(PairwiseSurrogate):
    """-1/2 min(w d, w clip(d, d_old - epsilon, d_old + epsilon)), w = sg[(r - r') u u'], of each pair (V2).

    d = log pi(y) - log pi(y') of whole answers, d_old the same under the policy that sampled. From d its old value is
    taken away, which changes no gradient: what is clipped is d - d_old.

    Shapes: returns [B], in rewards times nats.

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(behaviour_logp=torch.tensor([[-1.0], [-2.0]]), action_mask=torch.ones(2, 1), group=torch.zeros(2))
    >>> rows.episode, rows.scores, rows.once = None, torch.tensor([2.0, 0.0]), lambda: None
    >>> moved = TokenLogProbs(torch.tensor([[-0.5], [-2.5]]))
    >>> JointPairwiseSurrogate(epsilon=0.5)(rows, moved).tolist()  # d - d_old = 1, beyond the clip, and u u' = 1
    [-0.5, -0.5]
    """

    epsilon: Positive = 1.0

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        pair = versus(batch, policy, both=True)
        weight = pair.gap * self._weighing(pair.mine) * self._weighing(pair.other)
        away = pair.mine - pair.other
        return pair.mean(-torch.minimum(weight * away, weight * away.clamp(-self.epsilon, self.epsilon)) / 2)

    def metrics(self, batch: TokenBatch, policy: TokenLogProbs) -> dict[str, Tensor]:
        """As of `pairwise-surrogate`, of d."""
        pair = versus(batch, policy)
        away = pair.mine - pair.other
        beyond = (away.abs() > self.epsilon) & (away * pair.gap > 0)
        return {"pairs_clipped": pair.mean(beyond.to(away))}

    def _clipped(self, ratio: Tensor) -> Tensor:
        return ratio.clamp(max(0.0, 1 - self.epsilon), 1 + self.epsilon)


def versus(batch: TokenBatch, policy: TokenLogProbs, both: bool = False) -> Versus:
    """Every answer against every other one of its problem; `other` has a gradient as well with `both`."""
    (log_ratio, scores, group), _, place = answers_of(
        batch, episode_sum(sequence_log_ratio(batch, policy), batch), batch.scores, batch.group
    )
    pairs = AllPairs()(torch.zeros_like(scores), group)
    row, against = torch.cat([pairs.better, pairs.worse]), torch.cat([pairs.worse, pairs.better])
    other = log_ratio if both else log_ratio.detach()
    of = torch.bincount(row, minlength=len(scores))
    gap = (scores[row] - scores[against]).to(log_ratio)
    return Versus(log_ratio[row], other[against], gap, row, of, place)


p3o = ppo.replace(
    id="p3o",
    title="Pairwise Proximal Policy Optimization: Harnessing Relative Feedback for LLM Alignment",
    paper="arXiv:2310.00212",
    experience=Groups(size=2),
    rewards=(*ppo.rewards, KLPenalty(coefficient=0.05)),
    advantages=None,
    objective=PairwiseSurrogate(),
    critic=None,
    reference=Frozen(),
    claim=Claim(
        statement="At equal divergence from the start comparing two completions, without a critic, earns more of the "
        "gold score than PPO does.",
        bed="preference/digest",
        baseline="ppo-rlhf",
        changes={
            "rewards": "reward-model,kl-penalty",
            "rewards.reward-model.weight": 0.2,
            "rewards.reward-model.model": "{proxy}",
            "experience.size": 2,
            "problems": 64,
            "optimizer.lr": 1e-3,
        },
        measures=(
            Measure(name="frontier", smallest=0.3),
            Measure(name="frontier:kl", role="mechanism", smallest=0.1),
            Measure(name="end", role="mechanism", smallest=0.3),
        ),
        equal=("completions",),
        sweep={"optimizer.lr": (3e-4, 1e-3, 3e-3)},
        frontier={"rewards.kl-penalty.coefficient": (0.01, 0.05, 0.2)},
        learned_on="frontier",
        paper_effect="HH: 0.1 to 0.3 more reward than PPO and DPO at equal KL; 57.0 % against PPO by GPT-4's judgement",
    ),
)
