"""What the policy is shown of a conversation, as tokens: the opening, and each reply of the environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etude.core.batches import Segment
from etude.core.errors import ConfigError

SAID = "\u2060said\u2060"
"""Stands for the assistant's words when a template is rendered around them: nothing that a template contains."""


def opening(segments: Sequence[Segment], policy: Any) -> list[list[int]]:
    """Tokens of each opening segment.

    Plain text is encoded as it is. Chat messages (problems whose prompt is a list of messages) go through the
    tokenizer's chat template with the assistant's turn opened; the whole is attributed to the last segment.

    Raises ConfigError if the problem is a conversation and the tokenizer has no chat template, or one that refuses it.
    """
    if not conversational(segments):
        return [policy.encode(s.text) for s in segments]
    if not policy.tokenizer.chat_template:
        raise ConfigError(
            "The problems are conversations but the model's tokenizer has no chat template: set `chat_template` in "
            "its tokenizer_config.json, or give prompts as plain text."
        )
    return [[] for _ in segments[:-1]] + [policy.encode(_render(_messages(segments), policy, opened=True))]


def reply(segments: Sequence[Segment], policy: Any, closed: bool) -> list[list[int]]:
    """Tokens of what the environment answered in a conversation, the assistant's next turn opened.

    The policy's own turn stands in the history as the tokens that it sampled, so only what a template puts after it
    is wanted: the rendering of (turn, answer) after the turn's words. If the policy closed its turn itself (`closed`:
    its last token ended the completion), the end mark that a rendering of the turn alone shows is left out, and what
    follows that mark (often a line break) is not. The whole is attributed to the last segment.
    """
    if not segments:
        return []
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": SAID}]
    after = _render([*said, *_messages(segments)], policy, opened=True).rpartition(SAID)[2]
    if closed:
        alone = _render(said, policy, opened=False).rpartition(SAID)[2]
        after = after.removeprefix(alone[: _past_end_mark(alone, policy)])
    return [[] for _ in segments[:-1]] + [policy.encode(after)]


def conversational(segments: Sequence[Segment]) -> bool:
    """Whether these segments are chat messages rather than plain text."""
    return any(s.info.get("message") for s in segments)


def _messages(segments: Sequence[Segment]) -> list[dict[str, str]]:
    return [{"role": s.role, "content": s.text} for s in segments]


def _past_end_mark(text: str, policy: Any) -> int:
    """Where the first end-of-turn token of a text is over; 0 if it has none."""
    marks = [policy.tokenizer.decode([i]) for i in policy.end_ids]
    return min((text.index(m) + len(m) for m in marks if m and m in text), default=0)


def _render(messages: list[dict[str, str]], policy: Any, opened: bool) -> str:
    from jinja2 import TemplateError

    try:
        return policy.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=opened)  # type: ignore[no-any-return]
    except TemplateError as error:
        roles = ", ".join(m["role"] for m in messages)
        raise ConfigError(f"The model's chat template refuses a conversation of the roles {roles}: {error}.") from None
