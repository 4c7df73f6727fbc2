"""SPO: segment policy optimization, by chains (arXiv:2505.23564).

Credit goes to segments of a completion, between the completion as a whole (GRPO) and single tokens (PPO), and needs no
critic. Changes GRPO in five places:

1. experience: a token is a cut point where pi_old gave it less than 0.9. A segment begins with the completion and right
   before every fifth cut point. From each beginning nine fresh completions are sampled, only to see what they are paid:
   V is their mean (`Forks`, `LowProbabilityCuts`);
2. advantages: A_k = V(end of segment k) - V(its beginning), the same for its tokens; the end of the last is worth the
   completion's own reward, so that sum_k A_k = r - V(prompt) (`SegmentAdvantage`);
3. loss: PPO's clip over the tokens with pi_old < 0.9 alone, divided by their number (`UnsureTokens`):

       loss = -sum_t [p_t < 0.9] min(rho A, clip(rho, 1 - 0.2, 1 + 0.2) A) / sum_t [p_t < 0.9];

4. 1e-4 KL (k3) to the initial policy, over the same tokens;
5. 16 updates of a batch (two epochs), at temperature 0.6.

The authors' release begins with the first cut point instead of the prompt (`experience.splitter.base=first-cut`):
tokens before it and completions without one get 0, so that the sum is r - V(first cut). There advantages are
standardised over the tokens that count, log rho is held within 10, and the KL is summed over a completion's tokens.
Here completions of a problem that begin alike, all of them at the prompt, share one V.

V is unbiased, and with segments of a fixed length (`every-tokens`) or up to a separator (`at-separator`) so is the
gradient before the mask. Whether a segment ends before a token depends on that very token where cut points decide, so
that its own baseline knows something of it: the gradient is then biased, which the paper does not say. With a critic
there is nothing to sample: `experience=groups`, `advantages.values=critic-values`, `critic=token-critic`, and
`marked-steps` among the rewards.

`spo-tree` is for long completions. Changes SPO in four places: 1. six continuations of up to 30 tokens from the
prompt, six of each of these and six of each of those, to their end, make a tree (`Tree`); V of a node is the mean of
those below it, a leaf's its reward; 2. each node is a row, its beginning the context, with A = V(node) - V(the one
above); 3. nodes without credit are left out, so that they do not count in the mean (`NodesWithCredit`); 4. at most 32
nodes of a problem are learned from in a step, the others in one of the next eight, with the log-probabilities of then.
The mean above holds the node itself, which shrinks the gradient by (n - 1) / n. The paper's other variant divides by
the deviation of the nodes below the same one (`advantages=over-siblings`).
"""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from etude.advantages.segments import SampledValues, SegmentAdvantage
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.fields import Positive
from etude.core.slots import TokenWeights
from etude.experience.forks import Forks
from etude.methods.rlvr.grpo import grpo
from etude.methods.rlvr.spo.tree import NodesWithCredit, Tree
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference
from etude.rewards.steps import LowProbabilityCuts


class UnsureTokens(TokenWeights):
    """[p < below] / what is left: only tokens that were unlikely enough when they were sampled are learned from.

    p = exp(behaviour_logp). What is left is the share in the loss that these tokens have of the minibatch, so that the
    mean over all tokens becomes the mean over these. Tokens of written rows always count.

    Shapes: behaviour_logp [B, T] -> factors [B, T]; all 0 where no token is left.

    Args:
        below: above 1 all tokens count.

    Two of four tokens are left, so that each weighs twice as much:

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(behaviour_logp=torch.tensor([[0.95, 0.5, 0.8, 0.99]]).log(), shares=torch.full((1, 4), 0.25))
    >>> rows.action_mask, rows.sampled = torch.ones(1, 4).bool(), torch.ones(1).bool()
    >>> UnsureTokens(below=0.9)(rows, TokenLogProbs(torch.zeros(1, 4))).tolist()
    [[0.0, 2.0, 2.0, 0.0]]

    Source: arXiv:2505.23564, section 4.3.
    """

    everywhere: ClassVar[bool] = True
    below: Positive = 0.9

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.shares is not None
        kept = batch.action_mask & ((batch.behaviour_logp < math.log(self.below)) | ~batch.sampled[:, None])
        shares = batch.shares * batch.action_mask
        left = (shares * kept).sum()
        return kept * (shares.sum() / left if left > 0 else 0.0)


spo = grpo.replace(
    id="spo",
    title="Segment Policy Optimization: Effective Segment-Level Credit Assignment in RL for Large Language Models",
    paper="arXiv:2505.23564",
    experience=Forks(
        size=8, temperature=0.6, rollouts=9, splitter=LowProbabilityCuts(below=0.9, every=5, base="prompt")
    ),
    advantages=SegmentAdvantage(values=SampledValues()),
    token_weights=(UnsureTokens(below=0.9),),
    aggregation="token-mean",
    regularizers=(KLToReference(coefficient=1e-4, estimator="k3"),),
    reference=Frozen(),
    epochs=2,
    minibatches=8,
    claim=Claim(
        statement="Of as many generated tokens, eight completions whose segments are credited by four fresh ones each "
        "teach more than GRPO's fifty-two.",
        bed="language/sums-hard",
        baseline="grpo",
        changes={
            "problems": 8,
            "experience.splitter.every": 2,
            "experience.rollouts": 4,
            "experience.temperature": 1.0,
        },
        baseline_changes={"problems": 8, "experience.size": 52, "epochs": 2, "minibatches": 8},
        measures=(
            Measure(name="area"),
            Measure(name="end", role="mechanism"),
            Measure(
                name="mean:sampled_tokens", role="mechanism", direction="equal", smallest=600.0, bounds=(0.0, None)
            ),
        ),
        equal=("steps", "updates"),
        sweep={"optimizer.lr": (1e-4, 2e-4)},
        paper_effect="6 to 12 points over PPO and GRPO on GSM8K",
    ),
)

spo_tree = spo.replace(
    id="spo-tree",
    title=spo.title,
    paper=spo.paper,
    experience=Tree(size=6, deeper=(6, 6), cap=30, temperature=0.6),
    filters=(NodesWithCredit(),),
    problems=16,
)
