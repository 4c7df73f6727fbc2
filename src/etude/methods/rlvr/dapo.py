"""DAPO: decoupled clip and dynamic sampling (arXiv:2503.14476).

Changes GRPO in four places:

1. clip higher: the ratio may rise to 1.28 but fall only to 0.8, so that unlikely tokens can grow (eq. 10);
2. dynamic sampling: groups whose rewards are all equal are replaced by other problems before the update (eq. 11);
3. every token weighs the same in the loss, whatever its completion's length (eq. 12);
4. soft overlong punishment: the last fifth of the length budget costs reward gradually, down to -1 (eq. 13).

    loss = -1/(sum_i |y_i|) sum_i sum_t min(rho A_i, clip(rho, 1 - 0.2, 1 + 0.28) A_i),   0 < right answers < G

Here "all equal" is judged by the whole reward, the punishment included. There is no KL term, as in GRPO here.
"""

from etude.core.claims import Claim, Measure
from etude.filters.informative import InformativeGroups
from etude.methods.rlvr.grpo import grpo
from etude.objectives.policy_gradient import ClippedSurrogate
from etude.rewards.outcome import OverlongPenalty

dapo = grpo.replace(
    id="dapo",
    title="DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
    paper="arXiv:2503.14476",
    rewards=(*grpo.rewards, OverlongPenalty(buffer=0.2)),
    filters=(InformativeGroups(),),
    objective=ClippedSurrogate(low=0.2, high=0.28),
    aggregation="token-mean",
    claim=Claim(
        statement="Replacing groups that teach nothing learns more from the same number of updates than GRPO.",
        bed="language/compose-medium",
        baseline="grpo",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
    ),
)
