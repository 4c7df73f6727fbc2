"""The bfloat16 copy of a policy that decodes, and invariant 2: it holds the weights of the version that it claims."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from etude.core.errors import InvariantError
from etude.policies.fingerprint import fingerprint
from etude.policies.loading import move
from etude.policies.weights import Weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Shadow:
    """A copy of a policy's weights in bfloat16, made when it is first asked for.

    Args:
        weights: of the policy, which are copied.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.model: PreTrainedModel | None = None
        self.held: tuple[int, int] | None = None  # version and loads of what it holds
        self._mark: tuple[object, tuple[float, ...]] = (None, ())

    def at(self, version: tuple[int, int], refresh: Callable[[], None]) -> PreTrainedModel:
        """The copy, of this version: `refresh` is asked to bring it there if it is another's."""
        if self.model is None:
            with torch.inference_mode(False):  # first asked for while sampling, but written to outside it
                self.model = copy.deepcopy(self.weights.merged()).eval()
                move(self.model, dtype=torch.bfloat16)
        if self.held != version:
            refresh()
        return self.model

    @torch.no_grad()
    def refresh(self, version: tuple[int, int]) -> None:
        """Copy the trained weights, and remember their fingerprint."""
        assert self.model is not None
        merged = self.weights.merged()
        for mine, theirs in zip(self.model.parameters(), merged.parameters(), strict=True):
            mine.copy_(theirs)
        self.held = version
        self._mark = self._key(torch.bfloat16), fingerprint(merged.parameters(), torch.bfloat16)

    def check(self, sampler: PreTrainedModel, version: int) -> None:
        """Raise InvariantError unless the sampler carries the fingerprint of the trained weights."""
        if fingerprint(sampler.parameters()) != self._wanted(next(sampler.parameters()).dtype):
            raise InvariantError(
                f"The sampler does not hold the weights of version {version}: it would sample from an older "
                "policy than the one being trained. Nothing was updated; resume from the last checkpoint."
            )

    def _wanted(self, dtype: torch.dtype) -> tuple[float, ...]:
        """The fingerprint of this version's weights in the sampler's dtype; adapters are merged once for it."""
        if self._mark[0] != (key := self._key(dtype)):
            self._mark = key, fingerprint(self.weights.merged().parameters(), dtype)
        return self._mark[1]

    def _key(self, dtype: torch.dtype) -> object:
        return dtype, self.weights.mark()
