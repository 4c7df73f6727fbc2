"""IPO: identity preference optimization (arXiv:2310.12036).

Changes DPO in one place: the margin has a goal instead of being raised for ever,

    m = log pi/ref (y_w | x) - log pi/ref (y_l | x),    loss = (m - 1 / (2 beta))^2                 (eq. 17, their tau)

DPO's loss has its minimum at an infinite margin wherever a pair is always the same way round, whatever beta is, and so
forgets the reference there. This one is least where the policy maximises E[Psi(p(y > y'))] - beta KL(pi || ref) with
Psi the identity, which is bounded: 1 / (2 beta) is the margin between answers of which one always wins.

log pi is a sum over the answer's tokens, as in eq. 17. TRL divides it by their number, and says that the paper's
results were had so: `--set objective.of.per_token=true` is that, and the margin then in nats per token. Of whole
answers a margin of 5 nats (beta = 0.1) is much for short ones and little for long ones.
"""

from etude.core.claims import Claim, Measure
from etude.methods.preference.dpo import dpo
from etude.objectives.links import SquaredToConstant
from etude.objectives.pairs import PairLoss

ipo = dpo.replace(
    id="ipo",
    title="A General Theoretical Paradigm to Understand Learning from Human Preferences",
    paper="arXiv:2310.12036",
    objective=PairLoss(link=SquaredToConstant(beta=0.1)),
    claim=Claim(
        statement="On pairs that are always the same way round IPO stays near the reference, and DPO leaves it.",
        task="enumerable",
        setting="6 responses, every pair",
        measures=(
            Measure(name="KL to the reference", direction="lower", smallest=0.1, bounds=(0.0, None)),
            Measure(name="pairs told apart", role="mechanism", margin=-0.05),
        ),
        sweep={},
        learned_on="pairs told apart",
        paper_effect="three actions, always the same order: DPO's policy is deterministic whatever tau, IPO's is not",
    ),
)
