"""ORPO: monolithic preference optimization without reference model (arXiv:2403.07691).

Changes DPO in three places, so that fine-tuning and preferences are one run:

1. there is no reference: an answer is worth its log-odds, P its likelihood per token,

       D(y) = log(P / (1 - P)),    P = exp(1 / |y| log pi(y | x));                                    (eq. 4)

2. the chosen answer is imitated as well;
3. the comparison is a small addition to that, lambda = 0.1:

       loss = -1 / |y_w| log pi(y_w | x) - lambda log sigmoid(D(y_w) - D(y_l))                        (eq. 6)
"""

from etude.core.claims import Claim, Measure
from etude.methods.preference.dpo import dpo
from etude.objectives.links import Logistic
from etude.objectives.pairs import LogOdds, PairLoss

orpo = dpo.replace(
    id="orpo",
    title="ORPO: Monolithic Preference Optimization without Reference Model",
    paper="arXiv:2403.07691",
    objective=PairLoss(link=Logistic(beta=1.0), of=LogOdds(), weight=0.1, nll=1.0),
    reference=None,
    claim=Claim(
        statement="With a comparison in it, imitation of the chosen answers learns more than alone.",
        task="preferences",
        measures=(
            Measure(name="accuracy"),
            Measure(name="pairs told apart", role="mechanism", minimum=0.6),
        ),
        equal=("problems",),
        sweep={"optimizer.lr": (1e-4, 3e-4, 1e-3), "objective.weight": (0.1, 1.0)},
        baseline_sweep={"optimizer.lr": (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)},
        learned_on="accuracy",
        paper_effect="AlpacaEval 2: Mistral 7B 12.2 %, above chat models of 13 B, after one run without a warm-up",
    ),
)
