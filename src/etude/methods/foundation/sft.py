"""Supervised fine-tuning: maximum likelihood on worked answers.

Changes REINFORCE in three places: 1. rows come from demonstrations y* instead of samples; 2. nothing is scored, every
token has the same credit; 3. one pass over given text needs no baseline and no ratio. What remains is

    loss = -1/N sum_i sum_t log pi(y*_{i,t} | x_i, y*_{i,<t}),    N = all learned tokens, end tokens included.

The gradient is that of KL(data || pi): it covers what was shown, where the on-policy methods sharpen what works
(arXiv:2203.02155, step 1).
"""

from etude.core.claims import Claim, Measure
from etude.experience.data import Demonstrations
from etude.methods.foundation.reinforce import reinforce
from etude.objectives.supervised import LogLikelihood
from etude.optimizers.adam import AdamW

sft = reinforce.replace(
    id="sft",
    title="Training language models to follow instructions with human feedback (step 1)",
    paper="arXiv:2203.02155",
    experience=Demonstrations(),
    rewards=(),
    advantages=None,
    objective=LogLikelihood(),
    optimizer=AdamW(),
    problems=64,
    claim=Claim(
        statement="With right worked chains to copy, some supervised steps beats as many of trial and error.",
        bed="language/compose-easy",
        baseline="reinforce",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
    ),
)
