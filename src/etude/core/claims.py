"""What a paper says, made small enough to check here: a claim and its measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from etude.core.errors import ConfigError

Direction = Literal["higher", "lower", "equal"]
Role = Literal["core", "mechanism"]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Something that is measured on both arms of a claim.

    Args:
        name: what the runs call it: 'pass@1', 'auc', 'return', 'entropy'.
        role: 'core' measures decide the claim; 'mechanism' measures are shown beside them.
        direction: where the claim sees the method, against its baseline: 'higher', 'lower', or 'equal'.
        smallest: the smallest difference that matters, in the measure's units; None: a tenth of what the baseline
            gains, at least 0.01.
        margin: the difference that the claim names, in its direction; below 0 for "not worse by more than".
        against: a number that the method is held against instead of its baseline.
        minimum: what the method's mean must reach, else its mechanism did not happen; of 'mechanism' measures.
        rests_on: measures without which this one says nothing: it is void where one of them was not held.
        bounds: floor and ceiling; None where there is none.
    """

    name: str
    role: Role = "core"
    direction: Direction = "higher"
    smallest: float | None = None
    margin: float = 0.0
    against: float | None = None
    minimum: float | None = None
    rests_on: tuple[str, ...] = ()
    bounds: tuple[float | None, float | None] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if self.smallest is not None and not self.smallest > 0:
            raise ConfigError(f"Measure {self.name}: smallest must be above 0, got {self.smallest}.")
        if self.minimum is not None and self.role != "mechanism":
            raise ConfigError(f"Measure {self.name}: only a measure with role 'mechanism' has a minimum.")
        if self.direction == "equal" and self.margin:
            raise ConfigError(f"Measure {self.name}: what is claimed to be equal has no margin; give `smallest`.")
