"""Whether two libraries' runs of one method come to the same: their difference lies within the smallest that matters.

Overlapping intervals would say yes the more easily the fewer runs there are. Here few runs say nothing.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from etude.evaluation.intervals import welch_interval


def equivalence(own: ArrayLike, theirs: ArrayLike, smallest: float) -> dict[str, Any]:
    """Welch's 95% interval of mean(own) - mean(theirs), and what it says.

    Args:
        own, theirs: [n], [m], scores of runs, which are not paired: each library draws in its own way.
        smallest: the smallest difference that matters, above 0.

    Returns: JSON values; the verdict is 'equivalent' where the interval lies within the smallest difference, else
        'different' where it excludes 0, else 'undecided'.

    >>> equivalence([1.0, 1.1, 0.9], [1.0, 1.1, 0.9], smallest=0.5)["verdict"]
    'equivalent'
    """
    gap = welch_interval(own, theirs)
    within = -smallest < gap.low and gap.high < smallest
    verdict = "equivalent" if within else "different" if gap.low > 0 or gap.high < 0 else "undecided"
    return {"verdict": verdict, "difference": gap.to_json(), "smallest": smallest}
