"""RLGF: reinforcement learning with guided feedback, by a model that can be sampled but not trained (arXiv:2306.11816).

Changes PPO in four places:

1. with chance m = 0.8 two models write a completion (0.6 on IMDB). Of a whole one by who rolls in, t tokens are kept, t
   uniform from 1 to all but the last; who rolls out goes on from there, and the finished text is scored. The guide is
   drawn from its nucleus of 0.92;
2. only the policy's tokens are learned, and only they pay 0.001 (log pi(y_t) - log ref(y_t)) for their distance;
3. the reference is frozen;
4. each batch is passed over five times.

Four methods differ in who does what:

- `rlgf` (PPO++): the guide rolls in, the policy out. What the guide begins are more states to start from: tokens after
  t are learned, with the critic of the policy;
- `rlgf-aggrevated`: the policy rolls in, the guide out. Tokens up to t are learned, by what the guide makes of them:
  A^{pi_g}, of a critic that predicts the reward of texts that the guide finishes;
- `rlgf-lols`: each step is one of PPO++ with probability 0.8, else of AggreVaTeD, with a critic for each;
- `rlgf-d2lols`: the first 20 steps are AggreVaTeD's, the others PPO++'s (`stages.0.chooser.steps`; 100 for CommonGen
  and 200 for TL;DR in the paper), with a critic for each.

With m = 0 the first is PPO, sample for sample; with the same critic LOLS without AggreVaTeD's steps, and D2LOLS without
its first steps, are PPO++. The guide is a model in the policy's tokens:

    etude train rlgf --task digest --set experience.guide.model=RUN

The release (Cornell-RL/tril) scores the guide's tokens for their distance as well; here they are nobody's actions. What
it draws with chance 1 - m in steps of AggreVaTeD the policy writes alone.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning
from etude.methods.foundation.ppo import ppo
from etude.methods.preference.rlgf.critics import RollOutCritics
from etude.methods.preference.rlgf.guided import GuideFinishes, GuideRollIns, GuideRollOuts
from etude.optimizers.adam import AdamW
from etude.references.frozen import Frozen
from etude.rewards.kl import KLPenalty
from etude.rewards.outcome import TaskReward
from etude.stages.turns import AfterSteps, ByChance, ConstantChance, Interleaved

rlgf = ppo.replace(
    id="rlgf",
    title="Learning to Generate Better Than Your LLM",
    paper="arXiv:2306.11816",
    experience=GuideRollIns(mixing=0.8),
    rewards=(TaskReward(), KLPenalty(coefficient=0.001)),
    reference=Frozen(),
    epochs=5,
    claim=Claim(
        statement="Most of them begun by a better model, as many completions teach more than those that the policy "
        "writes alone.",
        bed="preference/digest-dpo",
        baseline="rlgf",
        changes={
            "experience.guide.model": "{dpo}", "optimizer.lr": 1e-3, "problems": 64, "experience.size": 2, "epochs": 2,
        },
        baseline_changes={
            "experience.guide.model": "{dpo}", "experience.mixing": 0.0, "optimizer.lr": 1e-3, "problems": 64,
            "experience.size": 2, "epochs": 2,
        },
        measures=(
            Measure(name="end", smallest=0.3),
            Measure(name="area", role="mechanism", smallest=0.3),
        ),
        equal=("completions",),
        sweep={},
        paper_effect="IMDB, CommonGen and TL;DR: every variant above supervised learning and PPO; on IMDB above its "
        "zero-shot guide GPT-3",
    ),
)  # fmt: skip

rlgf_aggrevated = rlgf.replace(
    id="rlgf-aggrevated",
    title="Learning to Generate Better Than Your LLM (AggreVaTeD)",
    paper="arXiv:2306.11816",
    experience=GuideRollOuts(mixing=0.8),
)

rlgf_lols = rlgf.replace(
    id="rlgf-lols",
    title="Learning to Generate Better Than Your LLM (LOLS)",
    paper="arXiv:2306.11816",
    stages=(Interleaved(turn=GuideFinishes(), chooser=ByChance(chance=ConstantChance(p=0.2))),),
    critic=RollOutCritics(learning=Learning(optimizer=AdamW(), epochs=5, minibatches=2), clip=0.2),
)

rlgf_d2lols = rlgf_lols.replace(
    id="rlgf-d2lols",
    title="Learning to Generate Better Than Your LLM (D2LOLS)",
    paper="arXiv:2306.11816",
    stages=(Interleaved(turn=GuideFinishes(), chooser=AfterSteps(steps=20)),),
    claim=Claim(
        statement="Finished by a better model at first and begun by it later, as many completions teach more than "
        "those that the policy writes alone.",
        bed="preference/digest-dpo",
        baseline="rlgf-d2lols",
        changes={
            "experience.guide.model": "{dpo}", "optimizer.lr": 1e-3, "critic.learning.optimizer.lr": 3e-3,
            "critic.learning.epochs": 2, "problems": 64, "experience.size": 2, "epochs": 2,
        },
        baseline_changes={
            "experience.guide.model": "{dpo}", "experience.mixing": 0.0, "optimizer.lr": 1e-3,
            "critic.learning.optimizer.lr": 3e-3, "critic.learning.epochs": 2, "problems": 64, "experience.size": 2,
            "epochs": 2,
        },
        measures=(
            Measure(name="end", smallest=0.3),
            Measure(name="area", role="mechanism", smallest=0.3),
        ),
        equal=("completions",),
        sweep={},
        paper_effect="on IMDB and CommonGen above PPO and no worse than PPO++",
    ),
)  # fmt: skip
