"""Outcome-based reinforcement on chain traversal (arXiv:2601.15158).

Changes REINFORCE in two places: 1. a completion is one action, its token losses are summed; 2. the task is `chains`,
where only the last vertex is rewarded and `starts` decides how hard the problems are that training sees.

    loss = -1/B sum_i (r_i - mean r) sum_t log pi(y_{i,t})

What is claimed is about a model that can be read, linear attention with one table of queries and one of values
(`--model linear-attention:N`, `policies/readable.py`): with counts c_t of the context's tokens (vertices and edges) and
current vertex v,

    logits over vertices = ((c_t * A[v]) V) / temperature.

Outcomes alone make it walk the chain edge by edge, and it then walks longer ones; but only if training also has easy
problems, from which the reward of a short walk can be found by chance. On hard ones alone that chance, and with it the
gradient, vanishes with the length.

The batch mean holds the sample itself: it shrinks the expected gradient by (B - 1) / B and turns it nowhere.
"""

from etude.core.claims import Claim, Measure
from etude.methods.foundation.reinforce import reinforce

chain_traversal_rl = reinforce.replace(
    id="chain-traversal-rl",
    title="Outcome-Based RL Provably Leads Transformers to Reason, but Only With the Right Data",
    paper="arXiv:2601.15158",
    row="theory",
    aggregation="fixed-length",
    claim=Claim(
        statement="Rewarding the outcome alone makes the model traverse the chain, also one twice as long as those it "
        "was trained on; trained on the hardest starts only it stays near chance, and easier starts cure that.",
        task="chains",
        measures=(
            Measure(name="traversal, 8 vertices", against=0.95, smallest=0.02),
            Measure(name="accuracy, hardest starts only", direction="lower", against=0.6, smallest=0.05),
            Measure(name="accuracy, all starts", margin=0.2, smallest=0.05),
            Measure(name="traversal, 4 vertices", role="mechanism", against=0.95, smallest=0.02),
            Measure(name="traversal, 6 vertices", role="mechanism", against=0.95, smallest=0.02),
        ),
        learned_on=None,
        paper_effect="traversal near 100 %, of longer chains too; near chance from the hardest starts alone, near "
        "100 % with easier ones",
    ),
)
