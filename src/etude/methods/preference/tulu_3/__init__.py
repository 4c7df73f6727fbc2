"""Tulu 3: supervised fine-tuning, length-normalised DPO, and PPO on rewards that can be verified (arXiv:2411.15124).

A recipe of four stages, instead of PPO's one run:

1. data: prompts of every skill without those that an evaluation has (`Decontaminated`). A test prompt is matched by a
   training prompt where 8-grams of both cover more than half of the test prompt's tokens; a data set that matches more
   than 2 % of an evaluation is left out whole, of the others the prompts that match;
2. `sft`: the loss is summed over all tokens of a batch and divided by their number, however it was accumulated, so that
   every token weighs the same. The rate falls linearly after 3 % of warm-up;
3. `tulu-3-dpo` on pairs that the policy and others said: four answers to each prompt are rated from 1 to 5 by aspects,
   the best is chosen, and any with a lower mean rejected (`RatedPairs`). It is DPO with beta / |y| of each answer,

       loss = -log sigmoid(beta / |y_w| log pi/ref (y_w) - beta / |y_l| log pi/ref (y_l)),   beta = 5

4. `tulu-3-rlvr`, PPO with four differences: 10 v(x, y) is paid, v = 1 where the verifier accepts and else 0; a
   completion that did not end is worth -10; every token pays for its distance from the policy at its start,

       max E[10 v(x, y)] - beta KL(pi || ref),   gamma = 1, lambda = 0.95, clip 0.2, advantages whitened

   and the critic is a network of its own that begins as a reward model of the same pairs (`critic.model`), whose scores
   are not paid. Each batch is passed over four times.

An evaluation that is looked at while one chooses is not the one that is reported: `lookups` has 'test' and 'unseen'.

As in the released search it is the *test* prompt of which one training prompt covers a share, not the other way round.
Here the data of stage 2 is decontaminated, and the prompts of 3 and 4 are those of the task's `train`, which should
share none with its tests; `task="{clean}"` in these runs is right where answers alone say what is right. Prompts of
`lookups` are shorter than 8 words, so that nothing of it is matched by default (`runs.clean.size`, `runs.clean.unit`).

The paper's judge is a language model that is asked about helpfulness, instructions, honesty and truth (a
`runs.pairs.panel` of four); here one rule, the task's own verdict. Published rates, 5e-6, 5e-7 and 3e-7, are those of
8B; here they are the usual ones for the size. beta of the last stage was swept over 0.01, 0.03, 0.05 and 0.1. DPO's
warm-up of a tenth and the four passes are of the release, whose script of the last stage is gone. In the claim rate,
beta and steps of the last stage are those of five settings, looked at on seeds 3 and 4, that cost the watched skill
least: at ten times the rate it fell from 0.73 to 0.13.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning
from etude.core.recipe import Recipe
from etude.learners.value_model import ValueModel
from etude.methods.foundation.ppo import ppo
from etude.methods.preference.dpo import dpo
from etude.methods.preference.tulu_3.data import ByTask, Decontaminated, RatedPairs, overlaps, pieces, rating
from etude.objectives.links import Logistic
from etude.objectives.pairs import LogRatio, PairLoss
from etude.optimizers.adam import AdamW
from etude.optimizers.schedules import Linear
from etude.references.frozen import Frozen
from etude.rewards.control import MissingEnd
from etude.rewards.kl import KLPenalty
from etude.rewards.outcome import TaskReward
from etude.stages.chain import Train

TITLE, PAPER = "Tulu 3: Pushing Frontiers in Open Language Model Post-Training", "arXiv:2411.15124"

tulu_3 = Recipe(
    id="tulu-3",
    title=TITLE,
    paper=PAPER,
    runs=(
        Decontaminated(called="clean", problems=4000),
        Train(
            called="sft", method="sft", steps=250, task="{clean}",
            set=("optimizer.schedule=linear", "optimizer.warmup=0.03", "optimizer.lr=1e-3"),
        ),
        RatedPairs(called="pairs", problems=1500),
        Train(called="dpo", method="tulu-3-dpo", steps=50, task="{pairs}"),
        Train(called="rm", method="reward-model", steps=50, task="{pairs}", begins="sft"),
        Train(called="rlvr", method="tulu-3-rlvr", steps=100, begins="dpo", set=("critic.model={rm}",)),
    ),
    claim=Claim(
        statement="A skill that is trained rises with every stage: by pairs more than by as many steps on worked "
        "answers, and again by verified rewards, which do not cost a skill that is only watched more than 0.05.",
        task="lookups",
        setting="two of five worked answers wrong, a hundredth of the prompts leaked from the test; one layer of width "
        "96 after 360 supervised steps; 30 steps of 32 pairs, 40 of 32 x 8 completions of one skill",
        measures=(
            Measure(name="trained skill, DPO", smallest=0.03),
            Measure(name="trained skill, RLVR", smallest=0.03),
            Measure(name="watched skill, RLVR", smallest=0.05, margin=-0.05),
            Measure(name="watched skill, DPO", role="mechanism", smallest=0.03),
        ),
        sweep={},
        learned_on="trained skill, DPO",
        paper_effect="8B, average of the development suite: 60 after fine-tuning, 64 after DPO, 65 after RLVR, above "
        "Llama 3.1 Instruct of equal size",
    ),
)  # fmt: skip

tulu_3_dpo = dpo.replace(
    id="tulu-3-dpo",
    title=f"{TITLE}, preferences",
    paper=PAPER,
    objective=PairLoss(link=Logistic(beta=5.0), of=LogRatio(per_token=True)),
    optimizer=AdamW(warmup=0.1, schedule=Linear()),
)

tulu_3_rlvr = ppo.replace(
    id="tulu-3-rlvr",
    title=f"{TITLE}, verifiable rewards",
    paper=PAPER,
    rewards=(TaskReward(weight=10.0), MissingEnd(value=-10.0), KLPenalty(coefficient=0.05)),
    reference=Frozen(),
    critic=ValueModel(learning=Learning(optimizer=AdamW(), epochs=4)),
    epochs=4,
    minibatches=1,
)

__all__ = [
    "ByTask",
    "Decontaminated",
    "RatedPairs",
    "overlaps",
    "pieces",
    "rating",
    "tulu_3",
    "tulu_3_dpo",
    "tulu_3_rlvr",
]
