"""What evaluations in the middle of training found: what is logged of each, and which was the best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from etude.runtime.callbacks import flat

INTERVALS = "intervals"
"""What a line of `evaluations.jsonl` has beside its step and its splits."""


class Look(NamedTuple):
    """What an evaluation in the middle of training measured, on the first split that is evaluated.

    Args:
        means: {split: {metric: mean over problems, or a list over members}}.
        ends: of 95% intervals over problems or members, {metric: [low, high]}.
        found: all of it, for an evaluation of the same policy.
    """

    means: Mapping[str, Mapping[str, Any]]
    ends: Mapping[str, Sequence[float | None]] = {}
    found: Any = None

    def line(self, step: int, added: Mapping[str, float]) -> dict[str, Any]:
        """What is logged of it; `added` by callbacks."""
        rest = {"callbacks": added} if added else {}
        return {"step": step, **self.means, **({INTERVALS: self.ends} if self.ends else {}), **rest}


class Best(NamedTuple):
    """The best evaluation of a run.

    Args:
        name: as 'test/pass@1'.
        ends: of its interval; None where none was logged.
        among: how many evaluations there were; `last` is the value of the last of them, after step `until`.
    """

    name: str
    step: int
    value: float
    ends: tuple[float, float] | None
    among: int
    last: float
    until: int

    def sentence(self) -> str:
        """For the terminal and the page."""
        within = f" [{self.ends[0]:.4g}, {self.ends[1]:.4g}]" if self.ends else ""
        last = "the last" if self.step == self.until else f"the last, after step {self.until}, {self.last:.4g}"
        return (
            f"Best of {self.among} evaluations by {self.name}: {self.value:.4g}{within} after step {self.step}; {last}."
        )


def splits_of(line: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What a line of `evaluations.jsonl` measured, by split."""
    return {k: dict(v) for k, v in line.items() if k != INTERVALS and isinstance(v, Mapping)}


def best(lines: Iterable[Mapping[str, Any]], name: str | None = None, lower: bool = False) -> Best | None:
    """The best of the evaluations that were logged, the earliest of equal ones; None if there are none.

    Args:
        name: by which metric, as 'test/pass@1'; None: the first that was measured.
        lower: whether lower is better.

    >>> logged = [{"step": s, "test": {"pass@1": v}} for s, v in ((10, 0.2), (20, 0.5), (30, 0.4))]
    >>> best(logged).sentence()
    'Best of 3 evaluations by test/pass@1: 0.5 after step 20; the last, after step 30, 0.4.'
    """
    rows = [(line, flat(splits_of(line))) for line in lines]
    name = name or next((k for _, numbers in rows for k in numbers), None)
    valued = [(line, numbers.get(name or "", math.nan)) for line, numbers in rows]
    found = [(line, value) for line, value in valued if not math.isnan(value)]
    if name is None or not found:
        return None
    line, value = max(found, key=lambda pair: -pair[1] if lower else pair[1])
    low, high = line.get(INTERVALS, {}).get(name.partition("/")[2], (None, None))
    ends = None if low is None or high is None else (low, high)
    return Best(name, line["step"], value, ends, len(found), found[-1][1], found[-1][0]["step"])
