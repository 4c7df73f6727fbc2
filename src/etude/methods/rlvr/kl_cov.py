"""KL-Cov and Clip-Cov: a few tokens of high covariance collapse the entropy (arXiv:2505.22617).

To first order a softmax policy's entropy changes by minus the covariance of log pi(a) and of what a step adds to a's
logit: with a natural policy gradient that is the covariance of log pi and the advantage. With

    C_i = (log pi_i - mean log pi)(A_i - mean A)        over the N sampled tokens of a minibatch

few tokens make up most of it. Both methods change GRPO in what such tokens do, and in that every token weighs the same
in the loss and groups whose rewards are all equal are left out.

1. `kl-cov`: the loss is -rho A without a clip; the share k of the tokens with the largest C has |log rho| added.
2. `clip-cov`: max(1, r N) random tokens with 1 < C < 5 that the ratio's clip has not stopped already have no gradient.

At pi = pi_old |log rho| has no gradient, so with one update per batch KL-Cov is the plain policy gradient and says so;
the paper has 8 updates. Its k is 0.002 (7 B; 0.0002 for 32 B) and r 0.0002 of minibatches of a million tokens: of the
thousand that a minibatch has here that would be one or two, so both are 0.01 and 0.005. The release takes C, and how
many tokens are chosen, per micro-batch, so that a machine's memory changes the method; here it is the minibatch. It
opens the ratio's clip to 1 for Clip-Cov's 7 B run, so that it hardly acts; here the clip is GRPO's.

The analysis is in the report of every run (`etude report RUN`, `evaluation/entropy_law.py`): how entropy changed from
step to step beside -eta Cov(log pi, A), and the fit R = -a exp(H) + b of a score's ceiling.
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import torch
from torch import Tensor

from etude.advantages.covariance import covariance
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.draws import children, uniforms
from etude.core.errors import ConfigError
from etude.core.fields import Fraction, NonNegative, Positive, Probability
from etude.core.kinds import TokenMethod
from etude.core.method import Method
from etude.core.slots import TokenRegularizer, TokenWeights
from etude.filters.informative import InformativeGroups
from etude.methods.rlvr.grpo import grpo
from etude.objectives.policy_gradient import ClippedSurrogate
from etude.objectives.surrogate import Surrogate


def taught(batch: TokenBatch) -> Tensor:
    """[B, T] where a token was sampled and is learned from by its advantage."""
    return batch.action_mask & batch.sampled[:, None]


class CovarianceClip(TokenWeights):
    """0 on max(1, floor(share N)) random tokens with lower < C < upper, 1 on all others (arXiv:2505.22617, eq. 11-12).

    C is `covariance` over the N sampled tokens of the minibatch. Tokens that the objective's clip already stops have no
    gradient to lose and are not drawn. Which are drawn depends on the rows' own random numbers and on how often the
    part was asked, so not on the order of rows.

    Shapes: log-probabilities, advantages [B, T] -> factors [B, T], 0 or 1.

    Args:
        share: r; 0 leaves out none.
        lower, upper: the band of C.
        low, high: the objective's clip of the ratio; refused where a `clipped-surrogate` has another.

    Raises: ConfigError if the band is empty by its bounds.

    Of four tokens, two with C = 2 and two with C = 0, one of the former is left out:

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(advantages=torch.tensor([[2.0, -2.0, 0.0, 0.0]]), behaviour_logp=torch.zeros(1, 4),
    ...             action_mask=torch.ones(1, 4).bool(), sampled=torch.tensor([True]), tokens=torch.zeros(1, 4),
    ...             draw=torch.tensor([7]))
    >>> factors = CovarianceClip().bind()(rows, TokenLogProbs(torch.tensor([[0.0, -2.0, -1.0, -1.0]])))
    >>> factors.sum().item(), factors[0, 2:].tolist()
    (3.0, [1.0, 1.0])
    """

    share: Probability = 0.005
    lower: float = 1.0
    upper: float = 5.0
    low: Fraction = 0.2
    high: Positive = 0.2

    def check(self) -> None:
        if not self.lower < self.upper:
            raise ConfigError(f"CovarianceClip.lower must be below upper, got {self.lower:g} and {self.upper:g}.")

    def objection(self, method: Method) -> str | None:
        clip = method.slots().get("objective")
        if not isinstance(clip, ClippedSurrogate) or (clip.low, clip.high) == (self.low, self.high):
            return None
        return (
            f"takes tokens for stopped by a clip of {self.low:g} below and {self.high:g} above, and the objective's is "
            f"{clip.low:g} and {clip.high:g}: set token_weights.{self.name}.low={clip.low:g} "
            f"token_weights.{self.name}.high={clip.high:g}."
        )

    def initial_state(self) -> dict[str, Any]:
        return {"asked": 0}

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.advantages is not None
        self.state["asked"] += 1
        own, kept = taught(batch), torch.ones_like(policy.logp)
        c = covariance(policy.logp.detach(), batch.advantages, own)
        candidates = own & (c > self.lower) & (c < self.upper) & ~self._stopped(batch, policy)
        most = min(max(1, int(self.share * int(own.sum()))), int(candidates.sum())) if self.share else 0
        if most:
            order = torch.where(candidates, self._numbers(batch), torch.inf).flatten()
            kept.view(-1)[order.argsort(stable=True)[:most]] = 0.0
        return kept

    def _stopped(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """[B, T] where the clip leaves no gradient."""
        ratio = (policy.logp.detach() - batch.behaviour_logp).exp()
        assert batch.advantages is not None
        over = (batch.advantages > 0) & (ratio > 1 + self.high)
        return over | ((batch.advantages < 0) & (ratio < 1 - self.low))

    def _numbers(self, batch: TokenBatch) -> Tensor:
        """[B, T] uniform numbers that belong to the tokens, others each time that they are asked for."""
        rows = torch.arange(len(batch), device=batch.tokens.device) if batch.draw is None else batch.draw
        return uniforms(children(rows, "covariance-clip", self.state["asked"]), 0, batch.tokens.shape[1]).T


class HighCovariance(TokenWeights):
    """1 on the max(1, floor(share N)) tokens with the largest `covariance`, 0 on all others (arXiv:2505.22617, eq. 13).

    Shapes: log-probabilities, advantages [B, T] -> factors [B, T], 0 or 1.

    Args:
        share: k; 0 is none.

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(advantages=torch.tensor([[3.0, -1.0, -1.0, -1.0]]), action_mask=torch.ones(1, 4).bool(),
    ...             sampled=torch.tensor([True]))
    >>> HighCovariance(share=0.25)(rows, TokenLogProbs(torch.tensor([[0.0, -2.0, -1.0, -1.0]]))).tolist()
    [[1.0, 0.0, 0.0, 0.0]]
    """

    share: Probability = 0.01

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.advantages is not None
        own = taught(batch)
        c = covariance(policy.logp.detach(), batch.advantages, own).masked_fill(~own, -torch.inf)
        most, chosen = max(1, int(self.share * int(own.sum()))), torch.zeros_like(policy.logp)
        if self.share and bool(own.any()):
            chosen.view(-1)[c.flatten().topk(most).indices] = 1.0
        return chosen


class LogRatioPenalty(TokenRegularizer):
    """beta |log pi - log pi_old| of the tokens that `where` chooses, in nats (arXiv:2505.22617, eq. 14).

    It has no gradient where the policy is still the one that sampled. Shapes: [B, T].

    Args:
        beta: its weight.
        where: which tokens, looked for in the whole minibatch; None: all.

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(behaviour_logp=torch.tensor([[-1.0, -2.0]]))
    >>> LogRatioPenalty(beta=2.0)(rows, TokenLogProbs(torch.tensor([[-1.5, -1.0]]))).tolist()
    [[1.0, 2.0]]
    """

    uses_behaviour: ClassVar[bool] = True
    beta: NonNegative = 1.0
    where: TokenWeights | None = HighCovariance()

    def objection(self, method: Method) -> str | None:
        if isinstance(method, TokenMethod) and method.epochs * method.minibatches == 1:
            warnings.warn(
                f"{method.id} takes one optimizer step of each batch, where |log pi - log pi_old| has no gradient, so "
                f"{self.name} changes nothing: set minibatches to 2 or more.",
                stacklevel=2,
            )
        return None

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        return self.beta * (policy.logp - batch.behaviour_logp).abs()


kl_cov = grpo.replace(
    id="kl-cov",
    title="The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models",
    paper="arXiv:2505.22617",
    filters=(InformativeGroups(),),
    objective=Surrogate(),
    regularizers=(LogRatioPenalty(),),
    aggregation="token-mean",
    minibatches=8,
    claim=Claim(
        statement="With eight updates of each batch the policy keeps more entropy than GRPO's with as many, and "
        "learns no less.",
        bed="language/sums-medium",
        baseline="grpo",
        baseline_changes={"minibatches": 8, "filters": "informative-groups"},
        measures=(
            Measure(name="last:entropy_estimate", smallest=0.02, bounds=(0.0, None)),
            Measure(name="area", margin=-0.02),
        ),
        equal=("steps", "updates"),
        sweep={"optimizer.lr": (5e-5, 1e-4, 2e-4)},
        paper_effect="A plateau of entropy ten times GRPO's; 2.0 points over GRPO on average at 7 B, 6.4 at 32 B.",
    ),
)

clip_cov = kl_cov.replace(
    id="clip-cov",
    title=kl_cov.title,
    paper=kl_cov.paper,
    objective=grpo.objective,
    regularizers=(),
    token_weights=(CovarianceClip(),),
)
