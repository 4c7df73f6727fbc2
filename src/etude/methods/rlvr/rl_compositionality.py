"""From f(x) and g(x) to f(g(x)): chaining is learned by reinforcement, from chains (arXiv:2509.25123).

A policy that knows functions one by one is trained on chains of half of them, and asked for chains of the other half,
as long and longer. Here that is the study `etude studies run rl-compositionality` on the task `compose-apart`; this
method is how it learns by reinforcement. Changes GRPO in four places:

1. 16 completions of each of 16 problems, one update;
2. groups whose rewards are all equal are replaced, in up to ten rounds;
3. every token weighs the same;
4. answers near the limit of tokens are punished (`overlong-penalty`, as in the release; the text does not say so).

`rl-compositionality-rft` is its control, iterated rejection fine-tuning: sample, keep what is right, and raise its
likelihood as if it had been given; a round is a step, of `epochs` passes in `minibatches` parts,

    loss = -1/N sum_{i: r_i = 1} sum_t log pi(y_{i,t}),    N = tokens of right completions.

At a round's first update that is the gradient of REINFORCE with rewards of 0 and 1 and no baseline, but for the
denominator: it never lowers what was wrong. The release takes one pass in parts of 128 over rounds of its whole data.

Stage 1, single functions, is what both begin from. `tiny` has it; another model learns it by

    etude train rl-compositionality-rft --task compose-apart --set task.levels=1 --set task.alone=all --model ...

and `etude evaluate RUN --split level6 --k 1 --k 16` asks for longer chains. Functions have one argument here; a fifth
of the paper's have two.
"""

from __future__ import annotations

from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.slots import Filter
from etude.experience.groups import Groups
from etude.filters.informative import InformativeGroups
from etude.methods.rlvr.grpo import grpo
from etude.objectives.supervised import LogLikelihood
from etude.rewards.outcome import OverlongPenalty, TaskReward


class RightCompletions(Filter):
    """Keeps completions whose score is at least `least`; what is kept counts alike (rejection sampling).

    Shapes: scores [B] -> [B].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> RightCompletions().weigh(Rows(scores=torch.tensor([1.0, 0.0, 0.5]))).tolist()
    [1.0, 0.0, 0.0]
    """

    least: float = 1.0

    def weigh(self, batch: TokenBatch) -> Tensor:
        return (batch.scores >= self.least).to(batch.scores.dtype)


rl_compositionality = grpo.replace(
    id="rl-compositionality",
    title="From f(x) and g(x) to f(g(x)): LLMs Learn New Skills in RL by Composing Old Ones",
    paper="arXiv:2509.25123",
    row="analysis",
    experience=Groups(size=16),
    rewards=(TaskReward(), OverlongPenalty()),
    filters=(InformativeGroups(rounds=10),),
    aggregation="token-mean",
    problems=16,
    claim=Claim(
        statement="After reinforcement on chains of two functions, longer chains of others are right more often than "
        "after reinforcement on single functions, and than after rejection fine-tuning on the same chains of two.",
        task="compose-apart",
        setting="five functions chained in training and five in the test; 40 steps of 16 x 16 from the shipped model",
        measures=(
            Measure(name="three functions, against single ones", smallest=0.03),
            Measure(name="three functions, against rejection", smallest=0.03),
            Measure(name="two functions, against single ones", role="mechanism", smallest=0.03),
            Measure(name="four functions, against rejection", role="mechanism", smallest=0.03),
            Measure(name="trained chains, against rejection", role="mechanism", smallest=0.03),
            Measure(name="one function instead of all", role="mechanism", direction="lower", smallest=0.03),
        ),
        learned_on="trained chains, against rejection",
        paper_effect="on chains of three, near zero at the start: about 30 % after RL on chains of two, low single "
        "digits after RFT on the same data; RL on single functions teaches no chains",
    ),
)

rl_compositionality_rft = grpo.replace(
    id="rl-compositionality-rft",
    title=rl_compositionality.title,
    paper=rl_compositionality.paper,
    experience=Groups(size=16),
    filters=(RightCompletions(),),
    advantages=None,
    objective=LogLikelihood(),
    aggregation="token-mean",
    problems=16,
)
