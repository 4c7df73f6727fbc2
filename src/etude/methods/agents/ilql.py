"""ILQL: offline RL of dialogues by values of tokens, which tilt a cloned policy (arXiv:2206.11871).

Changes SFT in three places:

1. rows are dialogues of any quality with what each turn was paid, and nothing is played while they are learned from:
   `etude train ilql --task text-maze --data dialogues.jsonl`; without data, games as the task's own script plays them;
2. beside the policy, which clones them all, a model of its own learns two Q and a V of action tokens,

       L_Q = sum_i 1/2 (r + gamma V(s') - Q_i(s, a))^2,   L_V = 1/2 |tau - 1(u < 0)| u^2,   u = min_i Q'_i(s, a) - V(s)

   with Q' a slow copy, s' the place of the next action token, and cql times the cross-entropy of the Q's as logits at
   the data's tokens (`ImplicitTokenQ`);
3. it is sampled from softmax(log pi + beta (min_i Q_i - V)), in every evaluation (`learners.beta`; 0 is SFT).

As released (Sea-Snell/Implicit-Language-Q-Learning, abdulhaim/LMRL-Gym): the target of Q has V of the network as it is,
that of V the slow copy's Q; both losses count half; the model of the values is another one than the policy's. There the
policy is trained first and the values then; here both learn from the same rows, which changes neither.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning, Target
from etude.learners.token_values import ImplicitTokenQ
from etude.learners.value import Expectile
from etude.methods.foundation.sft import sft
from etude.optimizers.adam import AdamW
from etude.rewards.outcome import TaskReward

ilql = sft.replace(
    id="ilql",
    title="Offline RL for Natural Language Generation with Implicit Language Q Learning",
    paper="arXiv:2206.11871",
    rewards=(TaskReward(),),
    learners=(
        ImplicitTokenQ(
            gamma=0.99,
            cql=0.01,
            beta=8.0,
            state_error=Expectile(tau=0.95),
            learning=Learning(optimizer=AdamW(lr=1e-3), target=Target(rate=0.005)),
        ),
    ),
    claim=Claim(
        statement="From dialogues of players who mostly do anything, values of tokens make a cloned policy play better "
        "than cloning alone does.",
        task="text-maze",
        setting="a maze of 4 x 4 that is seen, each turn of which costs 0.1; 2,000 games of a player who does anything "
        "in four of five turns; tiny-agent, 150 steps of 32 dialogues; normalised score on 200 games",
        measures=(
            Measure(name="score", smallest=5.0, bounds=(0.0, 100.0)),
            Measure(name="won", role="mechanism", smallest=0.05, bounds=(0.0, 1.0)),
        ),
        sweep={},
        learned_on="score",
        paper_effect="Wordle and visual dialogue: ILQL above cloning and above cloning what is best (arXiv:2206.11871)",
    ),
)
