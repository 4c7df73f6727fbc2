"""TRPO: the natural gradient's step, taken only as far as it keeps its promise (arXiv:1502.05477).

Changes NPG in one place: the step is multiplied by 0.8^j, j = 0, ..., 9, and the first is taken for which

    mean KL(pi_old || pi) <= delta    and    mean(rho A) is not lower than before;

if there is none, the policy stays as it is. Every member has its own line search.
"""

from etude.core.claims import Claim, Measure
from etude.methods.onpolicy.npg import npg
from etude.optimizers.trust_region import TrustRegion

trpo = npg.replace(
    id="trpo",
    title="Trust Region Policy Optimization",
    paper="arXiv:1502.05477",
    optimizer=TrustRegion(delta=0.01, damping=0.1, shrink=0.8, tries=10),
    claim=Claim(
        statement="A step that never leaves the trust region earns more than A2C's from as many steps.",
        bed="control/cartpole-hard",
        baseline="a2c",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
        sweep={"optimizer.delta": (0.003, 0.01, 0.03, 0.1)},
        baseline_sweep={"optimizer.lr": (3e-4, 1e-3, 3e-3, 1e-2)},
        runs=8,
    ),
)
