"""NFT: negative-aware fine-tuning, a supervised loss that learns from wrong answers too (arXiv:2505.18116).

Of a problem of which pi_old solves the share r, pi_old = r pi+ + (1 - r) pi-, with pi+ and pi- what it says when it is
right and when it is wrong. Trained as pi+, a policy pi makes (pi_old - r pi) / (1 - r) the policy of wrong answers, so
that their likelihood can be maximised as well. Changes DAPO in four places:

1. with R = pi(a) / pi_old(a), the loss of a token is -w log R where its answer is right, and

       -w log maxv((1 - r R) / (1 - r), eps)        maxv(x, eps): max(x, eps) forward, the gradient of x

   where it is wrong; w = 1 - r. There is no clip;
2. r and right are read off the advantages, rewards minus their mean: 1 - r and -r;
3. tokens are summed over a fixed length (the release's 1,000; the paper's text does not say);
4. there is no penalty on length, and each batch makes 16 updates.

The paper has K = 16 answers of a problem, and its release up to 10 rounds of drawing; here they are DAPO's 8 and 3.
There truncated answers count as wrong; here they are scored as they stand.

As in the release r is held within [0.02, 0.98] and log R below 10. The gradient of a wrong token is that of
w r / (1 - r) R / max(x, eps) log pi: it is divided by the clipped value. At R = 1 that is Dr. GRPO's with w = 1 - r,
and GRPO's with w = sqrt((1 - r) / r). `rft` is its control: right answers alone, all problems alike.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, GroupMean
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.fields import Fraction, NonNegative, Positive
from etude.core.method import Method
from etude.core.slots import TokenObjective
from etude.methods.rlvr.dapo import dapo
from etude.methods.rlvr.grpo import grpo

MOST = 10.0
"""log R is held below this before it is exponentiated."""


class NegativeAware(TokenObjective):
    """-w [y log R + negative (1 - y) log maxv((1 - r R) / (1 - r), eps)], y and r from A = y - r (arXiv:2505.18116).

    Shapes: every tensor of the batch is [B, T]; returns [B, T].

    Args:
        eps: least value of the likelihood ratio of wrong answers, where it is passed over by the gradient.
        negative: weight of wrong answers; 0 leaves them out.
        weight: w of a problem, by its share r of right answers: 'rate' 1 - r, 'odds' sqrt((1 - r) / r), 'equal' 1.
        edge: r is held within [edge, 1 - edge].

    Half of the answers are right. A right token that is now twice as likely, and a wrong one, whose x = 0 is held at
    eps = 1:

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(advantages=torch.tensor([[0.5, -0.5]]), behaviour_logp=torch.zeros(1, 2))
    >>> loss = NegativeAware()(rows, TokenLogProbs(torch.tensor([[2.0, 2.0]]).log()))
    >>> [round(x, 4) for x in loss[0].tolist()]
    [-0.3466, -0.0]
    """

    vanishes_with_advantage: ClassVar[bool] = True
    uses_behaviour: ClassVar[bool] = True
    eps: Positive = 1.0
    negative: NonNegative = 1.0
    weight: Literal["rate", "odds", "equal"] = "rate"
    edge: Fraction = 0.02

    def objection(self, method: Method) -> str | None:
        credit = getattr(method, "advantages", None)
        plain = isinstance(credit, GroupAdvantage) and isinstance(credit.centre, GroupMean) and credit.scale is None
        if not plain:
            return (
                "reads a problem's share of right answers off advantages that are rewards of 0 or 1 minus their mean: "
                "set advantages.centre=group-mean and advantages.scale=none."
            )
        if len(rewards := method.slots().get("rewards", ())) > 1:
            return (
                "reads a problem's share of right answers off scores of 0 or 1, and with "
                f"{' and '.join(type(part).__name__ for part in rewards[1:])} they are others: leave one reward in the "
                "slot rewards."
            )
        return None

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        log_ratio = (policy.logp - batch.behaviour_logp).clamp(max=MOST)
        assert batch.advantages is not None
        right, r = self._split(batch)
        x = (1 - r * log_ratio.exp()) / (1 - r)
        held = x + (x.clamp(min=self.eps) - x).detach()
        loss = -torch.where(right, log_ratio, self.negative * held.log())
        return torch.where(batch.advantages == 0, 0.0, self._weight(r) * loss)

    def metrics(self, batch: TokenBatch, policy: TokenLogProbs) -> dict[str, Tensor]:
        """`clip_fraction`: wrong tokens whose likelihood ratio is held at eps, of all tokens."""
        right, r = self._split(batch)
        ratio = (policy.logp.detach() - batch.behaviour_logp).clamp(max=MOST).exp()
        return {"clip_fraction": (~right & ((1 - r * ratio) / (1 - r) < self.eps)).float()}

    def _split(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """[B, T] whether a token's answer is right, and the share of its problem's answers that are."""
        assert batch.advantages is not None
        right = batch.advantages > 0
        r = torch.where(right, 1 - batch.advantages, -batch.advantages)
        return right, r.clamp(self.edge, 1 - self.edge)

    def _weight(self, r: Tensor) -> Tensor:
        """w [B, T]."""
        match self.weight:
            case "rate":
                return 1 - r
            case "odds":
                return ((1 - r) / r).sqrt()
            case _:
                return torch.ones_like(r)


nft = dapo.replace(
    id="nft",
    title="Bridging Supervised Learning and Reinforcement Learning in Math Reasoning",
    paper="arXiv:2505.18116",
    rewards=grpo.rewards,
    advantages=GroupAdvantage(centre=GroupMean(), scale=None),
    objective=NegativeAware(),
    aggregation="fixed-length",
    minibatches=16,
    claim=Claim(
        statement="With the likelihood of wrong answers in it the supervised loss learns more than from right ones "
        "alone, and keeps more entropy.",
        bed="language/sums-medium",
        baseline="rft",
        measures=(
            Measure(name="area"),
            Measure(name="end", role="mechanism"),
            Measure(name="last:entropy_estimate", role="mechanism", bounds=(0.0, None)),
        ),
        equal=("steps", "updates"),
        sweep={"optimizer.lr": (5e-5, 1e-4, 2e-4)},
        paper_effect="51.7 against 48.3 for RFT on average over six benchmarks at 7 B, 59.2 against 52.8 at 32 B.",
    ),
)

rft = nft.replace(id="rft", title=nft.title, paper=nft.paper, objective=NegativeAware(negative=0.0, weight="equal"))
