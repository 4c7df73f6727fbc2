"""MC returns: a cloned policy tilted by what each token went on to earn in the data (LMRL Gym, arXiv:2311.18232).

Changes ILQL in two places:

1. one Q of tokens, and no V, is regressed to the discounted rewards from each action token on,

       L = 1/2 (G_t - Q(s, a))^2 + cql (-log softmax(Q)(a)),    G_t = sum_k gamma^k r_{t+k}    over action tokens

   (`ReturnTokenQ`): the value of whoever wrote the dialogues, so one step better than they are, where ILQL joins the
   best pieces of several;
2. nothing follows slowly, for no target moves.

It is sampled from softmax(log pi_beta + beta Q). As released (abdulhaim/LMRL-Gym, mc_returns); dialogues that a limit
truncated earn nothing behind it.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning
from etude.learners.token_values import ReturnTokenQ
from etude.methods.agents.ilql import ilql
from etude.optimizers.adam import AdamW

mc_returns = ilql.replace(
    id="mc-returns",
    title="LMRL Gym: Benchmarks for Multi-Turn Reinforcement Learning with Language Models (MC returns)",
    paper="arXiv:2311.18232",
    learners=(ReturnTokenQ(gamma=0.99, cql=0.01, beta=8.0, learning=Learning(optimizer=AdamW(lr=1e-3))),),
    claim=Claim(
        statement="From dialogues of players who mostly do anything, values regressed to what came of each word make a "
        "cloned policy better than cloning the best tenth of them does.",
        task="text-maze",
        setting="a maze of 4 x 4 that is seen, each turn of which costs 0.1; 2,000 games of a player who does anything "
        "in four of five turns; tiny-agent, 150 steps of 32 dialogues; normalised score on 200 games",
        measures=(Measure(name="score", smallest=5.0, bounds=(0.0, 100.0)),),
        sweep={},
        learned_on="score",
        paper_effect="maze, fully observed: MC returns above filtered cloning (arXiv:2311.18232, table 2)",
    ),
)
