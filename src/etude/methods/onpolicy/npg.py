"""NPG: the natural policy gradient with a fixed length in KL (Kakade 2001, as in arXiv:2401.13662, section 4.4).

Changes A2C in four places:

1. the step is taken along the natural gradient, and is as long as a quadratic KL of delta = 0.01 allows,

       theta += sqrt(2 delta / x^T F x) x,    x = (F + 0.1 I)^{-1} grad mean(rho A),

   with F the Hessian of mean KL(pi_old || pi) at the weights that acted, and x by 10 iterations of conjugate
   gradients, each with two passes backward instead of a matrix;
2. one such step per rollout, so rollouts are longer: 64 steps in 8 environments;
3. the critic is apart: after the policy has moved, 10 epochs of Adam on its squared error;
4. no entropy bonus: the KL is what keeps the policy from collapsing.

x^T F x is taken without the damping, as the equation is written; common implementations leave it in, which makes
the steps shorter than delta.
"""

from etude.core.claims import Claim, Measure
from etude.experience.vector import Rollouts
from etude.learners.fitted import FittedValue
from etude.methods.onpolicy.a2c import a2c
from etude.objectives.surrogate import Surrogate
from etude.optimizers.trust_region import NaturalGradient

npg = a2c.replace(
    id="npg",
    title="A Natural Policy Gradient",
    paper="Kakade 2001, NIPS 14",
    experience=Rollouts(environments=8, steps=64),
    objective=Surrogate(),
    critic=FittedValue(),
    regularizers=(),
    optimizer=NaturalGradient(delta=0.01, damping=0.1),
    claim=Claim(
        statement="Steps of a fixed length in KL earn more than A2C's from as many steps.",
        bed="control/cartpole-hard",
        baseline="a2c",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
        sweep={"optimizer.delta": (0.003, 0.01, 0.03, 0.1)},
        baseline_sweep={"optimizer.lr": (3e-4, 1e-3, 3e-3, 1e-2)},
        runs=8,
    ),
)
