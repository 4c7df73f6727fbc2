"""What environments may not answer, and how many of them may fail."""

from __future__ import annotations

from etude.core.episodes import Episode, Segment, StopReason
from etude.core.errors import EnvironmentFault
from etude.core.slots import Context
from etude.core.task import StepResult
from etude.experience.worlds import Answer, whose

MAX_FAULTS = 3
"""Episodes in a row that an environment may lose before the run stops."""


def check_result(result: object, episode: Episode, context: Context) -> None:
    """Raise EnvironmentFault unless it is a StepResult with a finite reward and text."""
    if not isinstance(result, StepResult):
        raise EnvironmentFault(f"{whose(context.task, episode)} returned {result!r}; a step must return a StepResult.")
    number = result.reward
    if isinstance(number, str) or not hasattr(number, "__float__") or float(number) - float(number) != 0:
        raise EnvironmentFault(
            f"{whose(context.task, episode)} returned the reward {number!r}; a reward must be a finite number."
        )
    for name, amount in (*result.pays.items(), *([(result.player, 0.0)] if result.player else [])):
        check_named(name, amount, episode, context)
    check_observations(result.segments, episode, context)


def check_named(name: str, amount: object, episode: Episode, context: Context) -> None:
    """Raise EnvironmentFault for a player that the task does not have, or one that is paid no finite number."""
    players = context.task.players
    if name not in players:
        raise EnvironmentFault(
            f"{whose(context.task, episode)} named the player {name!r}, and the task's players are "
            f"{', '.join(players) or 'none (one plays alone)'}."
        )
    if isinstance(amount, str) or not hasattr(amount, "__float__") or float(amount) - float(amount) != 0:
        raise EnvironmentFault(
            f"{whose(context.task, episode)} paid {name!r} {amount!r}; a reward must be a finite number."
        )


def check_observations(segments: object, episode: Episode, context: Context) -> None:
    """Raise EnvironmentFault unless they are Segments with text."""
    if not isinstance(segments, (list, tuple)):
        raise EnvironmentFault(f"{whose(context.task, episode)} returned {segments!r} instead of a list of Segments.")
    for s in segments:
        if not isinstance(s, Segment) or not isinstance(s.text, str):
            shown = repr(s.text) if isinstance(s, Segment) else repr(s)
            raise EnvironmentFault(
                f"{whose(context.task, episode)} returned the observation {shown}; it must be a Segment with text."
            )


class Faults:
    """Counts environments that failed: one lost episode is survivable, a broken environment is not."""

    def __init__(self) -> None:
        self.row = 0

    def fine(self) -> None:
        """One answered."""
        self.row = 0

    def lost(self, episode: Episode, answer: Answer) -> bool:
        """Discard the episode. Raises EnvironmentFault after too many in a row."""
        episode.stop = StopReason.FAULT
        episode.info["fault"] = answer.fault
        self.row += 1
        if self.row >= MAX_FAULTS:
            raise EnvironmentFault(
                f"The environment failed in {self.row} episodes in a row; the last time, for problem "
                f"{episode.problem.id!r}: {answer.fault.rstrip('.')}."
            ) from answer.error
        return False
