"""The claim of ss-orl: few actions known, against TD3+BC on those rows alone, and on all with every action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experiments.swings import MEASURE, MIXED, against_both, compared
from etude.methods.offline.ss_orl.labels import HideActions, KnownActions, LabelActions

MODEL = LabelActions(hidden=(128, 128), lr=1e-3, updates=500)
BESIDE = f"{MEASURE} beside all actions"


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Returns of all after as many updates, from logs of each seed's own."""
    one: Any = get_method("ss-orl")
    other: Any = get_method("td3-bc")
    hidden, (_, standard) = HideActions(), one.transforms
    labelled = one.replace(transforms=(hidden, MODEL, standard))
    alone = other.replace(id="td3-bc-labelled", transforms=(hidden, KnownActions(), standard))
    first = compared(seeds, labelled, alone, MIXED, arm or {}, baseline or {})
    second = compared(seeds, labelled, other, MIXED, arm or {}, baseline or {})
    return against_both(first, second, BESIDE)
