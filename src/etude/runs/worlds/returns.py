"""Returns of the members of a population, and their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from etude.core.control import ControlTask
from etude.runs.playing import Plays, plays
from etude.runs.training import Options

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from etude.evaluation.intervals import Interval
    from etude.evaluation.restored import Acting
    from etude.loops.on_policy import OnPolicyLoop


def plays_of(loop: OnPolicyLoop, options: Options) -> Plays:
    """How many episodes of each member, by those that it was trained on last, where its loop keeps them."""
    recent = getattr(loop, "recent", None) or [()] * loop.population.size
    return plays(options, [[length for _, length in own] for own in recent])


def played(
    policies: Acting, task: ControlTask, chosen: Plays, purpose: str, quiet: bool
) -> dict[str, NDArray[np.float64]]:
    """Returns [members, episodes] of sampled and of likeliest actions; says how far it is."""
    from etude.evaluation.control import play
    from etude.runtime.progress import Counter

    modes = {"return": False, "return/deterministic": True}
    with Counter("episodes", len(modes) * sum(chosen.episodes), quiet=quiet) as counter:
        return {
            k: play(
                policies, task, chosen.episodes, deterministic=d, purpose=purpose, longest=chosen.longest,
                side_by_side=chosen.side_by_side, progress=counter.add,
            ) for k, d in modes.items()
        }  # fmt: skip


def intervals(policies: Acting, returns: Mapping[str, NDArray[np.float64]]) -> dict[str, Interval]:
    """Of each kind of return over the members, by setting where there are several."""
    from etude.evaluation.control import summary

    found: dict[str, Interval] = {}
    for name, own in returns.items():
        found |= summary(name, own, policies.population.members)
    return found
