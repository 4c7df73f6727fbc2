"""ALPINE: what next-token prediction learns of a graph (arXiv:2405.09220).

Changes SFT in nothing but what it is trained on and how long: 1. the worked answers are random paths of a graph, task
`paths`; 2. large batches, a rate for a model without pre-training (`--model blank:1x120`, one layer and one head) that
falls to nothing. What it is for is the analysis. With N_ijk the number of times that k follows j on a path to target i,

    loss = -sum_ijk N_ijk log P(k | i, j),    d loss / d W_M[j, k] = sum_i (N_ij P(k | i, j) - N_ijk),
                                              d loss / d W_V[i, k] = sum_j (N_ij P(k | i, j) - N_ijk)

for the model P(. | i, j) = softmax(W_M[j] + W_V[i]) that a layer amounts to if it attends to the target alone. So W_M
grows on edges that were seen and W_V on nodes that were seen on a path to the target: the adjacency matrix is learned,
reachability only as far as it was observed, and pairs that have to be put together from several pieces fail.

The model is `--model two-matrices:N` (`policies/readable.py`), here with a rate that suits tables
(`--set optimizer.lr=0.1`); its gradients are in `experiments/rlvr/path_models.py`, the probes that find the two
matrices in a trained decoder in `evaluation/graph_probes.py`. The paper's decoder is a GPT with learned positions that
reads "s t s a b t"; ours has rotary ones and reads "t s a b t" (see the task), and only the path after the source is
learned.
"""

from etude.core.claims import Claim, Measure
from etude.methods.foundation.sft import sft
from etude.optimizers.adam import AdamW
from etude.optimizers.schedules import Cosine

alpine = sft.replace(
    id="alpine",
    title="ALPINE: Unveiling the Planning Capability of Autoregressive Learning in Language Models",
    paper="arXiv:2405.09220",
    row="theory",
    optimizer=AdamW(lr=3e-3, schedule=Cosine()),
    problems=256,
    claim=Claim(
        statement="One layer that solves the pairs it saw on the way to a target solves those much less that need "
        "pieces put together; of reachability it learns what was observed, and it attends to the target.",
        task="paths",
        measures=(
            Measure(
                name="decoder: accuracy, seen less composed", against=0.0, margin=0.1, smallest=0.1, bounds=(-1.0, 1.0)
            ),
            Measure(name="decoder: W_V on seen nodes", smallest=0.3, bounds=(None, None)),
            Measure(name="decoder: attention on the target", against=0.5, smallest=0.05),
            Measure(name="decoder: accuracy, seen", role="mechanism", minimum=0.85, against=0.85, smallest=0.02),
            Measure(name="decoder: W_M on edges", role="mechanism", against=0.0, smallest=0.3, bounds=(None, None)),
            Measure(
                name="two matrices: accuracy, seen less composed",
                role="mechanism",
                against=0.0,
                margin=0.1,
                smallest=0.1,
                bounds=(-1.0, 1.0),
            ),
            Measure(name="two matrices: accuracy, seen", role="mechanism", against=0.85, smallest=0.02),
            Measure(name="two matrices: W_V on seen nodes", role="mechanism", smallest=0.3, bounds=(None, None)),
            Measure(
                name="two matrices: W_M on edges", role="mechanism", against=0.0, smallest=0.3, bounds=(None, None)
            ),
        ),
        learned_on=None,
        paper_effect="about 90 % and more on pairs of degree 0, much less on higher degrees, with 100 to 500 nodes; "
        "W_V follows observed reachability",
    ),
)
