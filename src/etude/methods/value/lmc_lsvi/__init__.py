"""LMC-LSVI, deep as Adam LMCDQN: noise in every step of the optimizer explores (arXiv:2305.18246).

Changes DQN in four places:

1. the optimizer is adaptive Langevin dynamics: besides the gradient and a drift like Adam's a step has noise, so that
   weights are samples of a posterior of Q,

       w <- w - lr (g + a m / (sqrt(v) + 1e-8)) + sigma sqrt(2 lr) n;

2. what is best by the weights of the moment is done always: there is no epsilon, and nothing random at the start;
3. rewards of three steps are summed before a value follows;
4. the best choice is named by Q and valued by its copy (Double DQN, the better of the paper's two).

Its settings for Atari have lr 1e-4, sigma from 1e-8 to 1e-6 and a from 0.01 to 1, an update every 10 steps; those here
are for small networks, with the rhythm of `dqn`. Linear LMC-LSVI, on tables with a horizon, is
`experiments/value/lmc_lsvi.py`.

What its two beds showed (`claims/lmc-lsvi`; means of 6 seeds with 8 runs each, both verdicts void): on a chain whose
right action is the same everywhere it solved 0.50 of the runs, Langevin Adam 0.50 and epsilon-greedy 0.27, but 0.42
were solved by weights that had learned nothing. On one of 16 states whose right actions are mixed it solved none,
Langevin Adam 0.02 and epsilon-greedy 0.54: noise of this kind does not lead to an end that was never seen, which the
learning of DQN with random choices reaches. The linear form did what is claimed: on RiverSwim the regret of the later
half of 600 episodes was 0.12 of the earlier half's.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning, Target
from etude.experience.exploration import Greedy
from etude.experience.replay import Replay
from etude.experience.sampling import NStep, UniformRows
from etude.learners.backups import Argmax, Bootstrap
from etude.learners.q import QFunctions
from etude.methods.value.dqn import dqn
from etude.methods.value.lmc_lsvi.langevin import AdaptiveSGLD

lmc_lsvi = dqn.replace(
    id="lmc-lsvi",
    title="Provable and Practical: Efficient Exploration in Reinforcement Learning via Langevin Monte Carlo",
    paper="arXiv:2305.18246",
    experience=Replay(capacity=100_000, random=0, warmup=256, every=256, updates=0.5),
    exploration=Greedy(),
    sampling=UniformRows(batch=32, horizon=NStep(gamma=0.99, n=3)),
    critic=QFunctions(
        backup=Bootstrap(Argmax(double=True)),
        learning=Learning(AdaptiveSGLD(lr=1e-3, a=1.0, sigma=1e-2), target=Target(every=128)),
    ),
    claim=Claim(
        statement="Noise in the optimizer's steps finds the end of a chain more often than random choices do; of the "
        "linear form, the regret on RiverSwim grows more slowly than the episodes.",
        task="n-chain",
        setting="a chain of 16 states in each of which the seed says which action goes right, two layers of 32, 20,000 "
        "steps, the same updates for all; solved is the share of 8 runs whose greedy return is nine tenths of the "
        "best. RiverSwim: 4 states, 12 steps, 600 episodes",
        measures=(
            Measure(name="solved", smallest=0.15),
            Measure(name="solved, Langevin Adam", smallest=0.15),
            Measure(
                name="regret, later by earlier half", direction="lower", against=1.0, smallest=0.05, bounds=(0.0, None)
            ),
        ),
        equal=("steps",),
        learned_on="solved",
        paper_effect="N-chain: returns above DQN's from 25 states on (figure 1); regret of order sqrt(T) (theorem 4.2)",
    ),
)
