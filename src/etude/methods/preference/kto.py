"""KTO: Kahneman-Tversky optimization (arXiv:2402.01306).

Changes DPO in three places:

1. answers are good or bad each for itself, and no two are compared: a row is desirable if it is paid more than 1/2;
2. what an answer is implicitly worth, u = log pi/ref (y | x), is held against a reference point z, and what it gains or
   loses is worth less the further it is from there:

       loss = w_D (1 - sigmoid(beta (u - z))) of desirable rows, w_U (1 - sigmoid(beta (z - u))) of the others   (eq. 8)

3. z is an estimate of KL(pi || ref), the same for all rows and without gradient: the mean of log pi/ref over prompts
   with answers to other prompts, at least 0. It costs a second pass over as many tokens, by the policy and by the
   reference, without gradient.

At pi = ref z is 0, every row's loss is w / 2 and its gradient -+ w beta / 4 grad log pi. Far out of reach in either
direction the gradient vanishes, also for bad rows that are wrongly labelled. With many more rows of one kind the paper
has w_D n_D / (w_U n_U) between 1 and 4/3.

z is here that of all rows of a training step, by the policy as it is when the step begins; the authors' code and TRL
take that of each minibatch, which is the same with one minibatch and one pass (equal to the loss of TRL 1.16 on the
same weights and rows, `tests/methods/test_kto.py`). Rows are mismatched with the answer that stands as many rows before
as the largest group has, so that it is another problem's.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from etude.advantages.group import episode_sum
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.fields import Positive
from etude.core.method import Method
from etude.core.part import Need
from etude.core.slots import Context, TokenObjective, TokenReward
from etude.core.worlds import World
from etude.methods.preference.dpo import dpo
from etude.objectives.sequence import sequence_sum
from etude.policies.language import LanguagePolicy
from etude.policies.micro_batches import micro_batches

TOKENS = 8192
"""Padded tokens of mismatched rows that are passed at a time."""


class MismatchedKL(TokenReward):
    """z = max(0, mean_i log pi/ref (y_j | x_i)), y_j an answer to another problem: marked on all rows, paid to none.

    Shapes: `batch.offers["mismatched-kl"]` [B], nats, the same number everywhere; rewards [B, T] of 0. Mismatched rows
    that the model's context does not hold are left out of the mean; where a step has one problem only, z is 0.

    >>> from types import SimpleNamespace as Rows
    >>> MismatchedKL().shape(Rows(rewards=torch.ones(1, 2))).tolist()
    [[0.0, 0.0]]
    """

    judges: ClassVar[bool] = False
    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    needs: ClassVar[frozenset[Need]] = frozenset({Need.REFERENCE})

    def marked(self, batch: TokenBatch, context: Context) -> TokenBatch:
        z = reference_point(batch, context.policy).to(batch.scores)
        return batch.replace(offers={**batch.offers, self.name: z.expand(len(batch))})

    def shape(self, batch: TokenBatch) -> Tensor:
        return torch.zeros_like(batch.rewards)


@torch.no_grad()
def reference_point(batch: TokenBatch, policy: LanguagePolicy) -> Tensor:
    """z, a scalar, by the policy and its reference as they are."""
    rows = mismatched(batch, policy.tokenizer.pad_token_id)
    if rows is None:
        return batch.scores.new_zeros(())
    rows = rows.rows((rows.lengths <= policy.context).nonzero()[:, 0])
    found = [rows.scores.new_zeros(0)]
    for piece in micro_batches(policy, rows, TOKENS):
        some = rows.rows(piece, trim=True)
        found.append(sequence_sum(policy.evaluate(some).logp - policy.reference_logp(some), some))
    each = torch.cat(found)
    return each.mean().clamp(min=0) if len(each) else batch.scores.new_zeros(())


def mismatched(batch: TokenBatch, pad: int) -> TokenBatch | None:
    """Every row's prompt with an answer to another problem; None where all rows are of one problem.

    Shapes: [B] rows of as many tokens as prompt and answer have together.
    """
    sizes = torch.unique(batch.group, return_counts=True)[1]
    if len(sizes) < 2:
        return None
    others = (torch.arange(len(batch)) - int(sizes.max())).tolist()
    starts, ends = batch.action_mask.int().argmax(1).tolist(), batch.lengths.tolist()
    asked = [batch.tokens[i, : starts[i]] for i in range(len(batch))]
    said = [batch.tokens[j, starts[j] : ends[j]] for j in others]
    acted = [batch.action_mask[j, starts[j] : ends[j]] for j in others]
    tokens = pad_sequence([torch.cat(pair) for pair in zip(asked, said)], batch_first=True, padding_value=pad)
    action = pad_sequence(
        [torch.cat([acts.new_zeros(len(x)), acts]) for x, acts in zip(asked, acted)], batch_first=True
    )
    lengths = torch.tensor([len(x) + len(y) for x, y in zip(asked, said)], device=tokens.device)
    real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
    zeros, none = torch.zeros(tokens.shape), torch.zeros(len(batch))
    rows = TokenBatch(
        tokens, real, action, zeros, zeros, torch.arange(len(batch)), none + 1, none, none.bool(),
        temperature=batch.temperature,
    )  # fmt: skip
    return rows.to(tokens.device)


class ProspectLoss(TokenObjective):
    """w_D (1 - sigmoid(beta (u - z))) of desirable rows, w_U (1 - sigmoid(beta (z - u))) of the others (eq. 8).

    u = log pi/ref (y | x), summed over the answer; z is what `mismatched-kl` marked. A row is desirable if its score is
    above 1/2.

    Shapes: returns [B].

    Args:
        beta: per nat.
        desirable, undesirable: w_D and w_U.

    >>> from types import SimpleNamespace as Rows
    >>> mask, ref = torch.ones(2, 1), torch.tensor([[-1.0], [-1.0]])
    >>> rows = Rows(action_mask=mask, reference_logp=ref, scores=torch.tensor([1.0, 0.0]), once=lambda: None)
    >>> rows.offers = {"mismatched-kl": torch.zeros(2)}
    >>> [round(x, 4) for x in ProspectLoss(undesirable=2.0)(rows, TokenLogProbs(ref)).tolist()]
    [0.5, 1.0]
    """

    per_row: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({Need.REFERENCE_LOGP})
    beta: Positive = 0.1
    desirable: Positive = 1.0
    undesirable: Positive = 1.0

    def objection(self, method: Method) -> str | None:
        if any(isinstance(part, MismatchedKL) for part in method.slots()["rewards"]):
            return None
        return "holds rows against a KL that nobody estimates: put mismatched-kl into the slot rewards."

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        weight = torch.where(batch.scores > 0.5, self.desirable, self.undesirable).to(policy.logp)
        return weight * (1 - (self.beta * self._gained(batch, policy)).sigmoid())

    def metrics(self, batch: TokenBatch, policy: TokenLogProbs) -> dict[str, Tensor]:
        """`reference_point`: z, in nats. `labelled_right`: rows on the right side of it, that is above if desirable."""
        right = self._gained(batch, policy) > 0
        return {"reference_point": held_against(batch), "labelled_right": right.to(policy.logp)}

    def _gained(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """[B] u - z of desirable rows, z - u of the others."""
        assert batch.reference_logp is not None
        u = episode_sum(sequence_sum(policy.logp - batch.reference_logp, batch), batch)
        away = u - held_against(batch).to(u)
        return torch.where(batch.scores > 0.5, away, -away)


def held_against(batch: TokenBatch) -> Tensor:
    """z [B] as it was marked; 0 on rows that nobody marked, of no training step."""
    z = batch.offers.get(MismatchedKL.name)
    return torch.zeros_like(batch.scores) if z is None else z


kto = dpo.replace(
    id="kto",
    title="KTO: Model Alignment as Prospect Theoretic Optimization",
    paper="arXiv:2402.01306",
    rewards=(*dpo.rewards, MismatchedKL()),
    objective=ProspectLoss(),
    claim=Claim(
        statement="From answers that are each called good or bad, and never compared, as much is learned as by DPO "
        "from the same answers in pairs.",
        task="preferences",
        measures=(Measure(name="accuracy", margin=-0.02),),
        equal=("problems",),
        sweep={"optimizer.lr": (1e-5, 3e-5, 1e-4), "objective.beta": (0.1, 0.5)},
        baseline_sweep={"optimizer.lr": (1e-5, 3e-5, 1e-4), "objective.beta": (0.1, 0.5)},
        learned_on="accuracy",
        paper_effect="matches or exceeds DPO from 1B to 30B parameters; with Llama-7B up to 90 % of the desirable data "
        "can be left out",
    ),
)
