"""The claim of ipl: preferences over segments alone, against cloning and against IQL with a model of rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experience.preferences import RewardsFromPreferences, ScriptedPreferences
from etude.experiments.swings import MEASURE, MIXED, against_both, compared

ASKED = ScriptedPreferences(pairs=200, length=25)
MODEL = RewardsFromPreferences(hidden=(64, 64), lr=1e-3, updates=1000)
SMALL = {"sampling.pairs": 4, "sampling.length": 16, "critic.backup.low": -98.0, "critic.backup.high": 98.0}
"""Segments for a small task; gamma is 0.98 there."""
BESIDE = f"{MEASURE} beside a model of rewards"


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Returns of all after as many updates, from logs of each seed's own."""
    one: Any = get_method("ipl")
    iql: Any = get_method("iql")
    mine = one.replace(transforms=(ASKED, *one.transforms[1:]))
    modelled = iql.replace(id="iql-of-model", transforms=(ASKED, MODEL))
    settings = {**SMALL, **(arm or {})}
    cloned = compared(seeds, mine, get_method("bc"), MIXED, settings, baseline or {})
    beside = compared(seeds, mine, modelled, MIXED, settings, baseline or {})
    return against_both(cloned, beside, BESIDE)
