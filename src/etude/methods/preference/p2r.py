"""P2R: preferences turned into rewards, so that ordinary reinforcement learning can have them (arXiv:2306.14111).

People say which of two trajectories they like better, Pr(y beats y') = s(r(y) - r(y')) with a link s that is known,
here sigmoid(. / scale). Changes REINFORCE in one place, its reward:

1. for every problem one answer is fixed, y_0, the first that was said;
2. an answer that was not said before is compared with it m times, and with the share o of these that it won it is worth

       x = argmin over |x| <= H of |s(x) - o| = clip(scale log(o / (1 - o)), -H, H),

   which is r(y) - r(y_0) as m grows, and 0 for y_0 itself;
3. an answer that was said before is worth what it was then, and nobody is asked.

Labels are r less a constant of the problem, so what is best stays best, and how many comparisons are made depends on
how many answers there are, not on for how long is trained. This is the class of all utilities; where they are linear in
features most answers need no comparison either: `experiments/preference/p2r.py` has that interface, which asks only
where the utilities that agree with the labels so far differ, UCBVI on top of it, and the other half of the paper,
preferences that come from no utility, whose von Neumann winner two copies of a learner find by Hedge. There they are
tried; they are tables, of random Garnets (no FrozenLake). Rewards of what people compare are here what the parts before
paid, which the policy never sees.

The paper is a theory, without experiments or code. Its optimistic learner that has no rewards at all (P-OMLE) and
comparisons of K trajectories at once are not built. Where the labels so far leave w_hat less room than precision^2 / 4
the interface there takes that much, so that its set of utilities is larger than the paper's: more may be asked than has
to be, never less.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.draws import children, uniforms
from etude.core.fields import Count, Positive
from etude.core.method import Method
from etude.core.slots import Context, GroupReward
from etude.methods.foundation.reinforce import reinforce
from etude.rewards.outcome import TaskReward
from etude.rewards.preferences import written_answers


def label_of(share: float, scale: float, bound: float) -> float:
    """What a trajectory is worth that wins this share: the x in [-bound, bound] of which sigmoid(x / scale) is nearest.

    >>> label_of(0.5, scale=2.0, bound=4.0), round(label_of(0.75, 2.0, 4.0), 4), label_of(0.0, 2.0, 4.0)
    (0.0, 2.1972, -4.0)
    """
    if not 0 < share < 1:
        return bound if share > 0.5 else -bound
    return min(max(scale * math.log(share / (1 - share)), -bound), bound)


class LabelsByComparison(GroupReward):
    """An answer is worth what comparisons with the first one to its problem say; each is compared once, for good.

    Who wins is drawn with the chance sigmoid((r - r_0) / scale), r what the parts before paid, with random numbers of
    the answer's own. Rows that go on in a later step are left as they are.

    Its state is the utility of each problem's first answer, the labels of all that was said since by their tokens, and
    how many were `compared`: it grows with the number of different answers.

    Shapes: [B].

    Args:
        comparisons: m, of each new answer.
        scale: differences of utility are divided by it. bound: H, what no two answers differ by more than.

    >>> from types import SimpleNamespace as Rows
    >>> from etude.core.episodes import Episode, Problem
    >>> rows = Rows(scores=torch.tensor([1.0, 90.0, 1.0]), draw=torch.tensor([5, 6, 7]), once=lambda: None)
    >>> rows.tokens, rows.action_mask = torch.tensor([[3], [4], [4]]), torch.ones(3, 1, dtype=torch.bool)
    >>> rows.finished, rows.episodes = torch.ones(3, dtype=torch.bool), [Episode(Problem("p", "?"), [])] * 3
    >>> part = LabelsByComparison().bind()
    >>> part.rescore_in(rows, None).tolist(), part.state["compared"]
    ([0.0, 1.0, 1.0], 1)
    """

    judges: ClassVar[bool] = True

    comparisons: Count = 100
    scale: Positive = 1.0
    bound: Positive = 1.0

    def objection(self, method: Method) -> str | None:
        return written_answers(method, "who wins")

    def initial_state(self) -> dict[str, Any]:
        return {"first": {}, "labels": {}, "compared": 0}

    def rescore_in(self, batch: TokenBatch, context: Context) -> Tensor:
        if (once := batch.once()) is not None:
            first, whose = once
            return self.rescore_in(batch.rows(first), context)[whose]
        found = batch.scores.tolist()
        for i in batch.finished.nonzero()[:, 0].tolist():
            found[i] = self._label(batch, i)
        return batch.scores.new_tensor(found)

    def _label(self, batch: TokenBatch, row: int) -> float:
        """Of one row, from memory where it was said before."""
        problem, utility = batch.episodes[row].problem.id, float(batch.scores[row])
        said = " ".join(map(str, batch.tokens[row][batch.action_mask[row]].tolist()))
        labels: dict[str, float] = self.state["labels"].setdefault(problem, {})
        if problem not in self.state["first"]:
            self.state["first"][problem], labels[said] = utility, 0.0
        if said not in labels:
            won = self._won(batch, row, utility - self.state["first"][problem])
            labels[said] = label_of(won, self.scale, self.bound)
            self.state["compared"] += 1
        return labels[said]

    def _won(self, batch: TokenBatch, row: int, better_by: float) -> float:
        """The share of comparisons that an answer wins."""
        assert batch.draw is not None
        numbers = uniforms(children(batch.draw[row : row + 1], "compared"), 0, self.comparisons)
        chance = torch.sigmoid(torch.tensor(better_by / self.scale, dtype=numbers.dtype))
        return float((numbers < chance.to(numbers.device)).double().mean())


p2r = reinforce.replace(
    id="p2r",
    title="Is RLHF More Difficult than Standard RL? A Theoretical Perspective",
    paper="arXiv:2306.14111",
    row="theory",
    rewards=(TaskReward(), LabelsByComparison()),
    claim=Claim(
        statement="UCBVI on labels that comparisons of whole trajectories give misses as little as UCBVI that sees "
        "rewards, after comparing a few trajectories at its beginning; and the average of two copies that only hear "
        "who won comes nearer to a von Neumann winner.",
        task="garnet",
        setting="Garnets of 6 states, 3 actions and 8 steps, 3,000 episodes, 1,000 comparisons of a trajectory; what "
        "is missed per episode of the later half. Games of 5 states and 3 steps with drawn preferences between the "
        "last states, 10,000 rounds",
        measures=(
            Measure(name="regret", direction="equal", smallest=0.1, bounds=(0.0, None)),
            Measure(name="compared later", direction="lower", against=0.25, smallest=0.05),
            Measure(name="exploitability", direction="lower", smallest=0.02, bounds=(0.0, None)),
            Measure(name="compared", role="mechanism", against=0.0, minimum=1.0, smallest=1.0, bounds=(0.0, None)),
            Measure(name="regret over all", role="mechanism", direction="equal", smallest=0.1, bounds=(0.0, None)),
        ),
        equal=("episodes",),
        sweep={},
        learned_on="regret",
        paper_effect="a theory: comparisons cost samples of an order that does not grow with the episodes",
    ),
)
