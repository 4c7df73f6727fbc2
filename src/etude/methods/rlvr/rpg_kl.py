"""RPG: policy gradients whose KL term is weighted for the policy that sampled (arXiv:2505.17508).

Changes GRPO in five places:

1. the target is J = E_pi[r] - beta D with D a divergence between pi and pi_old: the reference of the KL term is the
   policy that sampled the batch, so it is refreshed with every batch and no reference model is kept;
2. both terms carry the importance weight w = pi / pi_old, so that J's gradient is right on every minibatch, not only
   on the first. With samples of pi_old and sg for stop-gradient, loss = -sg(W) log pi, where

       FKL   KL(pi_old || pi)               W = w A + beta
       UFKL  the same, unnormalised         W = w A - beta (w - 1)
       RKL   KL(pi || pi_old)               W = w (A - beta (log w + 1))
       URKL  the same, unnormalised         W = w (A - beta log w)

3. RPG-style clip: the sign of W decides which side is clipped, and a token of negative weight also stops teaching
   once w >= c;
4. A = r - mean, not divided by the group's deviation; every token weighs the same;
5. dynamic sampling and the overlong punishment are DAPO's, and each batch is used in several minibatches (16 in the
   paper, 512 problems in minibatches of 32).

`RegularizedPolicyGradient` is the same family as differentiable losses. The other correction of the paper, GRPO's own
KL term against a fixed reference times w, is `KLToReference(weighted=True)`.

The published code (complex-reasoning/RPG) computes C with w clipped to [1 - low, 1 + high], so that it no longer sees
how far a token is. Of its two clips, `clip_ppo`, which its scripts name, goes by the sign of A alone, without C; and
`clip_ppo_v3` by that of (A + C / w) log pi, which is the opposite of W's, as log pi < 0: there the upper bound stops
tokens of negative weight, and the lower one and c those of positive weight. Here C is exact and the sign is W's.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, GroupMean
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.fields import Gt, NonNegative, Positive, PositiveProbability
from etude.core.slots import TokenObjective
from etude.methods.rlvr.dapo import dapo
from etude.methods.rlvr.grpo import grpo

Divergence = Literal["fkl", "ufkl", "rkl", "urkl"]


class RegularizedPolicyGradient(TokenObjective):
    """E_pi[A] - beta D(pi, pi_old) as a differentiable loss with a dual clip (arXiv:2505.17508, section 3).

    RKL and URKL put the divergence into the advantage, Ahat = A - beta (log w + 1) or A - beta log w, and minimise

        max(-w Ahat, -clip(w, 1 - low, 1 + high) Ahat), and at most -dual Ahat where Ahat < 0;

    FKL and UFKL do that with Ahat = A and add -beta log pi or beta (w - log w - 1). Unclipped these are -w A + beta D's
    integrand, up to a multiple of w, whose gradient is 0 on average. Gradient flows through w and Ahat.

    Shapes: every tensor of the batch is [B, T]; returns [B, T]. With low = 1 and large `high` and `dual` nothing is
    clipped.

    Args:
        divergence: D; 'fkl' is KL(pi_old || pi), 'rkl' is KL(pi || pi_old), 'u': for unnormalised policies.
        beta: weight of D.
        low, high: w's range where the clip lets the gradient through.
        dual: c, the largest w of a token with a negative weight.

    At w = 1 the reverse KL takes beta from every advantage:

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(advantages=torch.tensor([[1.0]]), behaviour_logp=torch.tensor([[-2.0]]))
    >>> RegularizedPolicyGradient(divergence="rkl", beta=0.25)(rows, TokenLogProbs(torch.tensor([[-2.0]]))).tolist()
    [[-0.75]]
    """

    uses_behaviour: ClassVar[bool] = True
    divergence: Divergence = "urkl"
    beta: NonNegative = 1e-4
    low: PositiveProbability = 0.2
    high: Positive = 0.28
    dual: Annotated[float, Gt(1)] = 10.0

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.advantages is not None
        log_w = policy.logp - batch.behaviour_logp
        w, gain, rest = log_w.exp(), batch.advantages, torch.zeros_like(log_w)
        if self.divergence == "fkl":
            rest = -self.beta * policy.logp
        elif self.divergence == "ufkl":
            rest = self.beta * (w - log_w - 1)
        else:
            gain = gain - self.beta * (log_w + (self.divergence == "rkl"))
        loss = torch.maximum(-w * gain, -w.clamp(1 - self.low, 1 + self.high) * gain)
        return torch.where(gain < 0, torch.minimum(loss, -self.dual * gain), loss) + rest

    def metrics(self, batch: TokenBatch, policy: TokenLogProbs) -> dict[str, Tensor]:
        """`clip_fraction`: tokens outside the clip's range for their advantage. `behaviour_kl`: k3, nats per token."""
        assert batch.advantages is not None
        log_w = policy.logp - batch.behaviour_logp
        stopped = ~self._kept(log_w.exp(), batch.advantages)
        return {"clip_fraction": stopped.float(), "behaviour_kl": log_w.exp() - 1 - log_w}

    def _kept(self, w: Tensor, gain: Tensor) -> Tensor:
        """[B, T] where a token with this gain still has a gradient."""
        return torch.where(gain >= 0, w < 1 + self.high, (w > 1 - self.low) & (w < self.dual))


class RegularizedReinforce(RegularizedPolicyGradient):
    """The same gradient as -sg(W) log pi, with a dual clip on W's sign (arXiv:2505.17508, algorithm 2).

        W = w A + C,   C = beta (FKL), -beta (w - 1) (UFKL), -beta w (log w + 1) (RKL), -beta w log w (URKL)

    A token teaches while w < 1 + high if W >= 0, while 1 - low < w < dual if W < 0; otherwise its loss is a constant.

    Shapes: every tensor of the batch is [B, T]; returns [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(advantages=torch.tensor([[1.0]]), behaviour_logp=torch.tensor([[-2.0]]))
    >>> RegularizedReinforce(divergence="rkl", beta=0.25)(rows, TokenLogProbs(torch.tensor([[-2.0]]))).tolist()
    [[1.5]]
    """

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.advantages is not None
        log_w = (policy.logp - batch.behaviour_logp).detach()
        w = log_w.exp()
        weight = w * batch.advantages + self.beta * self._divergence(w, log_w)
        return -weight * torch.where(self._kept(w, weight), policy.logp, policy.logp.detach())

    def _divergence(self, w: Tensor, log_w: Tensor) -> Tensor:
        """C / beta [B, T]."""
        if self.divergence == "fkl":
            return torch.ones_like(w)
        if self.divergence == "ufkl":
            return 1 - w
        return -w * (log_w + (self.divergence == "rkl"))


rpg_kl = grpo.replace(
    id="rpg-kl",
    title="On the Design of KL-Regularized Policy Gradient Algorithms for LLM Reasoning",
    paper="arXiv:2505.17508",
    rewards=dapo.rewards,
    filters=dapo.filters,
    advantages=GroupAdvantage(centre=GroupMean(), scale=None),
    objective=RegularizedReinforce(divergence="urkl", beta=1e-4),
    aggregation="token-mean",
    minibatches=4,
    claim=Claim(
        statement="With 16 updates per batch RPG is at least as accurate as DAPO; with 8, KL terms weighted for the "
        "policy that sampled end nearer to the exact KL-regularised optimum than GRPO's.",
        task="compose",
        setting="compose, 10-armed bandits",
        measures=(
            Measure(name="pass@1", margin=-0.02),
            Measure(
                name="KL to the optimum, 8 stale updates", direction="lower", smallest=0.005, bounds=(0.0, None)
            ),
            Measure(
                name="weighted term's KL", role="mechanism", direction="lower", against=1e-3, smallest=1e-3,
                bounds=(0.0, None),
            ),
            *(
                Measure(
                    name=f"KL to the optimum of one batch, {divergence}", role="mechanism", direction="lower",
                    against=1e-3, smallest=1e-3, bounds=(0.0, None),
                )
                for divergence in ("rkl", "urkl")
            ),
            Measure(name="largest drop", role="mechanism", direction="lower"),
        ),
        learned_on="pass@1",
        paper_effect="Up to 6 points over DAPO on AIME24 and AIME25.",
    ),
)  # fmt: skip
