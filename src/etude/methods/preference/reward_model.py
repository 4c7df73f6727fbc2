"""A reward model: a language model with one output, trained to prefer what people preferred (arXiv:2203.02155, step 2).

Changes SFT in two places: 1. each problem gives a chosen and a rejected answer; 2. what is learned is not the answers'
probability but a value v at their end, by the likelihood of the preference under Bradley and Terry's model:

    loss = -log sigmoid(v(x, y_w) - v(x, y_l))                                                      (eq. 1)

Only differences of v within a prompt mean anything: any f(x) may be added. The checkpoint's `model` folder is what
`ppo-rlhf` scores with.
"""

from etude.core.claims import Claim, Measure
from etude.experience.data import Pairs
from etude.methods.foundation.sft import sft
from etude.objectives.preference import BradleyTerry
from etude.optimizers.adam import AdamW
from etude.rewards.outcome import TaskReward

reward_model = sft.replace(
    id="reward-model",
    title="Training language models to follow instructions with human feedback (step 2)",
    paper="arXiv:2203.02155",
    experience=Pairs(),
    rewards=(TaskReward(),),
    objective=BradleyTerry(),
    optimizer=AdamW(),
    problems=32,
    claim=Claim(
        statement="A value head learns to tell right from wrong answers to problems that it has not seen, beyond what "
        "their lengths say.",
        task="preferences",
        measures=(
            Measure(name="pairs told apart", smallest=0.02),
            Measure(name="equally long pairs told apart", smallest=0.05),
        ),
        learned_on=None,
        paper_effect="72.4% of comparisons by labellers that it was trained on, 69.6% by others",
    ),
)
