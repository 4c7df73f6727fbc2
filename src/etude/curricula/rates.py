"""Problems by how often they were solved before a run, as a file says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from etude.core.episodes import Problem
from etude.core.errors import ConfigError
from etude.core.fields import Probability
from etude.core.slots import Curriculum
from etude.core.streams import Stream
from etude.curricula.uniform import Uniform


class OfDifficulty(Curriculum):
    """Problems that were solved more often than `above` and at most `most`, in the order of another curriculum.

    With `above=none` those that were never solved are among them; `most=0` leaves these alone.

    Without a file it is the other curriculum on the whole pool.

    Args:
        rates: a file of `Rates`; in a run of a recipe `{NAME}`.
        above, most: share of solutions that were right; above None: from those without a right one on.
        of: which of them come next.

    Raises: ConfigError if the limits cannot be kept by any, or no problem of the pool keeps them.

    >>> pool = [Problem(str(n), "?") for n in range(3)]
    >>> sorted(p.id for p in OfDifficulty().bind().choose(pool, 3, Stream(0)))
    ['0', '1', '2']
    """

    rates: str = ""
    above: Probability | None = 0.0
    most: Probability = 1.0
    of: Curriculum = Uniform()

    def check(self) -> None:
        if self.above is not None and self.most <= self.above:
            raise ConfigError(
                f"OfDifficulty.most must be larger than above, got {self.most} and {self.above}: nothing is between."
            )

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        return self.of.choose(self._within(pool) if self.rates else pool, count, stream)

    def _within(self, pool: Sequence[Problem]) -> Sequence[Problem]:
        """The problems of the pool that keep the limits, found once; the file's are the first of it."""
        if self.made.get("pool") is not pool:
            rows = [json.loads(line) for line in Path(self.rates).read_text().splitlines()]
            above = -1.0 if self.above is None else self.above
            kept = {row["id"] for row in rows if above < row["rate"] <= self.most}
            found = [p for p in (pool[i] for i in range(min(len(rows), len(pool)))) if p.id in kept]
            if not found:
                least = "" if self.above is None else f"more often than {self.above:g} and "
                raise ConfigError(
                    f"OfDifficulty: of {len(rows)} problems in {self.rates} none was solved {least}at most "
                    f"{self.most:g}; set curriculum.above and curriculum.most."
                )
            self.made.update(pool=pool, within=found)
        within: Sequence[Problem] = self.made["within"]
        return within
