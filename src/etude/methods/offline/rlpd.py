"""RLPD: learn online with logs in half of every batch, and nothing before it (arXiv:2302.02948).

Changes REDQ in four places:

1. half of every batch are rows of logs, half the member's own steps, each drawn uniformly (section 4.1);
2. critics have layer norms, so that what they say of actions in no row does not grow without bound (section 4.2),

    |Q(s, a)| <= |w| sqrt(d) of a last layer w behind a norm of d numbers, wherever (s, a) is;

3. ten thousand steps by chance come before the first update;
4. the entropy is held at half a nat below 0 for every number of an action, as in the authors' code.

Twenty updates for each step, ten critics of which two say the target, and one step of the policy, up the mean of all
ten, are REDQ's. For sparse rewards the paper leaves the entropy out of the target
(`--set critic.backup.entropy=false`), and the smallest of one or two of the ten is the task's.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning, Target
from etude.experience.beside_logs import LogsAndReplay, Symmetric
from etude.experience.sampling import OneStep
from etude.learners.backups import Bootstrap, FromPolicy
from etude.learners.q import QFunctions
from etude.learners.temperature import PerAction, Temperature
from etude.methods.offline.bc import TENTH
from etude.methods.value.redq import redq
from etude.objectives.reductions import RandomMin
from etude.optimizers.adam import Adam
from etude.policies.control.initializers import FanIn
from etude.policies.control.networks import MLP

NORMED = MLP(hidden=(256, 256), activation="relu", layer_norm=True, initializer=FanIn())
"""Two layers of 256, each with a norm before its activation."""

rlpd = redq.replace(
    id="rlpd",
    title="Efficient Online Reinforcement Learning with Offline Data",
    paper="arXiv:2302.02948",
    experience=LogsAndReplay(random=10_000, warmup=10_000, every=1, updates=20.0),
    sampling=Symmetric(batch=256, horizon=OneStep(gamma=0.99), share=0.5),
    critic=QFunctions(
        network=NORMED,
        count=10,
        backup=Bootstrap(FromPolicy(), reduce=RandomMin(of=2), entropy=True),
        learning=Learning(Adam(lr=3e-4), target=Target(rate=0.005)),
    ),
    learners=(Temperature(start=1.0, entropy=PerAction(-0.5), learning=Learning(Adam(lr=3e-4), every=20)),),
    claim=Claim(
        statement="With logs of good and bad episodes in half of every batch RLPD earns more than without them.",
        task="pendulum",
        setting=(
            "50 logged episodes of a controller by hand, a third each with torques off by 0.3, 2 and 8 on average; "
            "networks of 64-64, five critics, 1,500 own steps of which 250 by chance, four updates for each; the "
            "baseline is the same without logs; mean of 5 looks on the way, each 20 episodes of likeliest actions"
        ),
        measures=(
            Measure(name="area", smallest=TENTH, bounds=(-2000.0, 0.0)),
            Measure(name="return", role="mechanism", smallest=TENTH, bounds=(-2000.0, 0.0)),
        ),
        equal=("steps",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on="area",
        paper_effect="2.5 times the best earlier method's returns on sparse tasks, no pre-training (figure 1)",
    ),
)
