"""The losses of language agents, written out from their papers."""

from __future__ import annotations

from pinned_shared import paid, standardised, surrogates, token_mean
from pinned_world import World
from torch import Tensor


def supo(w: World) -> Tensor:
    """GRPO's clip of standardised rewards, every token alike; here every completion has an answer."""
    return token_mean(surrogates(w, standardised(paid(w), w)))
