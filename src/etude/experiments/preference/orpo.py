"""The claim of ORPO: imitation with a comparison in it, against imitation alone, on the same pairs.

Starts and pairs are those of the claim of DPO: the starting model's own answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.evaluation.pairs import Pair
from etude.experiments.preference.dpo import duel


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Accuracy after as many steps on the same pairs, with the comparison, or without."""
    return duel(seeds, {"orpo": arm, "sft": baseline})
