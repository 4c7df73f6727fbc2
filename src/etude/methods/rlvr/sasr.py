"""SASR: each step imitates or explores, by how far the policy is from what was shown (arXiv:2505.13026).

Changes GRPO in two places:

1. a warm-up of supervised steps comes first, W = 0.3 of all; then each step is a supervised one with probability

       p_s = G_sft / (G_sft + gamma G_warm),

   else one of GRPO. G_sft is the norm of the gradient of the last supervised step, before it is clipped, and G_warm its
   mean over the last 10 of the warm-up, with which G_sft begins (`GradientNormChance`). The gradient of the supervised
   loss is that of KL(data || pi): far from the data the norm is large, and the policy imitates;
2. 0.04 KL (k3) to the policy as it is after the warm-up.

One optimizer takes all steps. The exact form of p_s, gamma and W could not be confirmed: there is no official code, so
constant (`stages.1.chooser.chance=constant-chance`), switched (`stages.1.chooser=after-steps`) and falling chances
(`stages.1.chooser.chance=cosine-chance`) stand beside it. The paper averages supervised tokens over each answer, here
as in `sft` over all of a step's answers. With several minibatches G_sft is the mean of their norms. Not built: norms of
a probe batch without a step, and the diagnostic that splits sampled tokens at the median advantage into those that are
made likelier and those that are made unlikelier.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etude.core.claims import Claim, Measure
from etude.core.fields import Count, NonNegative
from etude.methods.rlvr.grpo import grpo
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference
from etude.stages.phases import Phase
from etude.stages.turns import ByChance, Chance, Interleaved, Like


class GradientNormChance(Chance):
    """p = G / (G + gamma G_warm), from the norms of the other method's gradients.

    G is that of its last step, G_warm the mean over its last `window` steps before the stage. As the stage begins G is
    G_warm. Where there were no such steps p is 1 until the first, whose norm is G_warm. Where both are 0, p is 0.

    Args:
        gamma: 0 makes every step the other method's.
        window: steps that G_warm is the mean of.

    After a warm-up with norms of 2 and 4 a step has one of 1:

    >>> part = GradientNormChance(gamma=1.0).bind()
    >>> for norm in (2.0, 4.0):
    ...     part.told(True, {"gradient_norm": norm})
    >>> begun = part.at(0, 10)
    >>> part.told(True, {"gradient_norm": 1.0})
    >>> begun, part.at(1, 10)
    (0.5, 0.25)
    """

    gamma: NonNegative = 1.0
    window: Count = 10

    def initial_state(self) -> dict[str, Any]:
        return {"norms": [], "warm": None, "now": None}

    def at(self, taken: int, count: int) -> float:
        norms = self.state["norms"]
        if self.state["warm"] is None:
            if not norms:
                return 1.0
            self.state["warm"] = self.state["now"] = sum(norms) / len(norms)
        now: float = self.state["now"]
        far = now + self.gamma * self.state["warm"]
        return now / far if far else 0.0

    def told(self, other: bool, metrics: Mapping[str, float]) -> None:
        if not other or "gradient_norm" not in metrics:
            return
        self.state["now"] = metrics["gradient_norm"]
        if self.state["warm"] is None:
            self.state["norms"] = [*self.state["norms"], metrics["gradient_norm"]][-self.window :]


sasr = grpo.replace(
    id="sasr",
    title="Step-wise Adaptive Integration of Supervised Fine-tuning and Reinforcement Learning for Task-Specific LLMs",
    paper="arXiv:2505.13026",
    stages=(
        Phase(like="sft", end=0.3),
        Interleaved(turn=Like(id="sft"), chooser=ByChance(chance=GradientNormChance()), reference="reset"),
    ),
    regularizers=(KLToReference(coefficient=0.04),),
    reference=Frozen(),
    claim=Claim(
        statement="Choosing between imitation and exploration by the norm of the supervised gradient learns more than "
        "imitating for the first half of the steps after the same warm-up.",
        bed="language/sums-hard",
        baseline="sasr",
        changes={"minibatches": 4},
        baseline_changes={"minibatches": 4, "stages.1.chooser": "after-steps", "stages.1.chooser.steps": 35},
        measures=(
            Measure(name="area"),
            Measure(name="end", role="mechanism"),
            Measure(name="mean:other", role="mechanism", minimum=0.2),
        ),
        equal=("steps",),
        sweep={"optimizer.lr": (1e-4, 2e-4)},
        paper_effect="better than supervised, reinforced and fixed mixtures (the abstract names no number)",
    ),
)
