"""Learning from which of two answers is better."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.fields import Interval, Positive
from etude.core.part import Need
from etude.core.rows import last_action
from etude.core.slots import TokenObjective
from etude.objectives.links import logistic
from etude.objectives.pairs import extremes


def compare(
    values: Tensor, scores: Tensor, group: Tensor, number: Tensor | None = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What the best row of each group has more of than the worst one, and whether they differ at all.

    Args:
        values: [B] what is compared.
        scores: [B] which row is better; of equal ones the first is.
        group: [B].
        number: [B] by which rows are told apart that are equally good; None: as they stand.

    Returns: [B] differences and [B] bools, the same on all rows of a group.

    >>> difference, differs = compare(torch.tensor([5.0, 2.0]), torch.tensor([0.0, 1.0]), torch.tensor([0, 0]))
    >>> difference.tolist(), differs.tolist()
    ([-3.0, -3.0], [True, True])
    """
    pairs = extremes(scores, group, number)
    best, worst = pairs.better, pairs.worse
    return (values[best] - values[worst])[pairs.whose], (scores[best] > scores[worst])[pairs.whose]


class DPO(TokenObjective):
    """Direct preference optimisation (arXiv:2305.18290, eq. 7).

        m = (log pi/ref)(y_w | x) - (log pi/ref)(y_l | x)
        loss = -(1 - s) log sigmoid(beta m) - s log sigmoid(-beta m)

    y_w and y_l are the rows of a group with the highest and the lowest score; a group of equals has loss 0. s, the
    label smoothing, is the probability that a pair is the wrong way round (conservative DPO).

    Shapes: returns [B], each group's loss on all its rows, so that the mean over rows is the mean over pairs.

    A policy that is still the reference has a margin of 0 and the loss log 2:

    >>> from types import SimpleNamespace as Rows
    >>> logp, mask = torch.tensor([[-1.0], [-2.0]]), torch.tensor([[True], [True]])
    >>> pair = Rows(reference_logp=logp, action_mask=mask, scores=torch.tensor([1.0, 0.0]), group=torch.tensor([0, 0]))
    >>> pair.episode = None
    >>> [round(x, 4) for x in DPO()(pair, TokenLogProbs(logp)).tolist()]
    [0.6931, 0.6931]
    """

    couples: ClassVar[Literal["row", "group"]] = "group"
    per_row: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({Need.REFERENCE_LOGP})
    beta: Positive = 0.1
    label_smoothing: Annotated[float, Interval(ge=0, lt=0.5)] = 0.0

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        margin, differs = self._margin(batch, policy)
        return torch.where(differs, logistic(margin, self.label_smoothing), 0.0)

    def metrics(self, batch: TokenBatch, policy: TokenLogProbs) -> dict[str, Tensor]:
        """`margin`: beta m, in nats. `preference_accuracy`: pairs whose margin is positive.

        `chosen_reward`, `rejected_reward`: beta log pi/ref of the better and the worse answer, on the rows of a pair.
        """
        margin, _ = self._margin(batch, policy)
        pairs = extremes(batch.scores, batch.group, batch.episode)
        implicit = self.beta * self._log_ratio(batch, policy)
        return {
            "margin": margin, "preference_accuracy": (margin > 0).float(),
            "chosen_reward": implicit[pairs.better][pairs.whose], "rejected_reward": implicit[pairs.worse][pairs.whose],
        }  # fmt: skip

    def _log_ratio(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """[B] log pi/ref of every answer."""
        assert batch.reference_logp is not None
        return ((policy.logp - batch.reference_logp) * batch.action_mask).sum(1)

    def _margin(self, batch: TokenBatch, policy: TokenLogProbs) -> tuple[Tensor, Tensor]:
        margin, differs = compare(self._log_ratio(batch, policy), batch.scores, batch.group, batch.episode)
        return self.beta * margin, differs


class BradleyTerry(TokenObjective):
    """A reward model's likelihood of what was preferred (arXiv:2203.02155, eq. 1).

        loss = -log sigmoid(v(x, y_w) - v(x, y_l))

    v is the value at a row's last action token, which the whole answer but that (end) token leads up to.

    Shapes: returns [B], each group's loss on all its rows.

    >>> from types import SimpleNamespace as Rows
    >>> mask, values = torch.tensor([[True], [True]]), torch.tensor([[3.0], [3.0]])
    >>> pair = Rows(action_mask=mask, scores=torch.tensor([1.0, 0.0]), group=torch.tensor([0, 0]))
    >>> pair.episode = None
    >>> [round(x, 4) for x in BradleyTerry()(pair, TokenLogProbs(values, values=values)).tolist()]
    [0.6931, 0.6931]
    """

    couples: ClassVar[Literal["row", "group"]] = "group"
    per_row: ClassVar[bool] = True
    generates: ClassVar[bool] = False
    needs: ClassVar[frozenset[Need]] = frozenset({Need.VALUES})

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        margin, differs = self._margin(batch, policy)
        return torch.where(differs, -logsigmoid(margin), 0.0)

    def metrics(self, batch: TokenBatch, policy: TokenLogProbs) -> dict[str, Tensor]:
        """`margin`: difference of the scores. `preference_accuracy`: pairs whose margin is positive."""
        margin, _ = self._margin(batch, policy)
        return {"margin": margin, "preference_accuracy": (margin > 0).float()}

    def _margin(self, batch: TokenBatch, policy: TokenLogProbs) -> tuple[Tensor, Tensor]:
        return compare(last_values(batch, policy), batch.scores, batch.group, batch.episode)


def last_values(batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
    """[B] v(x, y): the values at rows' last action tokens, which whole answers but their end tokens lead up to."""
    assert policy.values is not None
    return policy.values.gather(1, last_action(batch)[:, None])[:, 0]
