"""CRR: cloning of what the critic finds better than the mean of what the policy would do (arXiv:2006.15134).

Changes AWAC in four places:

1. every action has its own weight, whatever the rest of the batch,

    loss = -min(exp(A), 20) log pi(a|s),    A = Q(s, a) - mean of Q(s, a_j) over four a_j ~ pi

   or 1(A > 0) in the place of the exponential (`--set actor.clone.weight=gate`, the paper's binary filter);
2. there is one critic;
3. its slow copy and the policy's are copies of 100 updates ago at most, and say what is done next and what it is worth;
4. batches have 100 rows.

The numbers are d3rlpy's; the policy is AWAC's. (In d3rlpy observations move the deviation, and drawn actions are cut
at the bounds before the critic is asked.) The paper's critic says categories, its policy is a mixture, and it acts by
the best of several draws; here none of this is so.
"""

from etude.core.learners import Learning, Target
from etude.experience.sampling import OneStep, UniformRows
from etude.learners.backups import Bootstrap, FromPolicy
from etude.learners.q import QFunctions
from etude.methods.offline.awac import awac
from etude.methods.offline.bc import over_cloning
from etude.objectives.clone import Clone, ExpAdvantage, Likelihood, OfSeveral
from etude.optimizers.adam import Adam
from etude.policies.control.replay import SquashedMeanPolicy

crr = awac.replace(
    id="crr",
    title="Critic Regularized Regression",
    paper="arXiv:2006.15134",
    policy=SquashedMeanPolicy(least=-6.0, most=0.0, learning=Learning(Adam(lr=3e-4), target=Target(every=100))),
    sampling=UniformRows(batch=100, horizon=OneStep(gamma=0.99)),
    critic=QFunctions(
        backup=Bootstrap(FromPolicy()),
        learning=Learning(Adam(lr=3e-4), target=Target(every=100)),
    ),
    actor=(
        Clone(weight=ExpAdvantage(beta=1.0, cap=20.0, baseline=OfSeveral(count=4), slow=False), error=Likelihood()),
    ),
    claim=over_cloning(
        statement="On logs of good and bad episodes CRR earns more than cloning them.",
        paper_effect="more than cloning in most tasks of the control suite",
    ),
)
