"""GRPO: group relative policy optimization (DeepSeekMath, arXiv:2402.03300).

Changes REINFORCE in three places: the baseline is the mean reward of the G completions of the same problem and
advantages are divided by their standard deviation; the surrogate is PPO's clipped ratio, so a batch may be used for
several optimizer steps; a completion's tokens are averaged before completions are. With A_i = (r_i - mean) / std,

    loss = -1/G sum_i 1/|y_i| sum_t min(rho A_i, clip(rho, 1 - 0.2, 1 + 0.2) A_i).

The paper adds 0.04 KL to the reference; like current practice (arXiv:2503.14476) the default leaves it out:
`--with kl-to-reference` puts it back.
"""

from etude.advantages.group import GroupAdvantage, GroupMean, GroupStd
from etude.core.claims import Claim, Measure
from etude.methods.foundation.reinforce import reinforce
from etude.objectives.policy_gradient import ClippedSurrogate

grpo = reinforce.replace(
    id="grpo",
    title="DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
    paper="arXiv:2402.03300",
    advantages=GroupAdvantage(centre=GroupMean(), scale=GroupStd()),
    objective=ClippedSurrogate(low=0.2, high=0.2),
    aggregation="sequence-mean",
    claim=Claim(
        statement="Comparing completions of the same problem learns faster than a batch baseline.",
        bed="language/compose-easy",
        baseline="reinforce",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps", "completions"),
    ),
)
