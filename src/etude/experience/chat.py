"""What the policy is shown at the start of an episode, as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etude.core.batches import Segment
from etude.core.errors import ConfigError


def opening(segments: Sequence[Segment], policy: Any) -> list[list[int]]:
    """Tokens of each opening segment.

    Plain text is encoded as it is. Chat messages (problems whose prompt is a list of messages) go through the
    tokenizer's chat template with the assistant's turn opened; the whole is attributed to the last segment.

    Raises ConfigError if the problem is a conversation and the tokenizer has no chat template.
    """
    if not any(s.info.get("message") for s in segments):
        return [policy.encode(s.text) for s in segments]
    if not policy.tokenizer.chat_template:
        raise ConfigError(
            "The problems are conversations but the model's tokenizer has no chat template: set `chat_template` in "
            "its tokenizer_config.json, or give prompts as plain text."
        )
    messages = [{"role": s.role, "content": s.text} for s in segments]
    text = policy.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return [[] for _ in segments[:-1]] + [policy.encode(text)]
