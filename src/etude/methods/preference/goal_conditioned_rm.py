"""Goal-conditioned reward model: states on the way to a preferred answer resemble where it ends (arXiv:2407.13887).

Changes the reward model in one place: beside the likelihood of the preference, the last hidden states h are learned
contrastively. Of each pair m = 16 sources and m goals are drawn, a source never behind the goal drawn with it:

    P    mean of sigmoid(cos(h_source, h_goal)) over all m x m, both on the preferred answer
    N    the same with m sources on the preferred answer and m goals anywhere on the other one
    L = -log sigmoid(v(x, y_w) - v(x, y_l)) + beta (-log P - log(1 - N)),   beta = 0.5

so that cos(h_t, g) says of the beginning of an answer how likely it comes to a goal g, a mean of states at the ends of
preferred answers. What that is good for are searches by a policy of the same tokens (planners/goals.py):

    etude evaluate RUN --search filtered-vote:16,guide.scored_by.model=SCORER,threshold=0.3
    etude evaluate RUN --search beam:4,guide=goal-likeness,guide.scored_by.model=SCORER

the first leaves off answers on the way as soon as they look lost and votes over the rest, the second goes step by step
towards the goal. beta = 0 is the plain reward model.

Here P and N are of each pair; the released code takes them of all pairs of a device's batch together, so that the loss
depends on how a batch is cut. It also has a reward head of two layers on detached states, which is left out. State t is
the one that predicts token t of an answer, so the last one is what the answer without its end token leads up to.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.draws import children, uniforms
from etude.core.fields import Count, NonNegative
from etude.core.part import Need
from etude.methods.preference.reward_model import reward_model
from etude.objectives.pairs import extremes
from etude.objectives.preference import BradleyTerry


class GoalContrast(BradleyTerry):
    """Bradley and Terry's likelihood of a preference, and beta times the contrast of states (arXiv:2407.13887).

        loss = -log sigmoid(v(x, y_w) - v(x, y_l)) + beta (-log P - log(1 - N))

    P is the mean of sigmoid(cos(h_s, h_g)) over all sources and goals on the preferred answer, N that of sources on the
    preferred and goals on the other. Cosines of 0 make the contrast 2 log 2; it is at least -2 log sigmoid(1) = 0.6265.

    Shapes: returns [B], each group's loss on all its rows; states [B, T, H].

    Args:
        beta: of the contrast.
        states: m, sources and goals of each kind.
        mean_goal: whether the goals' mean state is taken in place of each.

    >>> from types import SimpleNamespace as Rows
    >>> mask, values = torch.ones(2, 1, dtype=torch.bool), torch.tensor([[3.0], [3.0]])
    >>> pair = Rows(action_mask=mask, scores=torch.tensor([1.0, 0.0]), group=torch.tensor([0, 0]), episode=None)
    >>> said = TokenLogProbs(values, values=values, hidden=torch.tensor([[[2.0, 0.0]], [[-1.0, 0.0]]]))
    >>> [round(x, 4) for x in GoalContrast(beta=1.0).bind()(pair, said).tolist()]  # log 2 + 0.6265
    [1.3197, 1.3197]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.VALUES, Need.HIDDEN})
    beta: NonNegative = 0.5
    states: Count = 16
    mean_goal: bool = False

    def initial_state(self) -> dict[str, Any]:
        return {"steps": 0}

    def after_update(self, batch: TokenBatch) -> None:
        self.state["steps"] += 1  # other states the next time

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        _, differs = self._margin(batch, policy)
        contrast = torch.where(differs, self.contrast(batch, policy), 0.0)
        return super().__call__(batch, policy) + self.beta * contrast

    def metrics(self, batch: TokenBatch, policy: TokenLogProbs) -> dict[str, Tensor]:
        """As `bradley-terry`, and `contrast`: -log P - log(1 - N) of each pair."""
        return {**super().metrics(batch, policy), "contrast": self.contrast(batch, policy)}

    def contrast(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """[B] -log P - log(1 - N), the same on all rows of a group."""
        assert policy.hidden is not None
        pairs, m = extremes(batch.scores, batch.group, batch.episode), self.states
        drawn = uniforms(children(batch.group[pairs.better], "goals", self.state["steps"]), 0, 4 * m).T
        two = drawn[:, : 2 * m].unflatten(1, (2, m))
        source, goal = two.amin(1), two.amax(1)
        near = self._likeness(batch, policy.hidden, (pairs.better, source), (pairs.better, goal))
        far = self._likeness(
            batch, policy.hidden, (pairs.better, drawn[:, 2 * m : 3 * m]), (pairs.worse, drawn[:, 3 * m :])
        )
        return (-near.log() - torch.log1p(-far))[pairs.whose]

    def _likeness(
        self, batch: TokenBatch, hidden: Tensor, source: tuple[Tensor, Tensor], goal: tuple[Tensor, Tensor]
    ) -> Tensor:
        """[N] mean of sigmoid(cos) between states at shares [N, m] of the answers in rows [N]."""
        one, other = (states_at(batch, hidden, *which) for which in (source, goal))
        other = other.mean(1, keepdim=True) if self.mean_goal else other
        cosines = normalize(one, dim=-1) @ normalize(other, dim=-1).transpose(1, 2)
        return cosines.sigmoid().mean((1, 2))


def states_at(batch: TokenBatch, hidden: Tensor, rows: Tensor, share: Tensor) -> Tensor:
    """[N, m, H] of the rows [N] the states [B, T, H] at shares [N, m] in [0, 1) of their action tokens.

    >>> from types import SimpleNamespace as Rows
    >>> batch, hidden = Rows(action_mask=torch.tensor([[False, True, True]])), torch.tensor([[[7.0], [1.0], [2.0]]])
    >>> states_at(batch, hidden, torch.tensor([0]), torch.tensor([[0.0, 0.49, 0.5, 0.99]])).flatten().tolist()
    [1.0, 1.0, 2.0, 2.0]
    """
    mask = batch.action_mask[rows]
    places = (~mask).long().argsort(dim=1, stable=True)  # action tokens first, in their order
    chosen = places.gather(1, (share * mask.sum(1, keepdim=True)).long())
    return hidden[rows[:, None], chosen]


goal_conditioned_rm = reward_model.replace(
    id="goal-conditioned-rm",
    title="Learning Goal-Conditioned Representations for Language Reward Models",
    paper="arXiv:2407.13887",
    objective=GoalContrast(),
    problems=64,
    claim=Claim(
        statement="From the same pairs of right and spoilt solutions a goal-conditioned reward model tells right from "
        "wrong answers better than a plain one, at their end and half way, and leaving off answers that look lost "
        "saves tokens in a vote.",
        task="sums",
        setting="4,000 sums of four numbers up to 9, of whose running totals one is wrong; 250 steps of 64 pairs from "
        "the shipped model; 16 samples to each of 200 problems by a policy that is right in about six of ten; answers "
        "are left off below what a tenth of the right ones to 100 other problems come to",
        measures=(
            Measure(name="auroc", smallest=0.02),
            Measure(name="auroc half way", smallest=0.02),
            Measure(name="tokens", direction="lower", smallest=5.0, bounds=(0.0, None)),
            Measure(name="auroc at a quarter", role="mechanism", smallest=0.02),
            Measure(name="auroc at three quarters", role="mechanism", smallest=0.02),
            Measure(name="vote", role="mechanism", margin=-0.02, smallest=0.02),
        ),
        sweep={"optimizer.lr": (3e-4, 1e-3)},
        learned_on="auroc",
        paper_effect="AUROC up to 0.09 higher on MATH and GSM8k, 2.3 % more on Helpful-Harmless; up to 55 % of the "
        "tokens filtered; steering: 9.6 % more helpful, 21.6 % more complex",
    ),
)
