"""Playing episodes: all of them advance together, turn by turn, through the environment of the task.

Tokens are the only record of what was sampled. Text goes one way: from tokens to the environment; what the
environment answers is encoded once and never decoded back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from etude.core.draws import Draw
from etude.core.episodes import FIRST, Episode, Problem, Segment, StopReason, occurrences
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.play import Play
from etude.experience.seats import Seats
from etude.experience.views import FullHistory, View
from etude.experience.worlds import worlds_of
from etude.policies.sampling import Sampling
from etude.runtime.errands import in_owners_thread

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy
    from etude.policies.protocols import Engine


class Start(NamedTuple):
    """Where an episode begins: at its problem, or inside another episode of the same problem.

    Args:
        draw: where its random numbers come from: a child of its own for each turn, and one for its environment. Those
            of another episode, at the same turn, say again what that one said, wherever it was interrupted.
        segments: what the policy said there, to be said again; the environment answers it anew, under the same `seed`.
            None of these tokens are trained on.
        open: whether the last of them is only the beginning of a turn, which the policy goes on with.
        hint: text that the policy is shown after the prompt and what was said, before a turn that it goes on with.
        parent: index of the other episode.
        player: who plays it, where an experience has several play one after another.
    """

    problem: Problem
    group: int
    draw: Draw
    segments: tuple[Segment, ...] = ()
    open: bool = False
    hint: str = ""
    seed: int | None = None
    parent: int | None = None
    player: str = FIRST

    @property
    def turns(self) -> int:
        """Whole turns before the first that the policy says something in."""
        return len(self.segments) - self.open

    @property
    def begun(self) -> int:
        """Tokens of that turn that were said already."""
        return len(self.segments[-1].tokens) if self.open else 0


def fresh(problems: Sequence[Problem], size: int | Sequence[int], stream: Stream) -> list[Start]:
    """`size` starts at each problem, or as many as `size` says of each; their group is the problem's place.

    The stream says when: its address, the problem, how often the problem stood in the list before, and the number of
    the sample are the address of an episode's draw. So the starts of a step are made together, and played in any order.
    """
    sizes = [size] * len(problems) if isinstance(size, int) else size
    starts = []
    for group, (problem, number, count) in enumerate(zip(problems, occurrences(problems), sizes, strict=True)):
        draw = stream.draw("problem", problem.id, number)
        starts += [Start(problem, group, draw.child(sample)) for sample in range(count)]
    return starts


def first_tokens(segment: Segment, count: int, policy: LanguagePolicy) -> Segment:
    """The beginning of a turn, `count` tokens long, to go on from (`Start.open`)."""
    kept = segment.tokens[:count]
    return dataclasses.replace(
        segment, text=policy.decode(kept), tokens=kept, action_mask=segment.action_mask[:count],
        behaviour_logp=segment.behaviour_logp[:count], info={},
    )  # fmt: skip


EVERYTHING = FullHistory()


def rollout(
    starts: Sequence[Start], context: Context, sampling: Sampling, view: View = EVERYTHING
) -> list[Episode]:  # fmt: skip
    """One episode per start, by the run's samplers if it has any; which others are played with it changes none.

    Args:
        view: what the policy sees of an episode; of starts inside of others it sees everything.
    """
    if context.samplers is None or sampling.tilt is not None:  # what tilts is in this process
        return in_owners_thread(partial(played, starts, context, sampling, view))
    episodes: list[Episode] = context.samplers.play(starts, context, sampling, view)
    return episodes


def played(
    starts: Sequence[Start], context: Context, sampling: Sampling, view: View = EVERYTHING,
    engine: Engine | None = None,
) -> list[Episode]:  # fmt: skip
    """One episode per start, played in this process, its tokens sampled by the engine; None: by the policy itself.

    A turn is sampled for all that have one, then all their environments answer: in this process or, if the task has
    `workers`, many at once in processes of their own; there an episode need not wait for the others (`by_arrival`).
    Episodes whose environment raised, or did not answer there, end
    with `StopReason.FAULT`.

    Raises EnvironmentFault if environments keep failing, one hangs in this process, or returns a reward that is not a
    finite number or an observation that is not text.
    """
    seats = Seats(starts, context, view, sampling, engine)
    with worlds_of(context.task, seats.firsts()) as worlds:
        play = Play(starts, seats, worlds, context)
        turns, going = [start.turns for start in starts], play.begin()
        while going or play.away:
            for speaker, mine, later in seats.speaking(going):
                mine = [s for s in mine if _has_turn(seats, s, turns[seats.world(s)])]
                others = play.others(mine, later)
                mine = speaker.looks.ready(mine, others)
                views = {s: tokens for s in mine if _has_room(seats, s, tokens := speaker.looks.tokens(s))}
                if mine := list(views):
                    at = [seats.world(s) for s in mine]
                    draws = [starts[w].draw.child("turn", turns[w], "tokens") for w in at]
                    begun = [starts[w].begun if turns[w] == starts[w].turns else 0 for w in at]
                    last = all(turns[w] + 1 >= context.task.max_turns for w in at)
                    play.say(mine, speaker.lines.sample(views, sampling, draws, begun, last, others))
                    speaker.looks.said(mine)
                    for w in at:
                        turns[w] += 1
            going = play.hear()
    return seats.played()


def _has_turn(seats: Seats, seat: int, turn: int) -> bool:
    """Whether there is this turn; otherwise the episode ends here."""
    if turn < seats.context.task.max_turns:
        return True
    seats.end(seat, StopReason.MAX_TURNS)
    return False


def _has_room(seats: Seats, seat: int, view: Sequence[int]) -> bool:
    """Whether there is room for at least one more token behind what is seen; otherwise the episode ends here."""
    if len(view) < seats.at(seat).policy.context:
        return True
    seats.end(seat, StopReason.CONTEXT_OVERFLOW)
    return False
