"""The claim of KTO: answers that are good or bad each for itself, against DPO on the same answers in pairs.

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
    """Accuracy after as many steps on the same answers, labelled, or compared."""
    return duel(seeds, {"kto": arm, "dpo": baseline})
