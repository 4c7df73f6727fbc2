"""PPO-RLHF: PPO on a learned reward, held near where it started (InstructGPT, arXiv:2203.02155, step 3).

Changes PPO in two places:

1. the reward is a model of what people prefer, at the completion's last token;
2. every token also pays for its distance from the policy at the start,

       r_t = [t = last] 0.2 v(x, y) - 0.02 (log pi(y_t) - log ref(y_t))                             (eq. 2, gamma = 0)

   inside the reward, so that the critic predicts it and GAE spreads it.

The factor 0.2 brings v, which spans several units, to about one: the critic shares the policy's trunk and its clip of
0.2 is in units of reward, so that with 1.0 its error drowns the policy's gradient (accuracy on `preferences` rose to
0.76 in 20 steps and fell to 0.36 by step 40; with 0.2 it reaches 0.9 and stays). Per unit of v, a nat of distance
costs 0.1.

The pretraining mix of eq. 2 (gamma > 0) is left out, as in the paper's "PPO" models. Train the reward model first:
`etude train reward-model --task preferences`, then
`etude train ppo-rlhf --set rewards.reward-model.model=runs/reward-model-preferences-0`.
"""

from etude.core.claims import Claim, Measure
from etude.methods.foundation.ppo import ppo
from etude.references.frozen import Frozen
from etude.rewards.kl import KLPenalty
from etude.rewards.model import RewardModel

ppo_rlhf = ppo.replace(
    id="ppo-rlhf",
    title="Training language models to follow instructions with human feedback",
    paper="arXiv:2203.02155",
    rewards=(RewardModel(weight=0.2), KLPenalty(coefficient=0.02)),
    reference=Frozen(),
    claim=Claim(
        statement="A reward model that only saw pairs raises the accuracy of answers that nobody checked.",
        task="preferences",
        measures=(
            Measure(name="accuracy", smallest=0.05),
            Measure(name="accuracy without the pull", role="mechanism", smallest=0.05),
            Measure(name="score", role="mechanism", direction="lower", smallest=0.25, bounds=(None, None)),
        ),
        learned_on="score",
        paper_effect="answers of the 175B model are preferred to those of GPT-3 in 85% of comparisons, and of few-shot "
        "GPT-3 in 71%",
    ),
)
