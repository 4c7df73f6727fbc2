"""C51: the chances of 51 returns instead of their mean (arXiv:1707.06887).

Changes DQN in two places:

1. the critic says the chance of each of 51 returns between `low` and `high`; what is best has the largest mean;
2. the target is the copy's distribution moved by the reward, shrunk by gamma and projected back onto the 51, and the
   loss is the cross entropy against it.

Returns outside of `low` and `high` are cut there: set them to what the task can pay. On the cart-pole that is 0 to 100,
the most that a discount of 0.99 lets a reward of 1 add up to. The 51 are the paper's, all other settings `dqn`'s.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning, Target
from etude.learners.backups import Argmax, Bootstrap
from etude.learners.heads import Atoms, CrossEntropy
from etude.learners.q import QFunctions
from etude.methods.value.dqn import dqn
from etude.optimizers.adam import Adam

c51 = dqn.replace(
    id="c51",
    title="A Distributional Perspective on Reinforcement Learning",
    paper="arXiv:1707.06887",
    critic=QFunctions(
        head=Atoms(count=51, low=0.0, high=100.0),
        backup=Bootstrap(Argmax()),
        error=CrossEntropy(),
        learning=Learning(Adam(lr=2.3e-3, clip_norm=10.0), target=Target(every=128)),
    ),
    claim=Claim(
        statement="Learning the chances of returns earns more than learning their mean.",
        bed="control/cartpole-hard",
        baseline="dqn",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
        sweep={"rate": (0.1, 0.3, 1.0)},
        paper_effect="mean human-normalised score 228 to 701 % on 57 Atari games (figure 6)",
    ),
)
