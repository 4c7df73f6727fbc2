"""REBEL: regressing relative rewards (arXiv:2404.16767).

Changes REINFORCE in five places:

1. two completions y, y' of each prompt are compared: the difference of their log-ratios to the policy pi_t that sampled
   them is to be that of their rewards, times eta:

       loss = (log pi/pi_t (y | x) - log pi/pi_t (y' | x) - eta [r(x, y) - r(x, y')])^2               (algorithm 1)

   It is 0 for all pairs exactly at pi_{t+1} ~ pi_t exp(eta r), a step of mirror descent. No advantage, no clip, no
   critic; at pi = pi_t its gradient is 2 eta times the sum of RLOO over both completions, and a Gauss-Newton step is a
   natural policy gradient's;
2. four passes over each batch, of one optimizer step each: at pi_t the margin is 0, and only further steps regress;
3. the distance from the policy at the start is in the reward, r - 0.05 (log pi_t - log ref);
4. a completion that was cut is worth -1;
5. every prompt has two completions; of more, all pairs are compared.

The paper divides by eta on the left; this is its code's form, eta^2 times that. The released script can whiten rewards
(`--with whitened-scores`). Rewards from preferences that hold no order (win rates against other samples) are a part of
the slot `rewards`.
"""

from etude.core.claims import Claim, Measure
from etude.experience.groups import Groups
from etude.methods.foundation.reinforce import reinforce
from etude.objectives.links import SquaredToReward
from etude.objectives.pairs import AllPairs, BehaviourPolicy, LogRatio, PairLoss
from etude.references.frozen import Frozen
from etude.rewards.control import MissingEnd
from etude.rewards.kl import KLPenalty

rebel = reinforce.replace(
    id="rebel",
    title="REBEL: Reinforcement Learning via Regressing Relative Rewards",
    paper="arXiv:2404.16767",
    experience=Groups(size=2),
    rewards=(*reinforce.rewards, MissingEnd(value=-1.0), KLPenalty(coefficient=0.05)),
    advantages=None,
    objective=PairLoss(
        link=SquaredToReward(eta=1.0), of=LogRatio(denominators=(BehaviourPolicy(),)), choice=AllPairs()
    ),
    reference=Frozen(),
    epochs=4,
    claim=Claim(
        statement="At equal divergence from the start regressing relative rewards, without a critic, earns no less of "
        "the gold score than PPO does.",
        bed="preference/digest",
        baseline="ppo-rlhf",
        changes={
            "rewards": "reward-model,missing-end,kl-penalty",
            "rewards.missing-end.value": -1.0,
            "rewards.reward-model.weight": 0.2,
            "rewards.reward-model.model": "{proxy}",
            "experience.size": 2,
            "problems": 64,
            "optimizer.lr": 1e-3,
        },
        measures=(
            Measure(name="frontier", smallest=0.3, margin=-0.3),
            Measure(name="frontier:kl", role="mechanism", smallest=0.1),
            Measure(name="end", role="mechanism", smallest=0.3),
        ),
        equal=("completions",),
        sweep={"optimizer.lr": (3e-4, 1e-3, 3e-3)},
        frontier={"rewards.kl-penalty.coefficient": (0.01, 0.05, 0.2)},
        learned_on="frontier",
        paper_effect="TL;DR: win rates of 70 to 78 % against the references, PPO 67 to 77 %; AlpacaEval 2 "
        "length-controlled 30.1 with Llama-3-8B",
    ),
)
