"""The claim of cfpi: a clone that is improved where it acts, against the clone, and against a clone of one normal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experiments.swings import MEASURE, against_both, compared
from etude.policies.control.replay import SquashedPolicy

BESIDE = f"{MEASURE} beside one normal"
PUSHED = (5.0,)
"""The deviation of what chance adds to the controller's torque, which is cut at 2."""


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Returns of all after as many updates, from logs of each seed's own."""
    one: Any = get_method("cfpi")
    clone = one.replace(id="cfpi-clone", planner=None)
    own = one.policy
    single = SquashedPolicy(network=own.network, least=own.least, most=own.most, learning=own.learning)
    cloned = compared(seeds, one, clone, PUSHED, arm or {}, baseline or {})
    beside = compared(seeds, one, one.replace(id="cfpi-single", policy=single), PUSHED, arm or {}, baseline or {})
    return against_both(cloned, beside, BESIDE)
