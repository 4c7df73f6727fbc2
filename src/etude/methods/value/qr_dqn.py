"""QR-DQN: quantiles of the return instead of its mean (arXiv:1710.10044).

Changes DQN in two places:

1. the critic says 50 quantiles of the return (the paper has 200); what is best has the largest mean;
2. every quantile learns by its asymmetric Huber loss against the copy's quantiles, moved by the reward and shrunk by
   gamma. There are no bounds to choose.

All other settings are `dqn`'s.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning, Target
from etude.learners.backups import Argmax, Bootstrap
from etude.learners.heads import QuantileHuber, Quantiles
from etude.learners.q import QFunctions
from etude.methods.value.dqn import dqn
from etude.optimizers.adam import Adam

qr_dqn = dqn.replace(
    id="qr-dqn",
    title="Distributional Reinforcement Learning with Quantile Regression",
    paper="arXiv:1710.10044",
    critic=QFunctions(
        head=Quantiles(count=50),
        backup=Bootstrap(Argmax()),
        error=QuantileHuber(kappa=1.0),
        learning=Learning(Adam(lr=2.3e-3, clip_norm=10.0), target=Target(every=128)),
    ),
    claim=Claim(
        statement="Learning quantiles of the return earns more than learning its mean.",
        bed="control/cartpole-hard",
        baseline="dqn",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
        sweep={"rate": (0.1, 0.3, 1.0)},
        paper_effect="mean human-normalised score 228 to 915 % on 57 Atari games (table 1)",
    ),
)
