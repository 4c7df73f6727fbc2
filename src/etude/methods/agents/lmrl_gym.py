"""LMRL Gym: dialogues of any quality, four ways to learn from them, one score (arXiv:2311.18232).

A benchmark, which learns by ILQL changed in two places, as its maze script has them: no CQL term, and the sampled
policy tilted by 16 instead of 8. What the paper builds is here

1. dialogues with a reward for each turn, as lines of JSON: `etude data info FILE`, `--data FILE`; recorded in a
   recipe by `record-script` and `record-play`. Each is a list of who said what; what the policy says is an action;
2. games: `text-maze` (seen=cell or walls), `wordle`, `attr-20q`; what the paper has besides (a house of TextWorld,
   chess, cities, a car dealer) is not made here;
3. four that learn from dialogues alone: cloning (`sft`), that of the best tenth (`sft --set task.top=0.1`),
   `mc-returns`, `ilql`; and those that play: `ppo`;
4. a score, piecewise linear: 0 at the least return, 50 at the data's mean return, 100 at the highest (`gym_score`).

Rewards here are 1 where the game is won and -cost for every other turn; the paper's are 0 and -1. Returns of games that
are played out differ by 1, so scores do not.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning, Target
from etude.learners.token_values import ImplicitTokenQ
from etude.learners.value import Expectile
from etude.methods.agents.ilql import ilql
from etude.optimizers.adam import AdamW

lmrl_gym = ilql.replace(
    id="lmrl-gym",
    title="LMRL Gym: Benchmarks for Multi-Turn Reinforcement Learning with Language Models",
    paper="arXiv:2311.18232",
    row="benchmark",
    learners=(
        ImplicitTokenQ(
            gamma=0.99,
            cql=0.0,
            beta=16.0,
            state_error=Expectile(tau=0.95),
            learning=Learning(optimizer=AdamW(lr=1e-3), target=Target(rate=0.005)),
        ),
    ),
    claim=Claim(
        statement="From dialogues of players who mostly do anything, ILQL plays better than cloning the best tenth of "
        "them, and that better than cloning all; where only walls are seen it gains less.",
        task="text-maze",
        setting="mazes of 4 x 4, seen and of which only walls are, and 24 words of three letters to guess; each turn "
        "costs 0.1; 2,000 games of a player who does anything in four of five turns; tiny-agent, 150 steps of 32 "
        "dialogues; normalised scores on 200 games",
        measures=(
            Measure(name="maze", smallest=5.0, bounds=(0.0, 100.0)),
            Measure(name="maze, filtered against all", smallest=5.0, bounds=(0.0, 100.0)),
            Measure(name="maze, less what walls gain", smallest=5.0, bounds=(-100.0, 100.0)),
            Measure(name="wordle", role="mechanism", smallest=5.0, bounds=(0.0, 100.0)),
        ),
        sweep={},
        learned_on="maze",
        paper_effect="ILQL and MC returns above filtered cloning above cloning in the mazes and Wordle; ILQL near 100 "
        "in the maze that is seen (table 2)",
    ),
)
