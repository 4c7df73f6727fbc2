"""Tokens of what environments say, and text of what the policy says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property

from etude.core.episodes import Episode, Role, Segment, StopReason
from etude.core.slots import Context
from etude.experience.tools.outputs import broken
from etude.policies.chat import arguments, conversational, opening, reply, worded
from etude.policies.guarding import turn_marks
from etude.policies.sampling import Completion


class Texts:
    """Tokens of what environments say and text of what the policy says: the same comes again and again."""

    def __init__(self, context: Context) -> None:
        self.policy, self.add_bos = context.policy, context.task.add_bos
        self.known: dict[tuple[object, ...], list[list[int]]] = {}
        self.spelled: dict[tuple[int, ...], str] = {}

    def opening(self, segments: Sequence[Segment]) -> list[list[int]]:
        """Tokens of each segment of an episode's beginning."""
        return self._once(_identity(segments), lambda: opening(segments, self.policy, self.add_bos))

    def reply(self, segments: Sequence[Segment], episode: Episode, stop: StopReason) -> list[list[int]]:
        """Tokens of each segment that answers: through the chat template in a conversation, else as they are."""
        for segment in segments:
            if segment.role == "tool":
                segment.text = broken(segment.text, self.marks)
        if not conversational(episode.segments):
            texts = tuple(map(worded, segments))
            return self._once(texts, lambda: [self.policy.encode(text) for text in texts])
        closed, given = stop is StopReason.END_OF_TEXT, arguments(episode.segments)
        key = (closed, repr(given), *_identity(segments))
        return self._once(key, lambda: reply(segments, self.policy, closed, given))

    @cached_property
    def marks(self) -> frozenset[str]:
        """What no tool may say."""
        return turn_marks(self.policy.tokenizer)

    def text(self, tokens: list[int]) -> str:
        """What tokens say."""
        key = tuple(tokens)
        if key not in self.spelled:
            self.spelled[key] = self.policy.decode(tokens)
        return self.spelled[key]

    def said(self, completion: Completion, role: Role = "assistant") -> Segment:
        """The segment of what the policy said."""
        tokens = completion.tokens
        segment = Segment(
            role, self.text(tokens), tokens, [1] * len(tokens), completion.logp, self.policy.version
        )  # fmt: skip
        if completion.entropy:
            segment.info["entropy"] = completion.entropy
        if completion.hidden is not None:
            segment.info["hidden"] = completion.hidden
        if completion.allowed is not None:
            segment.info["allowed"] = completion.allowed
        if completion.tilts is not None:
            segment.info["tilts"] = completion.tilts
        if completion.voices:
            segment.info["voices"] = completion.voices
        return segment

    # What views write

    def plain(self, segment: Segment) -> Segment:
        """Text as it is."""
        return observed(segment, self.policy.encode(segment.text))

    def line(self, said: Segment) -> Segment:
        """The tokens of what the policy said as a line of its own: a line break stands for the token that ended it."""
        ended = said.tokens[-1:] and said.tokens[-1] in self.policy.end_ids
        tokens = said.tokens[:-1] if ended else said.tokens
        return observed(Segment(said.role, said.text + "\n"), [*tokens, *self.policy.encode("\n")])

    def opened(self, segments: Sequence[Segment]) -> list[Segment]:
        """The beginning of an episode, written anew."""
        return [observed(s, tokens) for s, tokens in zip(segments, self.opening(segments))]

    def answered(self, segments: Sequence[Segment], said: Segment, episode: Episode) -> list[Segment]:
        """What was answered to a turn of a conversation, written anew."""
        ended = said.tokens[-1:] and said.tokens[-1] in self.policy.end_ids
        found = self.reply(segments, episode, StopReason.END_OF_TEXT if ended else StopReason.MAX_TOKENS)
        return [observed(dataclasses.replace(s), tokens) for s, tokens in zip(segments, found)]

    def _once(self, key: tuple[object, ...], make: Callable[[], list[list[int]]]) -> list[list[int]]:
        if key not in self.known:
            self.known[key] = make()
        return [list(tokens) for tokens in self.known[key]]


def _identity(segments: Sequence[Segment]) -> tuple[object, ...]:
    """All that the tokens of segments depend on."""
    return tuple((s.role, s.text, *(repr(s.info.get(k)) for k in ("message", "said", "arguments"))) for s in segments)


def observed(segment: Segment, tokens: list[int]) -> Segment:
    """A segment that the policy is shown, with its tokens."""
    segment.tokens, segment.action_mask = tokens, [0] * len(tokens)
    segment.behaviour_logp = [0.0] * len(tokens)
    return segment
