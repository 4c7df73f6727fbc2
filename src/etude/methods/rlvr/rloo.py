"""RLOO: REINFORCE with a leave-one-out baseline (arXiv:2402.14740; Kool et al., 2019).

Changes REINFORCE in two places:

1. the baseline of a completion is the mean reward of the other n - 1 completions of its problem,

       A_i = r_i - 1/(n-1) sum_{j != i} r_j = n/(n-1) (r_i - mean r),

   which does not depend on completion i, so that the estimate of the gradient stays unbiased;
2. a completion is one action: its log-probability is the plain sum over its tokens, never divided by its length.
"""

from etude.advantages.group import GroupAdvantage, LeaveOneOut
from etude.core.claims import Claim, Measure
from etude.methods.foundation.reinforce import reinforce

rloo = reinforce.replace(
    id="rloo",
    title="Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
    paper="arXiv:2402.14740",
    advantages=GroupAdvantage(centre=LeaveOneOut(), scale=None),
    aggregation="fixed-length",
    claim=Claim(
        statement="Comparing a completion with the others of its problem learns faster than a batch baseline.",
        bed="language/compose-easy",
        baseline="reinforce",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps", "completions"),
    ),
)
