"""BEAR: a policy climbs the smaller critic as far as samples of it can be mistaken for those of the logs.

Changes SAC in five places (arXiv:1906.00949):

1. it learns from logs, and nothing is explored; entropy counts nowhere;
2. an autoencoder of the recorded actions says what may be done, and steps first;
3. the policy is held to that by the distance of few samples of either, the maximum mean discrepancy,

    loss_pi = -min_k Q_k(s, a) + alpha MMD(u, v),    a ~ pi,   u_1..n ~ pi,   v_1..n of the autoencoder
    MMD^2 = mean k(u_i, u_j) + mean k(v_i, v_j) - 2 mean k(u_i, v_j),    k(x, y) = exp(-|x - y|^2 / 2 width)

   of numbers before tanh, with n = 5 and width 20; so few tell what is possible from what is not, and hardly how often;
4. alpha climbs alpha (MMD - 0.05), and is the price at which the distance meets that limit;
5. the target takes the best of ten actions of the policy's slow copy, of a value between the smaller and the larger
   critic, as BCQ's,

    y = r + gamma (1 - terminated) max_i [lambda min_k Q'_k(s', a_i) + (1 - lambda) max_k Q'_k(s', a_i)],  lambda = 0.75

   and it acts by the best of ten by the critics' mean.

As its authors' code has it: rates are 1e-3, batches 100, networks of 400-300, those of the autoencoder 750-750, and log
alpha lies between -5 and 10. There the policy only matches the logs at first, and it climbs the mean of its n samples,
drawn from a narrower normal than it is; it acts by its first critic. The penalty on how far critics differ, which that
code has by a factor that its own command sets to 0, is left out.

`bear-discrete` is the same of choices, for logs as those of `discrete-bcq`'s benchmark; its paper has numbers alone,
and the benchmark's was not at hand. A clone of the logs, G, says what may be done, and of choices whose chances are
known the mean over samples needs none: the distance is how much further n samples of the policy are from n of the clone
than these are from n more,

    MMD^2 = (1 - k) [(1 - 1/n) sum pi^2 + (1 + 1/n) sum G^2 - 2 sum pi G],    k = exp(-1 / width)

which is (1 - k) |pi - G|^2 as n grows. Its target is the mean over what the policy's slow copy would do.
"""

from etude.core.learners import Learning, Target
from etude.experience.logged import Logged
from etude.experience.sampling import OneStep, UniformRows
from etude.learners.backups import Bootstrap, FromPolicy
from etude.learners.behaviour import BehaviourModel
from etude.learners.best_of import BestDrawn, MostlyMin
from etude.learners.q import QFunctions
from etude.learners.vae import ActionVAE
from etude.methods.offline.bcq import SIZE
from etude.methods.offline.bear.support import ExpectedSupport, SampledSupport, SupportPrice
from etude.methods.value.sac import sac
from etude.objectives.actor import MaximizeQ
from etude.objectives.reductions import Min
from etude.optimizers.adam import Adam
from etude.planners.closed_form import BestOfSamples
from etude.policies.control.replay import SoftmaxPolicy, SquashedPolicy

SLOWLY = Learning(Adam(lr=1e-3), target=Target(rate=0.005))

bear = sac.replace(
    id="bear",
    title="Stabilizing Off-Policy Q-Learning via Bootstrapping Error Reduction",
    paper="arXiv:1906.00949",
    experience=Logged(),
    exploration=None,
    policy=SquashedPolicy(network=SIZE, learning=SLOWLY),
    sampling=UniformRows(batch=100, horizon=OneStep(gamma=0.99)),
    critic=QFunctions(network=SIZE, count=2, backup=BestDrawn(count=10, reduce=MostlyMin(share=0.75)), learning=SLOWLY),
    actor=(MaximizeQ(over=Min()), SampledSupport(count=5, width=20.0)),
    learners=(ActionVAE(), SupportPrice(start=1.0, limit=0.05)),
    order=("action-vae", "critic", ("policy", "support-price")),
    planner=BestOfSamples(count=10, beta=0.0),
)

bear_discrete = bear.replace(
    id="bear-discrete",
    title="Stabilizing Off-Policy Q-Learning via Bootstrapping Error Reduction",
    paper="arXiv:1906.00949",
    policy=SoftmaxPolicy(network=SIZE, learning=SLOWLY),
    critic=QFunctions(
        network=SIZE, count=2, backup=Bootstrap(FromPolicy(), reduce=MostlyMin(share=0.75)), learning=SLOWLY
    ),
    actor=(MaximizeQ(over=Min()), ExpectedSupport(count=5, width=1.0)),
    learners=(BehaviourModel(), SupportPrice(start=1.0, limit=0.05)),
    order=("behaviour-model", "critic", ("policy", "support-price")),
    planner=None,
)
