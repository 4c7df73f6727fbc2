"""AWAC: a policy that clones what the critics find better than what it would do itself (arXiv:2006.09359).

Changes SAC in five places:

1. it learns from logs, and nothing is explored;
2. the policy climbs no Q: it clones the actions that were done, by how much better they are than one of its own
   (section 4),

    loss = -N softmax_n(A_n / lambda) log pi(a_n|s_n),    A_n = min Q(s_n, a_n) - min Q(s_n, a),  a ~ pi,  lambda = 1

3. it is a normal whose mean is squashed and whose deviation, between e^-6 and 1, no observation moves;
4. there is no entropy and no temperature;
5. batches have 1,024 rows.

Over the batch the weights have mean 1, as in the author's code and in d3rlpy; the equation divides by no sum. d3rlpy's
target takes a squashed action minus its log-probability; the paper's has none, and neither has this one.
"""

from etude.core.learners import Learning, Target
from etude.experience.logged import Logged
from etude.experience.sampling import OneStep, UniformRows
from etude.learners.backups import Bootstrap, FromPolicy
from etude.learners.q import QFunctions
from etude.methods.offline.bc import over_cloning
from etude.methods.value.sac import sac
from etude.objectives.clone import Clone, Likelihood, OfPolicy, SoftmaxAdvantage
from etude.objectives.reductions import Min
from etude.optimizers.adam import Adam
from etude.policies.control.replay import SquashedMeanPolicy

awac = sac.replace(
    id="awac",
    title="AWAC: Accelerating Online Reinforcement Learning with Offline Datasets",
    paper="arXiv:2006.09359",
    policy=SquashedMeanPolicy(least=-6.0, most=0.0, learning=Learning(Adam(lr=3e-4))),
    experience=Logged(),
    exploration=None,
    sampling=UniformRows(batch=1024, horizon=OneStep(gamma=0.99)),
    critic=QFunctions(
        count=2,
        backup=Bootstrap(FromPolicy(), reduce=Min()),
        learning=Learning(Adam(lr=3e-4), target=Target(rate=0.005)),
    ),
    learners=(),
    actor=(Clone(weight=SoftmaxAdvantage(temperature=1.0, baseline=OfPolicy()), error=Likelihood()),),
    order=("critic", "policy"),
    claim=over_cloning(
        statement="On logs of good and bad episodes AWAC earns more than cloning them.",
        paper_effect="more than cloning from most of D4RL's logs of locomotion",
    ),
)
