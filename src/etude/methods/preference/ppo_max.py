"""PPO-max: PPO-RLHF with the set of measures that keeps it stable (Secrets of RLHF, part I, arXiv:2307.04964).

Changes PPO-RLHF in seven places, each of which can be undone by itself:

1. the reward model's score is normalised by the mean and the standard deviation of all scores so far and clipped,

       r'(x, y) = clip((r(x, y) - mean r) / std r, -delta, delta),   delta = 10                              (eq. 17)

   two parts that can be left out of `rewards`; `scaled-scores` only divides, as the released script does;
2. every token pays eta = 0.05 for a nat of distance from the policy at the start (eq. 15), per unit of r';
3. the critic is a model of its own, which begins as the reward model (`--set critic.model=RUN`; without it, as the
   policy), and learns alone on rollouts of the waiting policy for 5 steps (`critic.lead`);
4. its loss is clipped, and in the paper its rate is three times the policy's (here the same, unless
   `critic.learning.optimizer.lr` says another),
   1/2 max((V - R)^2, (V_old + clip(V - V_old, -0.2, 0.2) - R)^2);
5. rates rise over the first tenth of the steps;
6. a batch of 128 completions is passed over once, in four minibatches of 32;
7. about every fifth step is one of supervised learning from worked answers, by the same optimizer: the pretraining
   gradient, lambda E[-log pi] in the paper's loss (eq. 18). lambda is not given; as steps of its own it is a share of
   them, `stages.interleaved.chooser.chance.p`, and leaving the stage out leaves it out.

What PPO-RLHF has stays: GAE with gamma = 1 and lambda = 0.95, the ratio's clip, the clip of the gradient's norm. The
released script (OpenLMLab/MOSS-RLHF, train_ppo_en.sh) is not this set: it divides rewards by their running deviation
without a mean or a clip, has no pretraining loss, adds |H - 35| and samples with top-p 0.9 and a penalty on repetition,
which biases ratios; `experience.top_p` below 1 is refused here. Its entropy term, clips of advantages and importance
sampling against a fixed policy were examined and not chosen.

What to watch, since the reward alone does not show collapse: `reference_kl`, `reference_perplexity` (of completions
under the policy at the start), `completion_length`, the rewards' quantiles `reward_p05` and `reward_p95`, `value_loss`.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning
from etude.learners.value_model import ValueModel
from etude.methods.preference.ppo_rlhf import ppo_rlhf
from etude.optimizers.adam import AdamW
from etude.rewards.control import ClippedScores, NormalizedScores
from etude.rewards.kl import KLPenalty
from etude.rewards.model import RewardModel
from etude.stages.turns import ByChance, ConstantChance, Interleaved, Like

ppo_max = ppo_rlhf.replace(
    id="ppo-max",
    title="Secrets of RLHF in Large Language Models Part I: PPO",
    paper="arXiv:2307.04964",
    stages=(Interleaved(turn=Like(id="sft"), chooser=ByChance(chance=ConstantChance(p=0.2))),),
    rewards=(RewardModel(), NormalizedScores(), ClippedScores(low=-10.0, high=10.0), KLPenalty(coefficient=0.05)),
    critic=ValueModel(learning=Learning(optimizer=AdamW(warmup=0.1), epochs=1, minibatches=4), lead=5, clip=0.2),
    optimizer=AdamW(warmup=0.1),
    problems=16,
    epochs=1,
    minibatches=4,
    claim=Claim(
        statement="On a weak reward model, which PPO over-optimises, the set of measures ends at a higher gold score.",
        bed="preference/digest-weak",
        baseline="ppo-rlhf",
        changes={
            "rewards.reward-model.model": "{proxy}", "optimizer.lr": 1e-3, "critic.model": "{proxy}",
            "critic.learning.optimizer.lr": 3e-3, "experience.size": 2, "problems": 64,
        },
        measures=(
            Measure(name="end", smallest=0.2),
            Measure(name="last:reference_kl", role="mechanism", direction="lower", bounds=(0.0, None)),
            Measure(name="last:completion_length", role="mechanism", direction="lower", bounds=(1.0, None)),
        ),
        equal=("steps",),
        paper_effect="stable over 10,000 steps where PPO collapses; preferred to SFT by people and by GPT-4",
    ),
)  # fmt: skip
