"""DPO: direct preference optimization (arXiv:2305.18290).

Changes SFT in three places:

1. each problem gives two answers, a chosen one y_w and a rejected one y_l;
2. the loss raises the first against the second, both relative to the policy at the start (ref):

       loss = -log sigmoid(beta [log pi/ref (y_w | x) - log pi/ref (y_l | x)])                     (eq. 7)

   which is the likelihood of the preferences under the reward beta log pi/ref, the one whose KL-regularised optimum
   is pi; its gradient is -beta sigmoid(-margin) (grad log pi(y_w) - grad log pi(y_l));
3. the reference is frozen. beta = 0.1.

The reward 1 or 0 that the pair carries only says which is which.
"""

from etude.core.claims import Claim, Measure
from etude.experience.data import Pairs
from etude.methods.foundation.sft import sft
from etude.objectives.preference import DPO
from etude.optimizers.adam import AdamW
from etude.references.frozen import Frozen
from etude.rewards.outcome import TaskReward

dpo = sft.replace(
    id="dpo",
    title="Direct Preference Optimization: Your Language Model is Secretly a Reward Model",
    paper="arXiv:2305.18290",
    experience=Pairs(),
    rewards=(TaskReward(),),
    objective=DPO(beta=0.1),
    reference=Frozen(),
    optimizer=AdamW(),
    problems=32,
    claim=Claim(
        statement="From pairs of its own answers a fine-tuned model learns more than from the chosen answers alone of "
        "as many of the same pairs.",
        task="preferences",
        measures=(
            Measure(name="accuracy"),
            Measure(name="pairs told apart", role="mechanism", minimum=0.6),
        ),
        equal=("problems",),
        sweep={"optimizer.lr": (1e-5, 3e-5, 1e-4), "objective.beta": (0.1, 0.5)},
        baseline_sweep={"optimizer.lr": (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)},
        learned_on="accuracy",
        paper_effect="TL;DR: wins 61% against the reference summaries at temperature 0, PPO 57%; IMDb: the best reward "
        "at every KL, above fine-tuning on the preferred answers",
    ),
)
