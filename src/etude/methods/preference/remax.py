"""ReMax: REINFORCE whose baseline is what the greedy answer is paid (arXiv:2310.10505).

Changes RLOO in two places:

1. one completion of each problem is sampled, and beside it the likeliest one, token by token, is written out;
2. the baseline is the reward of that one,

       A = r(x, y) - r(x, y_greedy),   y_greedy,t = argmax pi(. | x, y_greedy,<t),

   which does not depend on what was sampled, so that the estimate of the gradient stays unbiased. There is no critic,
   and no second sample to learn from; the greedy answer costs as many tokens, without a gradient.

With rewards per token, as of `kl-penalty`, both are sums over their own tokens. Of equal rewards nothing is learned.
"""

from etude.advantages.segments import SampledValues, SegmentAdvantage
from etude.core.claims import Claim, Measure
from etude.experience.greedy import GroupsAndGreedy
from etude.methods.rlvr.rloo import rloo

remax = rloo.replace(
    id="remax",
    title="ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning Large Language Models",
    paper="arXiv:2310.10505",
    experience=GroupsAndGreedy(size=1),
    advantages=SegmentAdvantage(values=SampledValues()),
    claim=Claim(
        statement="Of as many sampled completions, what the greedy answer is paid is a better baseline than the mean "
        "of a batch.",
        bed="language/compose-easy",
        baseline="reinforce",
        changes={"problems": 128},
        baseline_changes={"problems": 128, "experience.size": 1},
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps", "completions"),
        paper_effect="7 B: AlpacaEval 94.78 %, MT-bench 7.739; 46 % less memory than PPO and 1.6 times as fast",
    ),
)
