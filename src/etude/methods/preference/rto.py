"""RTO: reinforced token optimization, DPO's log-ratio as a reward of every token (arXiv:2404.18922).

Changes PPO-RLHF in four places:

1. every token t of a completion is paid what a policy that DPO trained thinks of it,

       r_t = beta_1 log pi_dpo(y_t) / ref(y_t) - beta_2 log pi_old(y_t) / ref(y_t) + [t = last] beta_3 r(x, y)

   with beta_1 = 0.05, the first term clipped to +-0.05 after it was scaled, beta_2 = 0.01 and beta_3 = 1;
2. the reward model's score r is normalised by the mean and the deviation of all scores so far and clipped to +-10;
3. the critic is a model of its own, which begins as the reward model (`--set critic.model=RUN`), with the same clip;
4. a batch of 256 completions is passed over once, in eight minibatches (1,024 and 128 in the release).

beta_1 stays small: the token term shapes, and the sequence's reward decides. Without the clip the terms of a completion
add up to beta_1 times DPO's implicit reward of it; if pi_dpo is the optimum for a reward r at beta_1, each term is the
difference of soft values V*(s_{t+1}) - V*(s_t), a shaping by a potential that leaves the optimum where it is. Two runs
come before, from the same start:

    etude train dpo --task digest; etude train reward-model --task digest
    etude train rto --set rewards.dpo-token-reward.whose.model=RUN_OF_DPO --set rewards.reward-model.model=RUN

The release (zkshan2002/RTO) agrees with the paper here.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.fields import NonNegative, Positive
from etude.core.learners import Learning
from etude.core.part import Need
from etude.core.slots import Context, TokenReward
from etude.core.worlds import World
from etude.learners.value_model import ValueModel
from etude.methods.preference.ppo_rlhf import ppo_rlhf
from etude.optimizers.adam import AdamW
from etude.policies.texts.likelihood import rows_logp
from etude.policies.texts.models import Model, SavedModel
from etude.rewards.control import ClippedScores, NormalizedScores
from etude.rewards.kl import KLPenalty
from etude.rewards.model import RewardModel


class DPOTokenReward(TokenReward):
    """clip(coefficient log(pi_dpo / reference), -clip, clip) of each sampled token.

    Args:
        whose: the model that DPO trained, from the policy that is the reference here.
        coefficient: beta_1.
        clip: of the scaled term; None: none.

    Shapes: [B, T], 0 outside the action mask.

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(reference_logp=torch.tensor([[-1.0, -2.0]]), action_mask=torch.tensor([[True, True]]))
    >>> [[round(x, 3) for x in row] for row in DPOTokenReward().paid(torch.tensor([[-0.5, -6.0]]), rows).tolist()]
    [[0.025, -0.05]]
    """

    judges: ClassVar[bool] = False
    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    needs: ClassVar[frozenset[Need]] = frozenset({Need.REFERENCE_LOGP})
    whose: Model = SavedModel()
    coefficient: NonNegative = 0.05
    clip: Positive | None = 0.05

    def shape_in(self, batch: TokenBatch, context: Context) -> Tensor:
        return self.paid(rows_logp(self.whose, self.whose.speaker(context.policy), batch), batch)

    def paid(self, logp: Tensor, batch: TokenBatch) -> Tensor:
        """[B, T] of the model's log-probabilities [B, T]."""
        assert batch.reference_logp is not None
        ratio = self.coefficient * (logp.to(batch.reference_logp) - batch.reference_logp) * batch.action_mask
        return ratio if self.clip is None else ratio.clamp(-self.clip, self.clip)


rto = ppo_rlhf.replace(
    id="rto",
    title="DPO Meets PPO: Reinforced Token Optimization for RLHF",
    paper="arXiv:2404.18922",
    rewards=(
        RewardModel(), NormalizedScores(), ClippedScores(low=-10.0, high=10.0),
        DPOTokenReward(coefficient=0.05, clip=0.05), KLPenalty(coefficient=0.01),
    ),
    critic=ValueModel(learning=Learning(optimizer=AdamW(), epochs=1, minibatches=8), clip=0.2),
    epochs=1,
    minibatches=8,
    claim=Claim(
        statement="With what DPO says of every token as a reward beside the model's, the gold score rises in fewer "
        "completions than by the sequence's reward alone.",
        bed="preference/digest-dpo",
        baseline="rto",
        changes={
            "rewards.reward-model.model": "{proxy}", "rewards.dpo-token-reward.whose.model": "{dpo}",
            "critic.model": "{proxy}", "optimizer.lr": 1e-3, "critic.learning.optimizer.lr": 3e-3, "problems": 64,
            "experience.size": 2,
        },
        baseline_changes={
            "rewards.reward-model.model": "{proxy}", "rewards.dpo-token-reward.whose.model": "{dpo}",
            "rewards.dpo-token-reward.coefficient": 0.0, "critic.model": "{proxy}", "optimizer.lr": 1e-3,
            "critic.learning.optimizer.lr": 3e-3, "problems": 64, "experience.size": 2,
        },
        measures=(
            Measure(name="area", smallest=0.3),
            Measure(name="end", role="mechanism", smallest=0.3),
            Measure(name="mean:reward/reward-model", role="mechanism", smallest=0.1, bounds=(None, None)),
        ),
        equal=("completions",),
        paper_effect="AlpacaEval 2 length-controlled 27.0 against 19.5 of PPO and 17.4 of DPO with Llama-3-8B; PPO's "
        "level with an eighth of the data",
    ),
)  # fmt: skip
