"""WSRL: learn from logs, forget them, act a little, then go on with many updates for each step (arXiv:2412.07762).

Changes Cal-QL in five places:

1. there are ten critics, of which two say the target, and layer norms in critics and policy;
2. with the handover nothing of the logs is left: what is stored begins empty;
3. the first 5,000 steps are acted by the policy as it was handed over, by chance, and nothing learns: values are then
   corrected on what this policy does, instead of falling on data that it has never seen;
4. critics are held back no more: from here on it is SAC,

    y = r + gamma (1 - terminated) min_{i of two drawn} Q'_i(s', a'),    a' ~ pi(.|s'),

   without the entropy in y;
5. four updates follow every step, of which the policy and the temperature take part in the last.

Two thirds of the steps are on logs. The authors take 1,024 rows for those four updates and let the policy learn from
all of them; here every update draws its own 256, which the policy's step reads too. Their target of the entropy is 0;
ours is Cal-QL's, minus one nat for every number of an action. Where the returns of logs say little they begin with CQL
(`--set critic.penalties.conservative-q.floor=none`).
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning, Target
from etude.learners.backups import Bootstrap, FromPolicy
from etude.learners.penalties import ConservativeQ, DrawnActions, RecordedReturns
from etude.learners.q import QFunctions
from etude.methods.offline.bc import TENTH
from etude.methods.offline.cal_ql import cal_ql
from etude.methods.offline.rlpd import NORMED
from etude.objectives.reductions import RandomMin
from etude.optimizers.adam import Adam
from etude.policies.control.replay import SquashedPolicy
from etude.stages.handover import Handover
from etude.stages.phases import Phase

ONLINE = ("critic.penalties=none", "policy.learning.every=4", "learners.temperature.learning.every=4")
"""SAC, whose policy learns in every fourth update."""

wsrl = cal_ql.replace(
    id="wsrl",
    title="Efficient Online Reinforcement Learning Fine-Tuning Need Not Retain Offline Data",
    paper="arXiv:2412.07762",
    stages=(Phase(end=2 / 3), Handover(keep=0.0, warmup=5_000, every=1, updates=4.0, set=ONLINE)),
    policy=SquashedPolicy(network=NORMED, learning=Learning(Adam(lr=1e-4))),
    critic=QFunctions(
        network=NORMED,
        count=10,
        backup=Bootstrap(FromPolicy(), reduce=RandomMin(of=2)),
        penalties=(ConservativeQ(actions=DrawnActions(count=10), floor=RecordedReturns(), weight=5.0),),
        learning=Learning(Adam(lr=3e-4), target=Target(rate=0.005)),
    ),
    claim=Claim(
        statement="After the same learning from logs WSRL earns more online than Cal-QL that keeps them.",
        task="pendulum",
        setting=(
            "50 logged episodes of a controller by hand, a third each with torques off by 0.3, 2 and 8 on average; "
            "networks of 64-64, five critics, 3,000 updates on logs, then 1,500 own steps, the first 250 without "
            "updates; the baseline draws half of every batch from the logs, with one update for each step; mean of 5 "
            "looks after the handover, each 20 episodes of likeliest actions"
        ),
        measures=(
            Measure(name="area", smallest=TENTH, bounds=(-2000.0, 0.0)),
            Measure(name="return", role="mechanism", smallest=TENTH, bounds=(-2000.0, 0.0)),
        ),
        equal=("steps",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on="area",
        paper_effect="faster and higher than CQL, Cal-QL, IQL and RLPD on ant mazes, kitchen and Adroit (figure 4)",
    ),
)
