"""What the policy is shown of a conversation, as tokens: the opening, a written turn, each reply of the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from etude.core.episodes import Message, Segment
from etude.core.errors import ConfigError
from etude.policies.guarding import takes_tools
from etude.policies.templates import EMPTY, WORDS, after_words, beginning, first_special, render

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy
    from etude.policies.protocols import Speaker


def opening(segments: Sequence[Segment], policy: Speaker, add_bos: bool | None = None) -> list[list[int]]:
    """Tokens of each opening segment.

    Plain text is encoded as it is, after what the tokenizer begins texts with (`add_bos`: None as the tokenizer says,
    else with or without its beginning-of-text token; one that the text has itself is not repeated). Chat messages
    (problems whose prompt is a list of messages) go through the tokenizer's chat template with the assistant's turn
    opened; the whole is attributed to the last segment.

    Raises ConfigError if the problem is a conversation and the tokenizer has no chat template, or one that refuses it.
    """
    if not conversational(segments):
        return _begun([policy.encode(s.text) for s in segments], beginning(policy.tokenizer, add_bos))
    if not policy.tokenizer.chat_template:
        raise ConfigError(
            "The problems are conversations but the model's tokenizer has no chat template: set `chat_template` in "
            "its tokenizer_config.json, or give prompts as plain text."
        )
    text = render(_messages(segments), policy.tokenizer, True, arguments(segments))
    return [[] for _ in segments[:-1]] + [policy.encode(text)]


def _begun(texts: list[list[int]], begin: list[int]) -> list[list[int]]:
    """The texts with these tokens before the first."""
    if not texts or texts[0][: len(begin)] == begin:
        return texts
    return [begin + texts[0], *texts[1:]]


class Turn(NamedTuple):
    """A written turn of a conversation: tokens before it, its own with the mark that ends it, and those after."""

    before: list[int]
    said: list[int]
    after: list[int]


def turn(segments: Sequence[Segment], segment: Segment, policy: LanguagePolicy) -> Turn:
    """What the assistant says after `segments`, so that the three together are the tokens of the rendered whole.

    `before` is the opening wherever the rendering begins with it; templates that open a turn with more than they keep
    of it (thoughts) are taken at what they keep. Where the text is so written that its first token would fuse with the
    opening's last, the two are encoded apart, as they are when the policy samples. A template that marks no end gets
    the tokenizer's end token.
    """
    words, history, given = policy.tokenizer, _messages(segments), arguments(segments)
    shown = render([*history, {"role": "assistant", "content": WORDS}], words, False, given)
    whole = render([*history, *_messages([segment])], words, False, given)
    before = render(history, words, True, given)
    before = before if whole.startswith(before) else shown.partition(WORDS)[0]
    tail = after_words(shown)
    text = whole.removeprefix(before)
    end = first_special(after := policy.encode(tail), words)
    if end is None or not text.endswith(tail):
        return Turn(policy.encode(before), [*policy.encode(text.removesuffix(tail)), words.eos_token_id], [])
    first, everything = policy.encode(before), policy.encode(before + text)
    rest = everything[len(first) :] if everything[: len(first)] == first else policy.encode(text)
    cut = len(rest) - (len(after) - after.index(end) - 1)
    return Turn(first, rest[:cut], rest[cut:])


def reply(
    segments: Sequence[Segment], policy: LanguagePolicy, closed: bool, given: Mapping[str, Any] = EMPTY
) -> list[list[int]]:
    """Tokens of what the environment answered in a conversation, the assistant's next turn opened.

    The policy's own turn stands in the history as the tokens that it sampled, so only what a template puts after it
    is wanted: the rendering of (turn, answer) after the turn's words. If the policy closed its turn itself (`closed`:
    its last token ended the completion), the end mark that a rendering of the turn alone shows is left out, and what
    follows that mark (often a line break) is not. The whole is attributed to the last segment. `given` are the
    conversation's `arguments`.
    """
    if not segments:
        return []
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": WORDS}]
    after = after_words(render([*messages, *_answers(segments, policy)], policy.tokenizer, True, given))
    if closed:
        alone = after_words(render(messages, policy.tokenizer, False, given))
        after = after.removeprefix(alone[: _past_end_mark(alone, policy)])
    return [[] for _ in segments[:-1]] + [policy.encode(after)]


def conversational(segments: Sequence[Segment]) -> bool:
    """Whether these segments are chat messages rather than plain text."""
    return any(s.info.get("message") for s in segments)


def arguments(segments: Sequence[Segment]) -> Mapping[str, Any]:
    """What the chat template is given in this conversation, besides its messages."""
    return segments[0].info.get("arguments", EMPTY) if segments else EMPTY


def _messages(segments: Sequence[Segment]) -> list[Message]:
    return [s.info.get("said") or {"role": s.role, "content": s.text} for s in segments]


def _answers(segments: Sequence[Segment], policy: LanguagePolicy) -> list[Message]:
    """Messages of what answers a turn; what tools returned as the user's where the template knows no such message."""
    tools = [s.role == "tool" and not s.info.get("said") for s in segments]
    if not any(tools):
        return _messages(segments)
    if takes_tools(policy.tokenizer):
        named = [{"name": s.info["tool"]} if s.info.get("tool") else {} for s in segments]
        return [{**m, **more} for m, more in zip(_messages(segments), named)]
    made: list[Message] = []
    for segment, of_tool, before in zip(segments, tools, [False, *tools]):
        if of_tool and before:
            made[-1] = {"role": "user", "content": f"{made[-1]['content']}\n{worded(segment)}"}
        else:
            made += [{"role": "user", "content": worded(segment)}] if of_tool else _messages([segment])
    return made


def worded(segment: Segment) -> str:
    """A segment's text with what stands around it where no chat template shows what it is."""
    before, after = segment.info.get("around", ("", ""))
    return f"{before}{segment.text}{after}"


def _past_end_mark(text: str, policy: LanguagePolicy) -> int:
    """Where the first end-of-turn token of a text is over; 0 if it has none."""
    marks = [str(policy.tokenizer.decode([i])) for i in policy.end_ids]
    return min((text.index(m) + len(m) for m in marks if m and m in text), default=0)
