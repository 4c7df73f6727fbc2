"""Dr. GRPO: GRPO done right (arXiv:2503.20783).

Changes GRPO in two places, each of which removes a bias:

1. advantages are not divided by the group's standard deviation, A_i = r_i - mean r: dividing gives problems that are
   nearly always or nearly never solved more weight;
2. token losses are summed and divided by a constant, the completion limit L, instead of each completion's length:
   dividing by the length makes long wrong answers cheap.

    loss = -1/(G L) sum_i sum_t min(rho A_i, clip(rho, 1 - 0.2, 1 + 0.2) A_i)

Up to the constant n/(n-1) this is RLOO with a clip.
"""

from etude.advantages.group import GroupAdvantage, GroupMean
from etude.core.claims import Claim, Measure
from etude.methods.rlvr.grpo import grpo

dr_grpo = grpo.replace(
    id="dr-grpo",
    title="Understanding R1-Zero-Like Training: A Critical Perspective",
    paper="arXiv:2503.20783",
    advantages=GroupAdvantage(centre=GroupMean(), scale=None),
    aggregation="fixed-length",
    claim=Claim(
        statement="Without the two biases the same number of updates learns more than GRPO's.",
        bed="language/compose-medium",
        baseline="grpo",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps", "completions"),
    ),
)
