"""CoPG: contrastive policy gradient (arXiv:2406.19185).

Changes IPO in three places:

1. rows come from data: a prompt, several answers by whomever, and what each is worth, not only which is better;
2. the margin is to be the difference of these scores in units of beta, so that the loss

       1 / (2 beta) ([r(y) - r(y')] - beta [log pi/ref (y) - log pi/ref (y')])^2                      (eq. 10)

   has the gradient of a policy gradient with R = r - beta log pi/ref, in which each answer is the other's baseline:

       -(R(y) - R(y')) (grad log pi(y) - grad log pi(y'));

3. all pairs of a prompt's answers are compared.

It is 0 exactly at pi* ~ ref exp(r / beta), whatever distribution the answers are from, and without importance weights:
the baseline is an answer of that distribution, not an expectation under pi. On fresh samples the gradient is twice that
of E[r] - beta KL(pi || ref). With r = 1/4 and -1/4 it is beta / 2 times IPO, and with pi_t for ref and 1 / beta = eta
it is beta / 2 times REBEL. `--set experience=groups` trains it on the policy's own samples, and
`--set experience=groups-and-scored-answers` on both.

The paper has no code; typical values of beta are 0.01 to 0.1 with rewards that were standardised.
"""

from etude.core.claims import Claim, Measure
from etude.experience.scored import ScoredAnswers
from etude.methods.preference.ipo import ipo
from etude.objectives.links import ContrastiveReward
from etude.objectives.pairs import AllPairs, PairLoss

copg = ipo.replace(
    id="copg",
    title="Contrastive Policy Gradient: Aligning LLMs on sequence-level scores in a supervised-friendly fashion",
    paper="arXiv:2406.19185",
    experience=ScoredAnswers(),
    objective=PairLoss(link=ContrastiveReward(beta=0.1), choice=AllPairs()),
    claim=Claim(
        statement="From answers of any distribution CoPG comes to the optimum of E[r] - beta KL, and policy gradient "
        "with no baseline or with the mean reward for one does not.",
        task="enumerable",
        setting="5 responses, random distributions",
        measures=(
            Measure(name="KL to the optimum", direction="lower", smallest=0.005, bounds=(0.0, None)),
            Measure(
                name="KL to the optimum against no baseline", direction="lower", smallest=0.005, bounds=(0.0, None)
            ),
            Measure(
                name="CoPG's KL to the optimum",
                role="mechanism",
                direction="lower",
                against=1e-3,
                smallest=1e-4,
                bounds=(0.0, None),
            ),
        ),
        sweep={},
        learned_on="KL to the optimum",
        paper_effect="three arms, data mostly of the worst: CoPG converges to the optimum, the others do not",
    ),
)
