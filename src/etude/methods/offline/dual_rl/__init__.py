"""f-DVL: IQL whose V learns by the conjugate of an f-divergence; ReCOIL: the same without rewards (arXiv:2302.08560).

Regularised reinforcement learning has a dual with no constraints. f-DVL, `dual-rl`, changes IQL in three places:

1. V minimises the dual of staying near to the logs by an f-divergence (eq. 16),

    loss_V = lam f*_p(y) - (1 - lam) y,    y = min_k Q'_k(s, a) - V(s),    lam = 0.7

   with f*_p(y) = max(y, 0) + max(y, 0)^2 / 4 of chi-square. With `value.error=total-variation-dual` it is max(y, 0),
   and V a quantile; with `value.error=gumbel` the whole is XQL's exp(y / b) - y / b - 1, b log E exp(Q / b), whose
   slopes grow without bound where y does. These do not;
2. V's layers are normalised;
3. critics pay linearly for targets that are more than 20 away.

ReCOIL, `recoil`, imitates an expert's episode out of arbitrary ones. It changes f-DVL in five places:

1. nobody is told what was paid: the best episode of the logs is marked as the expert's (E), all others are not (O);
2. half of every batch are the expert's rows, d_mix = (E + O) / 2;
3. critics learn which rows an expert's are by a contrast beside their error, and no discriminator (eq. 10),

    loss_Q = 4 beta (E_{s in O} Q(s, pi(s)) - E_E Q(s, a)) + E_mix (gamma V(s') - Q(s, a))^2,    beta = 1/2

   four times the paper's, which is the same to Adam: as if each row of the expert's paid 2 more than what follows;
4. the square is not cut;
5. V learns by Gumbel regression, scale 1.

The code that was released for ReCOIL has (Q - 200)^2 on rows of the expert's in the place of the contrast, pays -2 in
each row, and takes -200 for what terminates; here nothing follows what terminates, as in the paper.

The paper sees many methods as one: a dual in Q or in V, an f, and whose data (CQL, XQL, OPOLO, SMODICE). That is no
module here, and V learns at what was done alone, not at random actions besides.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning, Target
from etude.experience.transforms import ForgetRewards, MarkExperts
from etude.learners.backups import Bootstrap, FromValue
from etude.learners.heads import Huber
from etude.learners.q import QFunctions
from etude.learners.value import ValueFunction
from etude.methods.offline.bc import TENTH
from etude.methods.offline.dual_rl.conjugates import ChiSquareDual, Gumbel
from etude.methods.offline.dual_rl.imitation import ExpertContrast, ExpertShare
from etude.methods.offline.iql import iql
from etude.objectives.reductions import Min
from etude.optimizers.adam import Adam
from etude.policies.control.initializers import FanIn
from etude.policies.control.networks import MLP

NORMED = MLP(hidden=(256, 256), activation="relu", initializer=FanIn(), layer_norm=True)

dual_rl = iql.replace(
    id="dual-rl",
    title="Dual RL: Unification and New Methods for Reinforcement and Imitation Learning",
    paper="arXiv:2302.08560",
    value=ValueFunction(network=NORMED, of=Min(), error=ChiSquareDual(lam=0.7), learning=Learning(Adam(lr=3e-4))),
    critic=QFunctions(
        count=2,
        backup=Bootstrap(FromValue()),
        error=Huber(delta=20.0),
        learning=Learning(Adam(lr=3e-4), target=Target(rate=0.005)),
    ),
    claim=Claim(
        statement="On logs of good and bad episodes f-DVL earns more than the same with XQL's Gumbel regression.",
        task="pendulum",
        setting=(
            "50 logged episodes of a controller by hand, a third each with torques off by 0.3, 2 and 8 on average; "
            "networks of 64-64, 5,000 updates, 20 episodes of likeliest actions; beta 0.1 for rewards of some ten "
            "times the size; the baseline's scale 1"
        ),
        measures=(Measure(name="return", smallest=TENTH, bounds=(-2000.0, 0.0)),),
        equal=("updates",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on="return",
        paper_effect="as much as XQL or more on D4RL, without runs of XQL's that diverge (table 1, figure 3)",
    ),
)

recoil = dual_rl.replace(
    id="recoil",
    title="Dual RL: Unification and New Methods for Reinforcement and Imitation Learning",
    paper="arXiv:2302.08560",
    transforms=(MarkExperts(episodes=1), ForgetRewards()),
    sampling=ExpertShare(share=0.5),
    value=ValueFunction(network=NORMED, of=Min(), error=Gumbel(scale=1.0), learning=Learning(Adam(lr=3e-4))),
    critic=QFunctions(
        count=2,
        backup=Bootstrap(FromValue()),
        penalties=(ExpertContrast(weight=2.0),),
        learning=Learning(Adam(lr=3e-4), target=Target(rate=0.005)),
    ),
    claim=Claim(
        statement="From one good episode among 49 bad ones, without rewards, ReCOIL earns more than cloning them all.",
        task="pendulum",
        setting=(
            "50 logged episodes of a controller by hand, 49 of them with torques off by 8 on average and 1 by 0.3; "
            "networks of 64-64, 5,000 updates, 20 episodes of likeliest actions"
        ),
        measures=(Measure(name="return", smallest=TENTH, bounds=(-2000.0, 0.0)),),
        equal=("updates",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on=None,
        paper_effect="near the expert where cloning and discriminators are not, from one expert episode (table 2)",
    ),
)
