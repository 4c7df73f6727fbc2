"""Critique-GRPO: attempts are criticised and mended, and the best mended one is learned too (arXiv:2506.03106).

Changes GRPO in five places:

1. after n attempts at a problem each is shown again with a critique, by default whether it is right and what the answer
   is, and the policy tries to mend it. The first mended one that is right, else one that is paid best, joins the group
   and is learned as an answer to the plain prompt, without attempt and critique (`LookAgain`);
2. advantages are r - mean(r) over the n + 1, without their standard deviation;
3. attempts have no clip, and the mended completion is not divided by what it was sampled with, but shaped
   (`ByContext`, `ShapedProbability`): with p = pi(a_t | q, a_<t),

       loss_t = -pi / pi_old A  of attempts,    loss_t = -f(p) A,  f(p) = p / (p + gamma),  of the mended one,

   so that grad log p weighs gamma p / (p + gamma)^2: unlikely tokens of a right answer are learned strongly;
4. tokens are summed and divided by the completion limit and the number of rows (in the release by the limit alone);
5. an entropy bonus of 0.001, and two minibatches.

Of 8 rows 7 are attempts. Critiques: `second_look.shows.critic=verdict` (with `.answer=` right or wrong alone),
`first-wrong-step`, `own-critique`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, GroupMean
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.errors import ConfigError
from etude.core.fields import Positive
from etude.core.slots import TokenObjective
from etude.experience.groups import Groups
from etude.experience.second_look import AllProblems, BestJoins, LookAgain
from etude.experience.shown import AttemptAndCritique, Verdict
from etude.methods.rlvr.grpo import grpo
from etude.objectives.unified import BehaviourDenominator, UnifiedGradient
from etude.regularizers.entropy import EntropyBonus


class ShapedProbability(TokenObjective):
    """-A f(p), f(p) = p / (p + gamma), of tokens whose sampler is left out of the account.

    Its gradient is that of -A w log p with w = gamma p / (p + gamma)^2 held, which is largest, 1/4, at p = gamma; for
    a large gamma w is p / gamma.

    Shapes: [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> ShapedProbability(gamma=0.5)(Rows(advantages=torch.tensor(2.0)), TokenLogProbs(torch.tensor(0.5).log())).item()
    -1.0
    """

    gamma: Positive = 0.1

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.advantages is not None
        p = policy.logp.exp()
        return -batch.advantages * p / (p + self.gamma)


class ByContext(TokenObjective):
    """One objective on rows that were sampled in their own context, another on those that were not (`elsewhere`).

    Args:
        own: of the first.
        elsewhere: of the second; their `behaviour_logp` means nothing here.

    Shapes: [B, T]. The second row was sampled where a critique was in view:

    >>> from types import SimpleNamespace as Rows
    >>> logp, away = torch.tensor([[0.5], [0.5]]).log(), torch.tensor([False, True])
    >>> rows = Rows(elsewhere=away, advantages=torch.ones(2, 1), behaviour_logp=logp)
    >>> ByContext(elsewhere=ShapedProbability(gamma=0.5))(rows, TokenLogProbs(logp))[:, 0].tolist()
    [-1.0, -0.5]
    """

    own: TokenObjective = UnifiedGradient(denominator=BehaviourDenominator(), mask=None)
    elsewhere: TokenObjective = ShapedProbability(gamma=0.1)

    def check(self) -> None:
        for name in ("own", "elsewhere"):
            part: TokenObjective = getattr(self, name)
            if part.couples != "row" or part.per_row:
                raise ConfigError(
                    f"ByContext.{name} must have a loss of each token that depends on its row alone, and "
                    f"{type(part).__name__} does not."
                )

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        if batch.elsewhere is None:
            return self.own(batch, policy)
        return torch.where(batch.elsewhere[:, None], self.elsewhere(batch, policy), self.own(batch, policy))


critique_grpo = grpo.replace(
    id="critique-grpo",
    title="Critique-GRPO: Advancing LLM Reasoning with Natural Language and Numerical Feedback",
    paper="arXiv:2506.03106",
    experience=Groups(size=7),
    second_look=LookAgain(
        which=AllProblems(), shows=AttemptAndCritique(critic=Verdict()), keeps=BestJoins(), plain=True
    ),
    advantages=GroupAdvantage(centre=GroupMean(), scale=None),
    objective=ByContext(),
    aggregation="fixed-length",
    regularizers=(EntropyBonus(coefficient=0.001),),
    minibatches=2,
    claim=Claim(
        statement="A mended attempt in each group makes it learn more than GRPO does from as many attempts.",
        bed="language/compose-hard",
        baseline="grpo",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
        sweep={"optimizer.lr": (1e-4, 2e-4), "minibatches": (1, 4)},
        paper_effect="about 4.5% (Qwen2.5-7B-Base) and 5% (Qwen3-8B-Base) in pass@1 over eight tasks",
    ),
)
