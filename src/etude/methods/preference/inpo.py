"""INPO: iterative Nash policy optimization (arXiv:2407.00617).

Learns from a preference P(y > y') that need not come from a reward: what is looked for is the policy that none beats by
more than it pays for its distance from ref, the Nash policy of E P(pi > pi') - tau KL(pi || ref) + tau KL(pi' || ref).
Changes IPO in four places:

1. pairs are the policy's own: in round t two or more answers are sampled from pi_t for each prompt, every two of them
   are compared by an oracle, and the best is set against the worst;
2. the margin is taken to ref and to pi_t, by weights tau / eta and 1 - tau / eta,

       h = log pi(y_w)/pi(y_l) - tau/eta log ref(y_w)/ref(y_l) - (1 - tau/eta) log pi_t(y_w)/pi_t(y_l)
       loss = (h - 1 / (2 eta))^2                                                                     (eq. 10)

   Of two answers the expected loss is least at a step of mirror descent against oneself,
   pi_{t+1} ~ ref^(tau/eta) pi_t^(1 - tau/eta) exp(P(y > pi_t) / eta), though P(y > pi_t) is never estimated;
3. a round is a training step: many prompts, and many minibatches;
4. every round has an optimizer of its own.

With tau = eta it is IPO on the policy's own answers. The weights and `objective.link.beta`, which is eta, are set
together; tau / eta = 1/3 as in the paper, whose eta is 1e-2 to 1e-3 for long answers. The oracle is here Bradley and
Terry's by what the task pays; an oracle of your own is a part of the slot `oracle`. A public script that has this
method's name regresses win rates, which is another loss.
"""

from etude.core.claims import Claim, Measure
from etude.experience.groups import Groups
from etude.methods.preference.ipo import ipo
from etude.objectives.links import SquaredToConstant
from etude.objectives.pairs import BehaviourPolicy, LogRatio, PairLoss, ReferencePolicy
from etude.optimizers.restarting import RestartingAdamW
from etude.rewards.outcome import TaskReward
from etude.rewards.preferences import ByScore, Wins

inpo = ipo.replace(
    id="inpo",
    title="Iterative Nash Policy Optimization: Aligning LLMs with General Preferences via No-Regret Learning",
    paper="arXiv:2407.00617",
    experience=Groups(size=8),
    rewards=(TaskReward(), Wins(oracle=ByScore(scale=0.25))),
    objective=PairLoss(
        link=SquaredToConstant(beta=0.3),
        of=LogRatio(denominators=(ReferencePolicy(weight=1 / 3), BehaviourPolicy(weight=2 / 3))),
    ),
    optimizer=RestartingAdamW(),
    problems=256,
    minibatches=8,
    claim=Claim(
        statement="On preferences that go round in circles the policy becomes harder to exploit over rounds, and "
        "iterative DPO on the same comparisons stays exploitable.",
        task="enumerable",
        setting="10 responses, cyclic",
        measures=(
            Measure(name="exploitability", direction="lower", smallest=0.01, bounds=(0.0, None)),
            Measure(
                name="INPO's exploitability",
                role="mechanism",
                direction="lower",
                against=0.02,
                smallest=1e-3,
                bounds=(0.0, None),
            ),
        ),
        sweep={},
        learned_on=None,
        paper_effect="AlpacaEval 2 length-controlled 41.5 %, Arena-Hard 38.3 % from Llama-3-8B, above iterative DPO",
    ),
)
