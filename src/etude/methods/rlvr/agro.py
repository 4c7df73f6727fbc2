"""AGRO: any-generation reward optimization (arXiv:2503.19612).

Changes RLOO in two places:

1. what is minimised is inconsistency: the policy pi* that maximises E[r] - beta KL(pi || pi_ref) has the same

       R_beta(y) = r(y) - beta log (pi(y) / pi_ref(y))

   for every y, so the loss is half the variance of R_beta over completions y of whatever distribution mu sampled
   them, E_x Var_{y~mu}[R_beta] / 2, which only pi* brings to 0. There is no importance ratio and no advantage fixed
   in advance: R_beta is computed anew before every optimizer step;
2. the regularizer is thereby part of the objective, against a frozen reference.

With mu fixed (data, replay, an older policy) the gradient has the pathwise term only; with mu = pi it also has the
likelihood-ratio term. Both divided by beta, with leave-one-out means m_-i of the group, ascent is along

    sum_i [ (R_i - m_-i) - extra / (2 beta) ((R_i - m_-i)^2 - b_-i) ] grad log pi(y_i)

with extra = 0 for a fixed mu and extra = 1 for fresh samples. extra = 0 on fresh samples is the KL-regularised policy
gradient, and the default: the second term alone lowers the variance on a problem that is solved less than half of the
time by solving it even less often, and with beta < 1/2 it outweighs the first there.

b_-i is the variance of the others' R around their mean; it does not depend on y_i, so it changes no expectation.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from etude.advantages.group import episode_sum, group_size, group_sum, lone_completion, of_episodes
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.fields import NonNegative, Positive
from etude.core.method import Method
from etude.core.part import Need
from etude.methods.rlvr.rloo import rloo
from etude.objectives.sequence import GroupObjective, sequence_sum
from etude.references.frozen import Frozen


class GenerationConsistency(GroupObjective):
    """The descent direction of Var[r - beta log (pi / pi_ref)] / (2 beta) over a group (arXiv:2503.19612).

        c_i = (R_i - m_-i) - extra / (2 beta) ((R_i - m_-i)^2 - b_-i),   R = r - beta log (pi / pi_ref)

    Shapes: c [B]; log-probabilities are summed over a completion's tokens. One alone in its group has c = 0.

    Args:
        beta: weight of KL(pi || pi_ref), in rewards per nat of the whole completion.
        extra: coefficient of the likelihood-ratio term: 1 is exact for fresh samples, 0 for samples of a fixed policy.

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([1.0, 0.0]), group=torch.zeros(2), action_mask=torch.ones(2, 1))
    >>> rows.once = lambda: None  # every row is an episode of its own
    >>> rows.reference_logp = torch.tensor([[-2.0], [-1.0]])
    >>> policy = TokenLogProbs(torch.tensor([[-1.0], [-1.0]]))  # R = 1 - 0.5 * 1 and 0
    >>> GenerationConsistency(beta=0.5).coefficients(rows, policy).tolist()
    [0.5, -0.5]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.REFERENCE_LOGP})
    uses_behaviour: ClassVar[bool] = False
    beta: Positive = 0.1
    extra: NonNegative = 0.0

    def objection(self, method: Method) -> str | None:
        epochs, minibatches = (method.slots().get(name, 1) for name in ("epochs", "minibatches"))
        if self.extra and epochs * minibatches > 1:
            return (
                f"with extra = {self.extra:g} takes every sample for one of the policy as it is, and with "
                f"{epochs} epochs of {minibatches} minibatches only the first are: set extra to 0."
            )
        return lone_completion(method)

    def coefficients(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.reference_logp is not None
        moved = episode_sum(sequence_sum(policy.logp - batch.reference_logp, batch), batch)
        consistent = batch.scores - self.beta * moved
        mean = of_episodes(_others_mean, batch, consistent)
        away = consistent - mean
        if not self.extra:
            return away
        spread = of_episodes(_others_mean, batch, consistent**2) - mean**2
        return away - self.extra / (2 * self.beta) * (away**2 - spread)


def _others_mean(values: Tensor, group: Tensor) -> Tensor:
    """[B] mean of the others of each one's group; what is alone has its own value."""
    size = group_size(group).to(values.dtype)
    return (group_sum(values, group) - values).where(size > 1, values) / (size - 1).clamp(min=1)


agro = rloo.replace(
    id="agro",
    title="RL-finetuning LLMs from on- and off-policy data with a single algorithm",
    paper="arXiv:2503.19612",
    advantages=None,
    objective=GenerationConsistency(beta=0.1),
    reference=Frozen(),
    claim=Claim(
        statement="From data of the reference alone, AGRO comes nearer to the exact KL-regularised optimum than policy "
        "gradient with a KL term, and on language beats it and DPO offline.",
        task="compose",
        setting="20 responses, compose",
        measures=(
            Measure(name="pass@1 offline"),
            Measure(name="pass@1 offline against dpo"),
            Measure(name="KL to the optimum", direction="lower", smallest=0.01, bounds=(0.0, None)),
            Measure(
                name="AGRO's KL to the optimum",
                role="mechanism",
                direction="lower",
                against=1e-4,
                smallest=1e-4,
                bounds=(0.0, None),
            ),
            Measure(name="pass@1 online", role="mechanism", margin=-0.03),
            Measure(name="KL offline", role="mechanism", direction="equal", smallest=0.5, bounds=(0.0, None)),
        ),
        learned_on="pass@1 offline",
        paper_effect="About 7 points on MATH with an 8B model online; better reward at equal KL offline.",
    ),
)
