"""What answers took, taken off the reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from etude.core.episodes import Episode
from etude.core.fields import NonNegative
from etude.core.meters import Quantity, total
from etude.core.slots import Context, Reward
from etude.core.worlds import World


class UsePenalty(Reward):
    """-weight times what an episode's answers took, of what environments and tools say (`core/meters.py`).

    Args:
        of: 'cost', 'seconds' (simulated ones) or 'tokens' (of other models).

    >>> from etude.core.episodes import Problem, Segment
    >>> asked = Segment("assistant", "ask", info={"used": [2.0, 0.5, 40]})
    >>> UsePenalty(of="cost", weight=0.2).score([Episode(Problem("1", "?"), [asked, asked])], Context(None, None, None))
    [-0.2]
    """

    judges: ClassVar[bool] = False
    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    of: Quantity = "cost"
    weight: NonNegative = 1.0

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [-self.weight * float(getattr(total(episode), self.of)) for episode in episodes]
