"""Credit for the steps of a completion: what each adds to the value of the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from etude.advantages.returns import rewards_to_go
from etude.core.batches import TokenBatch
from etude.core.part import Need, Part
from etude.core.slots import TokenAdvantages

if TYPE_CHECKING:
    from etude.core.method import Method


class StepValues(Part, abstract=True):
    """What the text before a step is worth: the reward that is still to come."""

    slot = "values"

    def before(self, batch: TokenBatch) -> Tensor:
        """[B, T] at the first token of each step, nan elsewhere and where nobody knows."""
        raise NotImplementedError

    def after(self, batch: TokenBatch) -> Tensor:
        """[B] of the whole row."""
        return torch.zeros_like(batch.scores)

    def returns(self, batch: TokenBatch) -> Tensor | None:
        """What a critic learns [B, T]; None where none is asked."""
        return None


class SampledValues(StepValues):
    """Mean score of completions that the experience sampled from there (`batch.sampled_values`). Shapes: [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> SampledValues().before(Rows(sampled_values=torch.tensor([[0.5, 0.25]]))).tolist()
    [[0.5, 0.25]]
    """

    def objection(self, method: Method) -> str | None:
        experience = method.slots().get("experience")
        if experience is None or experience.probes:
            return None
        return (
            f"reads what texts are worth, and {type(experience).__name__} samples nothing to find out: choose "
            "experience=forks, or values=critic-values with a critic."
        )

    def before(self, batch: TokenBatch) -> Tensor:
        if batch.sampled_values is None:
            return torch.full_like(batch.rewards, torch.nan)
        return batch.sampled_values


class CriticValues(StepValues):
    """The critic's, at the first tokens of the steps that a part marked (`batch.step`). Shapes: [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(values=torch.tensor([[0.5, 0.25, 1.0]]), step=torch.tensor([[-1, 0, 0]]))
    >>> CriticValues().before(rows).tolist()
    [[nan, 0.25, nan]]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.VALUES})

    def objection(self, method: Method) -> str | None:
        if method.slots().get("critic") is None:
            return "reads values that no critic learns: add one (--with token-critic)."
        return unmarked(method)

    def before(self, batch: TokenBatch) -> Tensor:
        assert batch.values is not None and batch.step is not None
        earlier = torch.nn.functional.pad(batch.step[:, :-1], [1, 0], value=-1)
        return torch.where((batch.step >= 0) & (batch.step != earlier), batch.values, torch.nan)

    def after(self, batch: TokenBatch) -> Tensor:
        nothing = torch.zeros_like(batch.scores)
        return nothing if batch.next_values is None else torch.where(batch.truncated, batch.next_values, nothing)

    def returns(self, batch: TokenBatch) -> Tensor | None:
        return rewards_to_go(batch.rewards, batch.action_mask, 1.0)


class SegmentAdvantage(TokenAdvantages):
    """A = V(end of the step) - V(its beginning) + what was paid in between, the same for every token of a step.

    V is the reward that is still to come, undiscounted; behind the last token there is none, unless the environment's
    own limit stopped the row. The sum over the steps is the row's reward less V before the first. Tokens before the
    first step get 0; a step whose value nobody knows is one with the step before.

    Shapes: rewards, V [B, T] -> [B, T].

    Args:
        values: where V comes from.

    Two steps of two tokens, paid 1 at the end; V is 0.5 before the first and 0.75 before the second:

    >>> nan = torch.nan
    >>> rewards, values = torch.tensor([[0.0, 0.0, 0.0, 1.0]]), torch.tensor([[0.5, nan, 0.75, nan]])
    >>> segment_advantages(rewards, values, torch.ones(1, 4).bool(), torch.zeros(1)).tolist()
    [[0.25, 0.25, 0.25, 0.25]]

    Source: arXiv:2505.23564, section 4.2.
    """

    values: StepValues = SampledValues()

    def __call__(self, batch: TokenBatch) -> Tensor:
        return segment_advantages(
            batch.rewards, self.values.before(batch), batch.action_mask & batch.sampled[:, None],
            self.values.after(batch),
        )  # fmt: skip

    def returns(self, batch: TokenBatch) -> Tensor | None:
        return self.values.returns(batch)


def segment_advantages(rewards: Tensor, values: Tensor, mask: Tensor, after: Tensor) -> Tensor:
    """[B, T] advantages of `SegmentAdvantage`.

    Args:
        rewards, mask: [B, T] what tokens were paid, and True on those that get credit.
        values: [B, T] V of the text before a step's first token; nan on other tokens.
        after: [B] V of what follows the row.
    """
    paid = rewards.cumsum(1)
    known = mask & ~values.isnan()
    worth = paid - rewards + values.nan_to_num(0.0)
    worth = torch.cat([worth, (paid[:, -1] + after)[:, None]], 1)  # behind the last token
    count = rewards.shape[1]
    place = torch.arange(count, device=rewards.device).expand_as(rewards)
    begin = torch.where(known, place, -1).cummax(1).values
    later = torch.where(known, place, count).flip(1).cummin(1).values.flip(1)
    end = torch.nn.functional.pad(later[:, 1:], [0, 1], value=count)
    found = worth.gather(1, end) - worth.gather(1, begin.clamp(min=0))
    return torch.where(mask & (begin >= 0), found, 0.0)


def unmarked(method: Method) -> str | None:
    """The objection of what reads steps to a method in which no part says where they begin."""
    if any(part.slot == "splitter" for part in method.parts().values()):
        return None
    return "reads steps, and no part says where they begin: add marked-steps to the rewards."
