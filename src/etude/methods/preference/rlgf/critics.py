"""Two critics, one for each model that may finish a completion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from etude.core.batches import TokenBatch
from etude.learners.value_model import Valued, ValueModel
from etude.methods.preference.rlgf.guided import BY_GUIDE

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy


class RollOutCritics(ValueModel):
    """As `value-model`, twice: one of what the policy goes on to, and one of what the guide goes on to.

    A completion is valued, and its returns are learned, by the critic of who finished it; the other one rests.

    Shapes: values, returns [B, T] -> [B, T].

    >>> RollOutCritics(clip=0.2).clip
    0.2
    """

    def build(self, policy: LanguagePolicy) -> Valued:
        return RollOutValued(policy, self.model)


class RollOutValued(Valued):
    """Two networks, of which each row asks one."""

    def __init__(self, policy: LanguagePolicy, name: str = "") -> None:
        super().__init__(policy, name)
        self.guides = Valued(policy, name)

    def values(self, batch: TokenBatch) -> Tensor:
        guided = torch.tensor([BY_GUIDE in e.info for e in batch.episodes], device=batch.tokens.device)
        if not guided.any():
            return super().values(batch)
        if guided.all():
            return self.guides.values(batch)
        ours, theirs = (~guided).nonzero()[:, 0], guided.nonzero()[:, 0]
        found = torch.cat([super().values(batch.rows(ours)), self.guides.values(batch.rows(theirs))])
        return found[torch.cat([ours, theirs]).argsort()]

    def parameters(self) -> list[nn.Parameter]:
        return [*super().parameters(), *self.guides.parameters()]

    def updated(self) -> None:
        super().updated()
        self.guides.updated()

    def tensors(self) -> dict[str, Tensor]:
        return {**super().tensors(), **{f"guides.{k}": v for k, v in self.guides.tensors().items()}}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        guides = {k.removeprefix("guides."): v for k, v in tensors.items() if k.startswith("guides.")}
        super().load_tensors({k: v for k, v in tensors.items() if not k.startswith("guides.")})
        self.guides.load_tensors(guides)
