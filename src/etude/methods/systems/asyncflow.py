"""AsyncFlow: sampling runs ahead of the updates (arXiv:2507.01663).

Changes GRPO in one place: rows of step k are sampled by the weights that k - 1 steps have made (`bound`, the paper's
staleness of 1), so that they can be sampled while step k - 1 is verified and learned from. Each token keeps the
log-probability that it was sampled with, and the ratio is taken against that:

    rows of step k may be begun  iff  k - (finished steps) <= bound
    rho_t = pi(y_t) / pi_old(y_t),   pi_old: the weights that sampled, `bound` steps older than those that learn

With `bound=0` it is GRPO, bit for bit. A step that takes g to sample and u to verify and to learn from takes max(g, u)
in place of g + u, once samplers have processes of their own: `--on processes`, or `--on processes:2` for two. The
numbers are the same wherever it runs.

Differences to the paper. Weights change between steps alone, and all rows of a step are of one version (of several, by
their tokens, with `renew_after`): whoever is how fast decides nothing, so a run can be repeated and gone on with. The
store of rows and fields, rows that are scored as they end, and the planner of workers are in `runtime/store.py`,
`scheduler.py` and `planning.py`, simulated so far.
"""

from etude.core.claims import Claim, Measure
from etude.methods.rlvr.grpo import grpo

asyncflow = grpo.replace(
    id="asyncflow",
    title="AsyncFlow: An Asynchronous Streaming RL Framework for Efficient LLM Post-Training",
    paper="arXiv:2507.01663",
    bound=1,
    claim=Claim(
        statement="In as many steps GRPO ends no worse where rows are one step older, and a schedule that rests on "
        "that learns from 1.4 times as many rows in a second as sampling, scoring and learning in turn.",
        task="compose",
        setting="chains of three, 30 steps of 16 x 8 in 4 minibatches from the shipped model; schedules are simulated: "
        "16 x 8 answers of 8 to 256 tokens (log-normal) on one sampler of 16 slots, 20 ms of verification, eight at a "
        "time, and an update that takes about as long as sampling",
        measures=(
            Measure(name="accuracy", smallest=0.03, margin=-0.03),
            Measure(name="speed", smallest=0.1, against=1.4, bounds=(1.0, None)),
            Measure(name="speed, rows scored as they end", role="mechanism", smallest=0.1, against=1.0,
                    bounds=(None, None)),
            Measure(name="lag", role="mechanism", smallest=0.1, minimum=0.9, bounds=(None, None)),
        ),
        equal=("completions",),
        sweep={"optimizer.lr": (1e-4, 2e-4, 4e-4)},
        learned_on="accuracy",
        paper_effect="1.59 times the throughput of the baseline on average, 2.03 at most, at negligible differences in "
        "reward",
    ),
)  # fmt: skip
