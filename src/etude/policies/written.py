"""Episodes from text that was written instead of sampled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.policies.chat import arguments, conversational, opening, reply, turn

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy


def written(
    problem: Problem, segments: Sequence[Segment], group: int, policy: LanguagePolicy, add_bos: bool | None = None,
    seen: Callable[[Episode], Episode] = lambda episode: episode,
) -> Episode:  # fmt: skip
    """An episode from written segments: what the assistant says is learned, with the token that ends it.

    In a conversation that is what the chat template ends a turn with, and the episode's tokens are those of the
    rendered whole; elsewhere it is the tokenizer's end token. An episode that does not fit the model's context is never
    cut: it comes back empty, with a warning, and loops leave episodes without an action token out. It has ended unless
    its last segment says that a limit stopped it (`info["stop"]`).

    Args:
        seen: makes its training rows; the whole is one by default.
    """
    start = next((i for i, s in enumerate(segments) if s.role == "assistant"), len(segments))
    encode = _conversation if conversational(segments) else _text
    opened = opening(segments[:start], policy, add_bos)
    for segment, (tokens, learned) in zip(segments, encode(segments, start, opened, policy)):
        segment.tokens = tokens
        segment.action_mask = [1] * learned + [0] * (len(tokens) - learned)
        segment.behaviour_logp = [0.0] * len(tokens)
    stop = segments[-1].info.get("stop", StopReason.TERMINATED)
    episode = seen(Episode(problem, list(segments), group, written=True, stop=stop))
    if (size := max(len(row.tokens) for row in episode.rows)) > policy.context:
        warnings.warn(
            f"Problem {problem.id!r} and its written answer have {size} tokens, more than the {policy.context} that "
            "the model can attend to: left out.",
            stacklevel=2,
        )
        return Episode(problem, group=group, stop=StopReason.CONTEXT_OVERFLOW)
    return episode


Encoded = list[tuple[list[int], int]]
"""Tokens of each segment, and how many of them, from the first on, are learned."""


def _text(segments: Sequence[Segment], start: int, opened: list[list[int]], policy: LanguagePolicy) -> Encoded:
    encoded: Encoded = [(tokens, 0) for tokens in opened]
    for segment in segments[start:]:
        tokens, mine = policy.encode(segment.text), segment.role == "assistant"
        encoded.append(([*tokens, policy.tokenizer.eos_token_id], len(tokens) + 1) if mine else (tokens, 0))
    return encoded


def _conversation(segments: Sequence[Segment], start: int, opened: list[list[int]], policy: LanguagePolicy) -> Encoded:
    encoded: Encoded = [(tokens, 0) for tokens in opened]
    turns = [i for i, s in enumerate(segments) if s.role == "assistant"]
    for place, following in zip(turns, [*turns[1:], len(segments)]):
        made = turn(segments[:place], segments[place], policy)
        if place == start and place:
            encoded[-1] = (made.before, 0)
        answer = reply(segments[place + 1 : following], policy, True, arguments(segments))
        encoded.append((made.said if answer else made.said + made.after, len(made.said)))
        encoded += [(tokens, 0) for tokens in answer]
    return encoded
