"""SimPO: simple preference optimization with a reference-free reward (arXiv:2405.14734).

Changes DPO in three places:

1. there is no reference: an answer is worth the mean log-probability of its tokens, which is what it is sampled by;
2. the length of an answer therefore does not pay;
3. the better one is to lead by gamma:

       loss = -log sigmoid(beta / |y_w| log pi(y_w | x) - beta / |y_l| log pi(y_l | x) - gamma)            (eq. 6)

The paper takes beta from 2 to 2.5 and gamma from 0.3 to 1.6; beta = 2 and gamma = 1 here. Nothing but a small learning
rate keeps the policy where it was.
"""

from etude.core.claims import Claim, Measure
from etude.methods.preference.dpo import dpo
from etude.objectives.links import Logistic
from etude.objectives.pairs import LogRatio, PairLoss

simpo = dpo.replace(
    id="simpo",
    title="SimPO: Simple Preference Optimization with a Reference-Free Reward",
    paper="arXiv:2405.14734",
    objective=PairLoss(link=Logistic(beta=2.0, target=1.0), of=LogRatio(denominators=(), per_token=True)),
    reference=None,
    claim=Claim(
        statement="Without a reference, from the mean log-probability of an answer's tokens, as much is learned from "
        "pairs as with one.",
        task="preferences",
        measures=(
            Measure(name="accuracy", margin=-0.02),
            Measure(name="pairs told apart", role="mechanism", minimum=0.6),
        ),
        equal=("problems",),
        sweep={"optimizer.lr": (1e-5, 3e-5, 1e-4), "objective.link.target": (0.5, 1.0)},
        baseline_sweep={"optimizer.lr": (1e-5, 3e-5, 1e-4), "objective.beta": (0.1, 0.5)},
        learned_on="accuracy",
        paper_effect="AlpacaEval 2, length-controlled: up to 6.4 points above DPO, at answers that are no longer",
    ),
)
