"""Thoughts between a text and what comes next in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError
from etude.core.fields import Count
from etude.core.slots import Context
from etude.experience.groups import Groups
from etude.experience.rollout import fresh, rollout

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

THOUGHT = "thought"
"""In `Episode.info`: all tokens of the thought, those that begin and end it included."""


class Thoughts(Groups):
    """`size` thoughts after each problem's prompt, a text that goes on with the problem's answer.

    The beginning of the thought is said for the policy and not trained, and what it says up to the thought's end is.
    What follows is sampled with it where the task says how an answer stops (`stop`), so that the task can tell whether
    it is right, and is not trained. A thought that was not ended is ended for it, so that the text can go on.

    Args:
        thought: how it begins and how it ends; None: as the task has it, by default `<think>` and `</think>`.
        max_tokens: limit of thought and answer together, its beginning included; None takes the task's.

    `Episode.info` has the tokens of the `thought`, from its beginning to its end.

    Raises: ConfigError if no text ends a thought, or its beginning leaves no room for it.

    >>> Thoughts(size=16).rows_per_problem, Thoughts(thought=("(", ")")).thought
    (16, ('(', ')'))
    """

    size: Count = 16
    thought: tuple[str, str] | None = None

    def check(self) -> None:
        if self.thought is not None and not self.thought[1]:
            raise ConfigError(
                "Thoughts.thought must have a text that ends a thought, got ''; by default it is </think>."
            )

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        opens, closes = self.thought or context.task.thought
        policy, sampling = context.policy, self.sampling(context)
        begun, ending = policy.encode(opens), policy.encode(closes)
        if sampling.max_tokens <= len(begun):
            raise ConfigError(
                f"A completion of at most {sampling.max_tokens} tokens has no room for a thought that begins with "
                f"{len(begun)}: set experience.max_tokens to more."
            )
        said = Segment("assistant", opens, begun, [0] * len(begun), [0.0] * len(begun))
        starts = fresh(problems, self.size, context.stream)
        if begun:
            starts = [start._replace(segments=(said,), open=True) for start in starts]
        rest = dataclasses.replace(
            sampling, max_tokens=sampling.max_tokens - len(begun), stop=sampling.stop or (closes,)
        )
        episodes = rollout(starts, context, rest)
        for episode in episodes:
            if episode.action_count:
                _trim(episode.turns[0], episode, closes, ending, policy)
        return episodes


def _trim(turn: Segment, episode: Episode, closes: str, ending: list[int], policy: LanguagePolicy) -> None:
    """Train a turn's thought alone, and note its tokens."""
    begun = turn.info.get("begun", 0)
    size = _thought_size(turn.tokens, begun, closes, policy)
    ended = size is not None
    if size is None:  # an end token says that nothing comes next, which is not so
        size = len(turn.tokens) - (turn.tokens[-1] in policy.end_ids)
    learned = size if ended else len(turn.tokens)
    turn.action_mask = [0] * begun + [1] * (learned - begun) + [0] * (len(turn.tokens) - learned)
    episode.info[THOUGHT] = [*turn.tokens[:size], *([] if ended else ending)]


def _thought_size(tokens: Sequence[int], begun: int, closes: str, policy: LanguagePolicy) -> int | None:
    """How many tokens a turn's thought has, up to the first that completes its end; None if it has none."""
    said = tokens[begun:]
    if closes not in policy.decode(said):
        return None
    return next(begun + n for n in range(1, len(said) + 1) if closes in policy.decode(said[:n]))
