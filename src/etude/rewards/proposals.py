"""What a problem is worth to whoever posed it."""

from __future__ import annotations

from collections.abc import Sequence

from etude.core.episodes import Episode
from etude.core.slots import Context, Reward


class Unsolved(Reward):
    """What a problem is worth to its proposer: 1 - m, where its solvers earned m on average; 0 if it is not asked.

    Of episodes of `posed-problems`.

    >>> from etude.core.episodes import Problem
    >>> asked = Episode(Problem("1", "?"), info={"valid": True, "solved": 0.2})
    >>> Unsolved().score([asked, Episode(Problem("2", "?"), info={"valid": False})], Context(None, None, None))
    [0.8, 0.0]
    """

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float | None]:
        return [self._of(e) for e in episodes]

    def _of(self, episode: Episode) -> float | None:
        """None where a problem is asked and nobody could try it: every solver's environment failed."""
        if not episode.info["valid"]:
            return 0.0
        return self.worth(episode.info["solved"]) if "solved" in episode.info else None

    def worth(self, solved: float) -> float:
        """Of a problem that is asked."""
        return 1.0 - solved


class HalfSolved(Unsolved):
    """The same with 4 m (1 - m), most where half of the solvers are right.

    >>> [round(HalfSolved().worth(m), 2) for m in (0.0, 0.2, 0.5, 1.0)]
    [0.0, 0.64, 1.0, 0.0]
    """

    def worth(self, solved: float) -> float:
        return 4 * solved * (1 - solved)
