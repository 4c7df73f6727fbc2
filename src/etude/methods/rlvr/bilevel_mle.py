"""Bilevel MLE: learn the reward from data so that its policy gradient maximises likelihood (arXiv:2510.07624).

    outer   max_phi E_{(x, y) ~ q}[log p_{theta*(phi)}(y | x)]
    inner   theta*(phi) = argmax_theta E_{x, y} E_{yhat ~ p_theta(. | x)}[r_phi(yhat, y)] + lambda H(p_theta(. | x))

with r_U(yhat, y) = -(yhat - y)' U (yhat - y). For answers that are right or wrong (one-hot vectors, U = I/2) the reward
is 0 or -1, and the inner optimum is p(y | x) proportional to exp(q(y | x) / lambda). That is `bilevel-mle`, which
changes REINFORCE in three places:

1. the reward is -1 for an answer that is not the known one;
2. lambda times the entropy of the whole completion is added, as a reward for each token's surprise;
3. five completions of a problem are compared with the mean of the others, and the tokens of each are summed.

Where y is a vector, U is learned: from the residual covariance by the closed form U* = (lambda/2) Sigma^-1, or by
implicit differentiation (`etude.experiments.rlvr.bilevel_mle`, which also does the claim's experiments).

Warning: published code subtracts a group's least reward, the group's own sample included. That, like its mean, shrinks
the gradient of the reward but not that of an entropy computed exactly, and so moves the optimum; leaving one out does
neither. The paper's lambda of 0.5 to 5 is for one action. A text is one of very many, and an optimum that prefers the
right one at all needs a lambda well below 1 / log(how many).
"""

import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, LeaveOneOut
from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.fields import Positive
from etude.core.slots import TokenReward
from etude.experience.groups import Groups
from etude.methods.foundation.reinforce import reinforce
from etude.rewards.entropy import EntropyReward


class MahalanobisReward(TokenReward):
    """-(e(yhat) - e(y))' U (e(yhat) - e(y)) for one-hot answers e and U = scale I: 0 if right, else -2 scale.

    Placed on the last action token. Shapes: [B, T].

    Args:
        scale: 1/2 makes it -1[yhat != y].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(solved=torch.tensor([True, False]), action_mask=torch.ones(2, 2), tokens=torch.zeros(2, 2))
    >>> rows.rewards = torch.zeros(2, 2)
    >>> MahalanobisReward().shape(rows).tolist()
    [[0.0, 0.0], [0.0, -1.0]]
    """

    scale: Positive = 0.5

    def shape(self, batch: TokenBatch) -> Tensor:
        assert batch.solved is not None
        last = (batch.action_mask * torch.arange(batch.action_mask.shape[1], device=batch.tokens.device)).argmax(1)
        worth = torch.where(batch.solved, 0.0, -2 * self.scale).to(batch.rewards)
        return torch.zeros_like(batch.rewards).scatter(1, last[:, None], worth[:, None])


bilevel_mle = reinforce.replace(
    id="bilevel-mle",
    title="From Data to Rewards: a Bilevel Optimization Perspective on Maximum Likelihood Estimation",
    paper="arXiv:2510.07624",
    experience=Groups(size=5),
    rewards=(MahalanobisReward(scale=0.5), EntropyReward(coefficient=0.01)),
    advantages=GroupAdvantage(centre=LeaveOneOut(), scale=None),
    aggregation="fixed-length",
    claim=Claim(
        statement="Policy gradient under the learned reward recovers the covariance better than under U = I, matches "
        "moments faster than likelihood does, and is as likely on held-out data.",
        task="compose",
        setting="linear Gaussians, Pendulum's transitions",
        measures=(
            Measure(
                name="error of the moments along the run", direction="lower", bounds=(0.0, None)
            ),
            Measure(name="error of the covariance, U*", direction="lower", smallest=0.05, bounds=(0.0, None)),
            Measure(
                name="test NLL against NLL", direction="lower", margin=-0.05, smallest=0.1, bounds=(None, None)
            ),
            *(
                Measure(
                    name=f"error of the covariance, {arm}", role="mechanism", direction="lower", smallest=0.05,
                    bounds=(0.0, None),
                )
                for arm in ("alpha* I", "learned U")
            ),
            Measure(
                name="error of the mean", role="mechanism", direction="equal", smallest=0.05, bounds=(0.0, None)
            ),
            *(
                Measure(
                    name=f"test NLL against {arm}", role="mechanism", direction="lower", smallest=0.1,
                    bounds=(None, None),
                )
                for arm in ("U = I", "MSE")
            ),
        ),
        learned_on="error of the moments along the run",
        paper_effect="Matches or exceeds likelihood on tabular classification and model-based RL data.",
    ),
)  # fmt: skip
