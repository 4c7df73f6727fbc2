"""How many episodes an evaluation in a run of control plays, and when it cuts them.

Where `--evaluate` does not say, all evaluations of a run together take a tenth of its environment steps: each has an
equal share, half of it for sampled and half for likeliest actions. Of that share every member plays as many episodes as
those that it was trained on last were long, at least `FEW` and at most `USUAL`, always as many in each environment.
What decides is known before the first of them is played, so no episode counts more for being short.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from etude.runs.training import Options

USUAL = 20
"""Episodes of each member before and after training, where there is room for them; `etude evaluate` plays more."""
FEW = 5
"""Episodes that are played whatever they cost; also how many environments play them side by side."""
SHARE = 10
"""Training takes so many times the steps of its evaluations."""
SHORTEST = 1_000
"""No episode is cut before so many steps."""
LONGEST = 10_000
"""Where `--evaluate` says how many: steps after which an episode is cut; a tenth of the training, if that is more."""
LATEST = 50_000
"""Steps after which `etude evaluate` cuts an episode."""


class Plays(NamedTuple):
    """What is played of each mode.

    Args:
        episodes: of each member [P].
        longest: steps after which an episode of a member is cut [P].
        side_by_side: environments of each member; None: as many as suits the number of episodes.
    """

    episodes: Sequence[int]
    longest: Sequence[int]
    side_by_side: int | None = None

    def sentence(self, when: str) -> str:
        """What is about to be played 'before' or 'after' training.

        >>> print(Plays([5, 10], [1000, 1000], 5).sentence("after"))
        Playing 5 to 10 episodes of each member after training, about a tenth of its steps for all that is played \
(--evaluate 20 plays the usual 20) ...
        """
        low, high = min(self.episodes), max(self.episodes)
        many = f"{low}" if low == high else f"{low} to {high}"
        fewer = self.side_by_side is not None and low < USUAL
        why = f", about a tenth of its steps for all that is played (--evaluate {USUAL} plays the usual {USUAL})"
        return f"Playing {many} episodes of each member {when} training{why if fewer else ''} ..."


def plays(options: Options, lengths: Sequence[Collection[int]]) -> Plays:
    """What an evaluation of a run plays.

    Args:
        lengths: of the episodes that each member was trained on last; none before the first of them has ended.
    """
    steps, members = options.steps or 0, len(lengths)
    if options.evaluate:
        return Plays([options.evaluate] * members, [max(LONGEST, steps // SHARE)] * members)
    every = options.evaluate_every or steps
    evaluations = 2 + (max(0, -(-steps // every) - 1) if every else 0)
    share = steps // SHARE // evaluations // 2
    return Plays([_episodes(own, share) for own in lengths], [_longest(own, share) for own in lengths], FEW)


def _episodes(lengths: Collection[int], share: int) -> int:
    """As many as a share of the steps has room for, in whole rounds of `FEW`."""
    if not lengths:
        return FEW
    rounds = int(share * len(lengths) / sum(lengths)) // FEW
    return FEW * min(max(rounds, 1), USUAL // FEW)


def _longest(lengths: Collection[int], share: int) -> int:
    """A few of that length take the share; but not shorter than what was seen to end."""
    return max(SHORTEST, share // FEW, 2 * max(lengths, default=0))
