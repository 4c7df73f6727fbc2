"""DUMP: a bandit over kinds of problems that follows where advantages are large (arXiv:2504.09710).

Changes GRPO in one place, and adds a KL term: which problems come next. Problems are of kinds d (`Problem.level`: a
source, a difficulty). With L_d the mean |A| of the last 300 completions of a kind, and n_d how many there were,

    UCB_d = L_d + sqrt(2 ln(n + 1) / (n_d + 1)),    P(d) = softmax(UCB / tau),    n = sum_d n_d,

every problem of a step is of a kind drawn from P, and drawn uniformly from those. What is solved always or never has
no advantage, so the bandit stays at the edge of what can be learned.

|A| is of rewards minus their mean: E|A| = 2 p (1 - p) at a rate of success p. `curriculum.credit.scale=group-std`
divides by the group's deviation, E|A| = 2 sqrt(p (1 - p)): flatter, 0.6 at p = 0.1 where the edge has 1, instead of
0.18 where it has 0.5. The released code takes rewards of validations in place of advantages of training: that is not an
option here. Metrics say how many problems of a step were of each kind (`draws/KIND`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from etude.advantages.group import GroupAdvantage, GroupMean
from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.episodes import Problem
from etude.core.fields import Count, NonNegative, Positive
from etude.core.slots import Curriculum
from etude.core.streams import Stream
from etude.methods.rlvr.grpo import grpo
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference


class LearnabilityBandit(Curriculum):
    """Draws a kind of problem by softmax(UCB / tau), then one of its problems (arXiv:2504.09710, algorithm 1).

    Shapes: learns from scores and group [B] of every scored batch, and keeps the last `window` |A| of each kind.

    Args:
        size: how many of the pool's problems are drawn from.
        window: completions of a kind that L_d is the mean of.
        tau: temperature of the choice.
        bonus: factor on the exploration term; 0 goes by L_d alone.
        credit: whose |A| is kept, whatever the method's own advantages are.

    >>> part = LearnabilityBandit(tau=0.5).bind()
    >>> part.notice("easy", [0.0] * 8), part.notice("edge", [0.5] * 8)
    (None, None)
    >>> [round(float(p), 3) for p in part.chances(["easy", "edge"])]
    [0.269, 0.731]
    """

    size: Count = 2000
    window: Count = 300
    tau: Positive = 0.1
    bonus: NonNegative = 1.0
    credit: GroupAdvantage = GroupAdvantage(centre=GroupMean(), scale=None)

    def initial_state(self) -> dict[str, Any]:
        return {"seen": {}, "count": {}}

    def before_update(self, batch: TokenBatch) -> None:
        worth, own = self.credit.of_scores(batch, batch.scores).abs().tolist(), batch.sampled.tolist()
        kinds: dict[str, list[float]] = {}
        for episode, size, sampled in zip(batch.episodes, worth, own):
            if sampled:
                kinds.setdefault(episode.problem.level, []).append(size)
        for kind, found in kinds.items():
            self.notice(kind, found)

    def notice(self, kind: str, sizes: Sequence[float]) -> None:
        """Take in |A| of completions of a kind."""
        self.state["seen"][kind] = [*self.state["seen"].get(kind, []), *sizes][-self.window :]
        self.state["count"][kind] = self.state["count"].get(kind, 0) + len(sizes)

    def learnability(self, kind: str) -> float:
        """L_d: the mean |A| that was seen lately, 0 before the first."""
        seen = self.state["seen"].get(kind, [])
        return sum(seen) / len(seen) if seen else 0.0

    def chances(self, kinds: Sequence[str]) -> np.ndarray:
        """P(d) [K] of these kinds."""
        drawn = np.array([self.state["count"].get(kind, 0) for kind in kinds], float)
        explore = self.bonus * np.sqrt(2 * np.log(drawn.sum() + 1) / (drawn + 1))
        score = (np.array([self.learnability(kind) for kind in kinds]) + explore) / self.tau
        weight = np.exp(score - score.max())
        return np.asarray(weight / weight.sum())

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        kinds = self._kinds(pool)
        names, random = sorted(kinds), stream.numpy
        drawn = random.choice(len(names), count, p=self.chances(names))
        self.made.setdefault("draws", Counter()).update(names[d] for d in drawn)
        return [(own := kinds[names[d]])[random.integers(len(own))] for d in drawn]

    def counts(self) -> Mapping[str, int]:
        return {f"draws/{kind}": number for kind, number in self.made.pop("draws", {}).items() if kind}

    def _kinds(self, pool: Sequence[Problem]) -> dict[str, list[Problem]]:
        """The problems that are drawn from by their kind, read once."""
        if self.made.get("pool") is not pool:
            found: dict[str, list[Problem]] = {}
            for problem in (pool[i] for i in range(min(self.size, len(pool)))):
                found.setdefault(problem.level, []).append(problem)
            self.made.update(pool=pool, kinds=found)
        kinds: dict[str, list[Problem]] = self.made["kinds"]
        return kinds


dump = grpo.replace(
    id="dump",
    title="DUMP: Automated Distribution-Level Curriculum Learning for RL-based LLM Post-training",
    paper="arXiv:2504.09710",
    curriculum=LearnabilityBandit(),
    regularizers=(KLToReference(coefficient=0.001),),
    reference=Frozen(),
    claim=Claim(
        statement="A bandit that draws kinds of problems by how large their advantages were learns a mix of kinds "
        "faster than drawing all alike.",
        bed="language/sums-mixed",
        baseline="grpo",
        changes={"minibatches": 4},
        baseline_changes={"minibatches": 4, "regularizers": "kl-to-reference", "regularizers.0.coefficient": 0.001},
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps", "completions"),
        sweep={"optimizer.lr": (1e-4, 2e-4)},
        paper_effect="Faster and higher on Knights and Knaves of 3 to 14 people (figures without numbers).",
    ),
)
