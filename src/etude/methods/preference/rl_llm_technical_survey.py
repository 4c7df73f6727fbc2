"""A technical survey of RL for language models: rewards, feedback and optimisers, to be combined (arXiv:2507.04136).

Three axes, and every cell is a setting of what is here; `etude studies run rl-llm-technical-survey` trains the cells of
one task side by side, from one start. With `rewards=` below for methods that sample:

    reward     a learned score       reward-model,kl-penalty             (Bradley and Terry, or irl-llm-survey)
               an AI judge           task-reward,wins                    (who wins, a simulated judge or a model's word)
               a rule                task-reward
               implicit, of DPO      dpo-token-reward                    (a policy that `dpo` trained)
               process               word-rewards                        (of every word: text2grad)
    feedback   noisy pairs           experience=pairs                    (dpo, ipo, orpo, simpo, kto, reward-model)
               a judge's pairs       experience=groups, task-reward,wins
               demonstrations        experience=demonstrations           (sft)
               rules                 a task's reward
               self-generated        grpo, objective=dpo advantages=none reference=frozen: own best against own worst
    optimiser  sft, dpo, ipo, kto, orpo, simpo; reinforce, rloo, remax, grpo; ppo-rlhf, with a critic; actor-critic:
               ppo-rlhf, objective=policy-gradient epochs=1; token Q-learning: planning-q-learning, rewards=task-reward

This method is the cell in the middle, a learned score of noisy pairs by RLOO. It changes RLOO in two places:

1. a completion is paid by a reward model;
2. and pays 0.05 for each nat of distance from where it began, token by token, inside the reward:

       R = v(x, y) - 0.05 sum_t log(pi_old(y_t) / ref(y_t)),    A_i = R_i - mean of the others' R.

How far a proxy and the truth part is said in deviations of the start: the proxy's rise less gold's,
z = (mean after - mean before) / deviation before.

The survey's own table has ILQL for values of tokens (expectile V, target Q, logits + b (Q - V) in decoding). That is
the method `ilql`, for dialogues that are data; among the cells of one task one-step Q-learning on the logits is in its
place. Its REINFORCE subtracts a running mean of rewards, `reinforce` that of the batch. The survey has no experiment of
its own.
"""

from etude.core.claims import Claim, Measure
from etude.methods.rlvr.rloo import rloo
from etude.references.frozen import Frozen
from etude.rewards.kl import KLPenalty
from etude.rewards.model import RewardModel

rl_llm_technical_survey = rloo.replace(
    id="rl-llm-technical-survey",
    title="A Technical Survey of Reinforcement Learning Techniques for Large Language Models",
    paper="arXiv:2507.04136",
    row="survey",
    rewards=(RewardModel(), KLPenalty(coefficient=0.05)),
    reference=Frozen(),
    claim=Claim(
        statement="From the same pairs RLOO on a learned reward reaches a higher gold score than DPO, and the further "
        "it optimises, the more of what the proxy gains is not gold.",
        task="digest",
        setting="4,000 noisy pairs; a reward model of 250 steps; 60 steps of 64 x 2 completions or of 64 pairs from "
        "one start, early is after 15; gold and proxy of 800 answers to new prompts, gaps in deviations of the start",
        measures=(
            Measure(name="gold", smallest=0.5, bounds=(-6.75, 17.3)),
            Measure(name="gap, end against early", smallest=0.1, bounds=(None, None)),
            Measure(name="proxy", role="mechanism", smallest=0.25, bounds=(None, None)),
            Measure(name="proxy gained", role="mechanism", minimum=0.5, smallest=0.25, bounds=(None, None)),
            Measure(name="gap, against DPO", role="mechanism", smallest=0.1, bounds=(None, None)),
        ),
        equal=("steps",),
        sweep={},
        learned_on="proxy",
        paper_effect="none of its own: a survey",
    ),
)
