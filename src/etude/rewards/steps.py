"""Where the steps of completions begin: one answer for those who sample from there, pay, give credit or weigh."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.errors import ConfigError
from etude.core.fields import Count, Fraction
from etude.core.part import Part
from etude.core.slots import Context, TokenReward

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from etude.core.method import Method


class Splitter(Part, abstract=True):
    """Says of each token of a completion which step it belongs to."""

    slot = "splitter"

    def begins(self, batch: TokenBatch, tokenizer: PreTrainedTokenizerBase) -> Tensor:
        """[B, T] True on action tokens that begin a step. What is said before the first of them is in none."""
        raise NotImplementedError

    def step(self, batch: TokenBatch, tokenizer: PreTrainedTokenizerBase) -> Tensor:
        """[B, T] number of the step that each token belongs to, from 0 on through all turns; -1 outside."""
        number = (self.begins(batch, tokenizer) & batch.action_mask).long().cumsum(1) - 1
        return torch.where(batch.action_mask, number, -1)


class AtSeparator(Splitter):
    """A step ends with a token that holds the separator; every turn begins one.

    Shapes: tokens [B, T] -> [B, T].

    Raises: ConfigError for a separator that no single token holds.

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(tokens=torch.tensor([[97, 44, 98, 99]]), action_mask=torch.ones(1, 4).bool())
    >>> class Letters:
    ...     def __len__(self): return 128
    ...     def decode(self, ids): return "".join(map(chr, ids))
    >>> AtSeparator(separator=",").step(rows, Letters()).tolist()
    [[0, 0, 1, 1]]
    """

    separator: str = ","

    def check(self) -> None:
        if not self.separator:
            raise ConfigError("AtSeparator.separator must be the text that ends a step, got none.")

    def begins(self, batch: TokenBatch, tokenizer: PreTrainedTokenizerBase) -> Tensor:
        held = holding(self.separator, tokenizer).to(batch.tokens.device)
        if not held.any():
            raise ConfigError(
                f"AtSeparator.separator {self.separator!r} is in no single token of this model, so that no step would "
                "end: give a text that one token holds, as ','."
            )
        return turn_begins(batch) | before(batch.action_mask & held[batch.tokens])


class EveryTokens(Splitter):
    """Steps of so many tokens, the last of a turn perhaps fewer; every turn begins one. Shapes: [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> EveryTokens(length=2).step(Rows(action_mask=torch.tensor([[0, 1, 1, 1, 0, 1]]).bool()), None).tolist()
    [[-1, 0, 0, 1, -1, 2]]
    """

    length: Count = 16

    def begins(self, batch: TokenBatch, tokenizer: PreTrainedTokenizerBase) -> Tensor:
        place, first = batch.action_mask.long().cumsum(1) - 1, turn_begins(batch)
        inside = place - torch.where(first, place, 0).cummax(1).values
        return batch.action_mask & (inside % self.length == 0)


class LowProbabilityCuts(Splitter):
    """A step begins right before every so manieth token that was unlikely (SPO, arXiv:2505.23564, section 4.1).

    Cut points are the tokens whose probability was below `below` when they were sampled.

    Shapes: behaviour_logp [B, T] -> [B, T].

    Args:
        every: cut points from one step to the next.
        base: 'prompt': the first step begins with the completion, the next at cut point number `every`, and so on.
            'first-cut', as in the authors' release: at the first cut point, then at every so manieth after it; tokens
            before the first are in no step, nor is a completion without any.

    Four tokens, of which the second, third and fourth were unlikely:

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(behaviour_logp=torch.tensor([[1.0, 0.5, 0.5, 0.5]]).log(), action_mask=torch.ones(1, 4).bool())
    >>> [LowProbabilityCuts(every=2, base=b).step(rows, None).tolist() for b in ("prompt", "first-cut")]
    [[[0, 0, 1, 1]], [[-1, 0, 0, 1]]]
    """

    below: Fraction = 0.9
    every: Count = 5
    base: Literal["prompt", "first-cut"] = "prompt"

    def begins(self, batch: TokenBatch, tokenizer: PreTrainedTokenizerBase) -> Tensor:
        cut = batch.action_mask & (batch.behaviour_logp < math.log(self.below))
        number = cut.long().cumsum(1)
        if self.base == "first-cut":
            return cut & ((number - 1) % self.every == 0)
        first = batch.action_mask & (batch.action_mask.long().cumsum(1) == 1)
        return first | (cut & (number % self.every == 0))


class MarkedSteps(TokenReward):
    """Pays nothing, and says where steps begin: `batch.step`, for parts that read it. Shapes: [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> MarkedSteps(splitter=EveryTokens(length=8)).shape(Rows(rewards=torch.ones(1, 2))).tolist()
    [[0.0, 0.0]]
    """

    judges: ClassVar[bool] = False
    splitter: Splitter = AtSeparator()

    def objection(self, method: Method) -> str | None:
        return several_splitters(method)

    def marked(self, batch: TokenBatch, context: Context) -> TokenBatch:
        return batch.replace(step=self.splitter.step(batch, context.policy.tokenizer))

    def shape(self, batch: TokenBatch) -> Tensor:
        return torch.zeros_like(batch.rewards)


def several_splitters(method: Method) -> str | None:
    """The objection of what says where steps begin to a method in which another part says so, too."""
    paths = [path for path, part in method.parts().items() if isinstance(part, Splitter)]
    if len(paths) < 2:
        return None
    return f"says where steps begin, and {' and '.join(paths)} do so at once: keep one of them."


def turn_begins(batch: TokenBatch) -> Tensor:
    """[B, T] True on the first action token of every turn."""
    return batch.action_mask & ~torch.nn.functional.pad(batch.action_mask[:, :-1], [1, 0])


def before(ends: Tensor) -> Tensor:
    """[B, T] True where `ends` [B, T] is at the token before."""
    return torch.nn.functional.pad(ends[:, :-1], [1, 0])


def step_ends(step: Tensor) -> Tensor:
    """[B, T] True on the tokens that end a step, of which `step` has the numbers."""
    return (step >= 0) & (step != torch.nn.functional.pad(step[:, 1:], [0, 1], value=-1))


@lru_cache(maxsize=4)
def holding(separator: str, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """[V] which tokens hold the separator."""
    return torch.tensor([separator in tokenizer.decode([i]) for i in range(len(tokenizer))])
