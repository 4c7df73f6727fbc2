"""The claim of bc: Cloning on narrow logs, against TD3 on the same ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experience.logged import Logged
from etude.experiments.swings import NARROW, compared


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Returns of both after as many updates, from logs of each seed's own."""
    one: Any = get_method("bc")
    other: Any = get_method("td3").replace(experience=Logged(), exploration=None)
    return compared(seeds, one, other, NARROW, arm or {}, baseline or {})
