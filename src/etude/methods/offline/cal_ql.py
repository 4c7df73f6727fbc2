"""Cal-QL: CQL whose critics are not pushed below what the logs went on to earn, alone and online (arXiv:2303.05479).

Changes CQL in two places:

1. every row of the logs knows what its episode went on to earn, discounted;
2. what the critics say of the policy's own actions counts at least that where it is pushed down,

    log (1/3C) (sum_uniform exp(Q) / p + sum_policy exp(max(Q, R)) / p) - Q(s, a_done)

   so that a policy that goes on in the environment does not first unlearn what it knows. Uniform actions have no floor,
   as in the author's code.

That was made for what follows in the environment. `cal-ql` is what is learned from the logs before it; `cal-ql-online`
goes on from there with the same losses, after two thirds of the steps: half of every batch are rows of the logs, half
its own steps, one update for each step after the first thousand. Of its own steps too it is known what their
episode went on to earn, once that has ended; before, they have no floor. (The authors store whole episodes, when they
have ended.)
"""

from etude.core.learners import Learning, Target
from etude.experience.transforms import ReturnsToGo
from etude.learners.backups import Bootstrap, FromPolicy
from etude.learners.penalties import ConservativeQ, DrawnActions, RecordedReturns
from etude.learners.q import QFunctions
from etude.methods.offline.bc import over_cloning
from etude.methods.offline.cql import cql
from etude.objectives.reductions import Min
from etude.optimizers.adam import Adam
from etude.stages.handover import Handover
from etude.stages.phases import Phase

cal_ql = cql.replace(
    id="cal-ql",
    title="Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online Fine-Tuning",
    paper="arXiv:2303.05479",
    transforms=(ReturnsToGo(),),
    critic=QFunctions(
        count=2,
        backup=Bootstrap(FromPolicy(), reduce=Min()),
        penalties=(ConservativeQ(actions=DrawnActions(count=10), floor=RecordedReturns(), weight=5.0),),
        learning=Learning(Adam(lr=3e-4), target=Target(rate=0.005)),
    ),
    claim=over_cloning(
        statement="On logs of good and bad episodes Cal-QL earns more than cloning them.",
        paper_effect="as good as CQL from logs alone, and better than it after steps of its own (table 1)",
    ),
)

cal_ql_online = cal_ql.replace(
    id="cal-ql-online",
    title="Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online Fine-Tuning",
    paper="arXiv:2303.05479",
    stages=(Phase(end=2 / 3), Handover(keep=1.0, share=0.5, warmup=1_000, every=1, updates=1.0)),
)
