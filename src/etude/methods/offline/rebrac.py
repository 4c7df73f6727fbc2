"""ReBRAC: TD3+BC whose critics too are told to stay near the logs, in deeper networks (arXiv:2305.09836).

Changes TD3+BC in six places:

1. what follows is worth less the further it is from what was done next, noise included,

    y = r + gamma (1 - terminated) (min_k Q'_k(s', a') - beta_2 sum_k (a'_k - next_a_k)^2),    beta_2 = 0.01

2. so every row knows what was done next, and the last of a truncated episode, which does not, is left out;
3. the policy climbs the smaller of both critics, and the distance from what was done is a sum over the numbers of an
   action, with a weight of its own,

    loss = -min_k Q_k(s, mu(s)) / mean |min_k Q_k| + beta_1 sum_k (mu(s)_k - a_k)^2,    beta_1 = 0.001

4. networks have three layers of 256, the critics' with layer norms;
5. observations are as they come;
6. batches have 1,024 rows, and the rate is 0.001.

beta_1 and beta_2 depend on the data, here those of HalfCheetah's medium one. The author's code normalises what comes of
the rectifiers, this one what goes into them.
"""

from etude.core.learners import Learning, Target
from etude.experience.sampling import OneStep, UniformRows
from etude.experience.transforms import NextActions
from etude.learners.backups import Bootstrap, ClippedNoise, NearNext
from etude.learners.q import QFunctions
from etude.methods.offline.bc import over_cloning
from etude.methods.offline.sac_n import DEEP
from etude.methods.offline.td3_bc import td3_bc
from etude.objectives.actor import MaximizeQ
from etude.objectives.clone import Clone, MeanAbs, SquaredNorm
from etude.objectives.reductions import Min
from etude.optimizers.adam import Adam
from etude.policies.control.replay import DeterministicPolicy

rebrac = td3_bc.replace(
    id="rebrac",
    title="Revisiting the Minimalist Approach to Offline Reinforcement Learning",
    paper="arXiv:2305.09836",
    transforms=(NextActions(),),
    sampling=UniformRows(batch=1024, horizon=OneStep(gamma=0.99)),
    policy=DeterministicPolicy(
        network=DEEP, learning=Learning(Adam(lr=1e-3), every=2, target=Target(rate=0.005, every=2))
    ),
    critic=QFunctions(
        network=DEEP.replace(layer_norm=True),
        count=2,
        backup=Bootstrap(NearNext(noise=ClippedNoise(scale=0.2, limit=0.5), weight=0.01), reduce=Min()),
        learning=Learning(Adam(lr=1e-3), target=Target(rate=0.005, every=2)),
    ),
    actor=(MaximizeQ(over=Min(), scale=MeanAbs(alpha=1.0)), Clone(error=SquaredNorm(), scale=0.001)),
    claim=over_cloning(
        statement="On logs of good and bad episodes ReBRAC earns more than cloning them.",
        paper_effect="more than TD3+BC in most of D4RL's tasks, and the most of all ensemble-free methods on average",
    ),
)
