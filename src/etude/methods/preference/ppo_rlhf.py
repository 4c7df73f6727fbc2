"""PPO-RLHF: PPO on a learned reward, held near where it started (InstructGPT, arXiv:2203.02155, step 3).

Changes PPO in two places:

1. the reward is a model of what people prefer, at the completion's last token;
2. every token also pays for its distance from the policy at the start,

       r_t = [t = last] v(x, y) - 0.05 (log pi(y_t) - log ref(y_t))                                 (eq. 2, gamma = 0)

   inside the reward, so that the critic predicts it and GAE spreads it.

The pretraining mix of eq. 2 (gamma > 0) is left out, as in the paper's "PPO" models. Train the reward model first:
`etude train reward-model --task preferences`, then
`etude train ppo-rlhf --set rewards.reward-model.model=RUN/checkpoints/.../model`.
"""

from etude.core.method import Claim
from etude.methods.foundation.ppo import ppo
from etude.references.frozen import Frozen
from etude.rewards.kl import KLPenalty
from etude.rewards.model import RewardModel

ppo_rlhf = ppo.replace(
    id="ppo-rlhf",
    title="Training language models to follow instructions with human feedback",
    paper="arXiv:2203.02155",
    rewards=(RewardModel(), KLPenalty(coefficient=0.05)),
    reference=Frozen(),
    claim=Claim(
        statement="A reward model that only saw pairs raises the accuracy of answers that nobody checked.",
        baseline="dpo",
        task="preferences",
    ),
)
