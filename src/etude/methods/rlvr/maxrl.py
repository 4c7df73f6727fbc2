"""MaxRL: maximum likelihood reinforcement learning (arXiv:2602.02710).

Changes GRPO in one place: centred rewards are divided by the group's mean, not by its standard deviation,

    A_i = (r_i - mean r) / (mean r + 1e-6),    0 for groups that are all right or all wrong.

With p the probability of success, log p = -sum_k (1-p)^k / k. RL keeps the first term; N completions allow more:
for rewards 0 and 1 the mean of A_i grad log pi(y_i) has the expectation

    sum_{k=0}^{N-2} (1-p)^k grad p,    which for large N is grad log p,

so a problem solved once in a hundred tries counts a hundred times one that is always solved. It is unbiased for order
N - 1 because groups without a success give 0 (in the published code's `vr_cond_weights` they push down all their
completions by 1/N, which makes it order N). Any order, and the form without a baseline (order N: (1/K) sum of the
scores of the K successes), is `MaclaurinAdvantage`; r / mean r has `centre=None` and the same scale.

The identity is about sums over tokens (aggregation 'fixed-length'); like its parent this averages completions. There is
no KL; on fresh samples GRPO's clip does nothing.
"""

from etude.advantages.group import GroupAdvantage, GroupMean, GroupMeanScale
from etude.core.claims import Claim, Measure
from etude.methods.rlvr.grpo import grpo

maxrl = grpo.replace(
    id="maxrl",
    title="Maximum Likelihood Reinforcement Learning",
    paper="arXiv:2602.02710",
    advantages=GroupAdvantage(centre=GroupMean(), scale=GroupMeanScale()),
    claim=Claim(
        statement="At equal rollouts and tuned rates, dividing by the success rate raises pass@1 and pass@64 on tables "
        "with AdamW, and pass@64 with normalised steps too.",
        task="enumerable",
        setting="enumerable, classes",
        measures=(
            Measure(name="pass@1, AdamW"),
            Measure(name="pass@64, AdamW"),
            Measure(name="pass@64, normalised steps"),
            Measure(name="pass@1, normalised steps", role="mechanism"),
            Measure(name="pass@1, AdamW, against rloo", role="mechanism"),
            Measure(name="pass@64, AdamW, against rloo", role="mechanism"),
            Measure(
                name="distance from cross-entropy", role="mechanism", direction="lower", smallest=0.01,
                bounds=(0.0, None),
            ),
            Measure(
                name="distance from cross-entropy, against reinforce", role="mechanism", direction="lower",
                smallest=0.01, bounds=(0.0, None),
            ),
        ),
        learned_on="pass@1, AdamW",
        paper_effect="Above GRPO at every k on all models and tasks; up to 20 times fewer samples for the same pass@k.",
    ),
)  # fmt: skip
