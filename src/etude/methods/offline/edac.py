"""EDAC: SAC-N whose critics differ in their slopes, so that fewer of them do (arXiv:2110.01548).

Changes SAC-N in one place: the critics also minimise how alike their gradients in the action are where one was done
(section 4),

    eta / (M - 1) sum_{i != j} <g_i, g_j>,    g_i = grad_a Q_i(s, a) / |grad_a Q_i(s, a)|,    eta = 1

With all slopes alike the smallest of the values would fall off in no direction away from the logs.
"""

from etude.core.learners import Learning, Target
from etude.learners.backups import Bootstrap, FromPolicy
from etude.learners.penalties import AlikeSlopes
from etude.learners.q import QFunctions
from etude.methods.offline.bc import over_cloning
from etude.methods.offline.sac_n import DEEP, sac_n
from etude.objectives.reductions import Min
from etude.optimizers.adam import Adam

edac = sac_n.replace(
    id="edac",
    title="Uncertainty-Based Offline Reinforcement Learning with Diversified Q-Ensemble",
    paper="arXiv:2110.01548",
    critic=QFunctions(
        network=DEEP,
        count=10,
        backup=Bootstrap(FromPolicy(), reduce=Min(), entropy=True),
        penalties=(AlikeSlopes(weight=1.0),),
        learning=Learning(Adam(lr=3e-4), target=Target(rate=0.005)),
    ),
    claim=over_cloning(
        statement="On logs of good and bad episodes EDAC earns more than cloning them.",
        paper_effect="as much as SAC-N with fewer critics (table 1)",
    ),
)
