"""Vine sampling: many continuations from states that rollouts passed through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import ConfigError
from etude.core.fields import Count, WholeNumber
from etude.core.slots import Context
from etude.experience.groups import Groups
from etude.experience.rollout import Start, first_tokens, rollout

if TYPE_CHECKING:
    from etude.core.task import LanguageTask


class Vine(Groups):
    """`size` seed rollouts for each problem and, from states on each of them, `continuations` more.

    The rollout states of a seed rollout of length L are at floor(i L / (states + 1)), i = 1, ..., states: between turns
    if the task has several (L turns), else inside the completion (L tokens). The environment is replayed there from the
    same seed; what was said before is not trained on.

    `episode.info` of a continuation: `vine` numbers the state that it shares with others, `signature` is what makes it
    another one than they are: `task.signature(episode)` where the task has that, else its answer.

    Args:
        states: rollout states of each seed rollout.
        prompt: whether the prompt is a rollout state as well; with `states` = 0 the only one.
        max_tokens: limit of what a seed rollout, or a continuation after its state, may say in a turn.

    Two seed rollouts of 9 tokens, each continued 8 times from its third and from its sixth token:

    >>> part = Vine(size=2, states=2, continuations=8)
    >>> [i * 9 // (part.states + 1) for i in (1, 2)], part.rows_per_problem
    ([3, 6], 34)
    """

    size: Count = 2
    states: WholeNumber = 2
    continuations: Count = 8
    prompt: bool = False

    def check(self) -> None:
        if not self.states and not self.prompt:
            raise ConfigError("Vine needs a rollout state to go on from: set states to 1 or more, or prompt to true.")

    @property
    def rows_per_problem(self) -> int:
        return self.size * (1 + (self.states + self.prompt) * self.continuations)

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        seeds = super().collect(problems, context)
        starts: list[Start] = []
        for number, episode in enumerate(seeds):
            if episode.stop is not StopReason.FAULT and episode.action_count:
                starts += self._continuations(number, episode, context)
        found = rollout(starts, context, self.sampling(context))
        for number, episode in enumerate(found):
            episode.info |= {"vine": number // self.continuations, "signature": signature(episode, context.task)}
        return seeds + found

    def _continuations(self, number: int, episode: Episode, context: Context) -> list[Start]:
        """Where to go on from, in the seed rollout of this number."""
        turns = [s for s in episode.segments if s.role == "assistant"]
        whole = context.task.max_turns > 1
        length = len(turns) if whole else len(turns[0].tokens)
        places = [0] * self.prompt + [i * length // (self.states + 1) for i in range(1, self.states + 1)]
        assert episode.draw is not None
        at, found = Start(episode.problem, episode.group, episode.draw, seed=episode.seed, parent=number), []
        for state, place in enumerate(places):
            here = at._replace(segments=_before(turns, place, whole, context), open=not whole and place > 0)
            found += [here._replace(draw=at.draw.child("fork", state, k)) for k in range(self.continuations)]
        return found


def _before(turns: Sequence[Segment], place: int, whole: bool, context: Context) -> tuple[Segment, ...]:
    """What was said before a state: whole turns, or the first tokens of the only one."""
    if whole:
        return tuple(turns[:place])
    return (first_tokens(turns[0], place, context.policy),) if place else ()


def signature(episode: Episode, task: LanguageTask) -> str:
    """What makes an episode another one than others of its problem."""
    named = getattr(task, "signature", None)
    return str(named(episode) if named else task.answer(episode.completion))
