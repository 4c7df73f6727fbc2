"""The claim of offline-rl-vlm-f: rewards from compared states, against cloning and against IQL with true rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experience.preferences import RewardsFromPreferences, ScriptedPreferences
from etude.experiments.offline.iql import TEMPERED
from etude.experiments.swings import MEASURE, MIXED, against_both, compared

ASKED = ScriptedPreferences(pairs=500, length=1, wrong=0.1)
MODEL = RewardsFromPreferences(actions=False, hidden=(64, 64), lr=1e-3, updates=1000)
BESIDE = f"{MEASURE} beside true rewards"


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Returns of all after as many updates, from logs of each seed's own."""
    one: Any = get_method("offline-rl-vlm-f")
    mine = one.replace(transforms=(ASKED, MODEL))
    cloned = compared(seeds, mine, get_method("bc"), MIXED, arm or {}, baseline or {})
    beside = compared(seeds, mine, get_method("iql"), MIXED, arm or {}, {**TEMPERED, **(baseline or {})})
    return against_both(cloned, beside, BESIDE)
