"""What a tokenizer and its chat template put around a text: the beginning of the text, the end of a turn."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from etude.core.episodes import Message
from etude.core.errors import ConfigError
from etude.core.task import plain

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from etude.policies.protocols import Model

EMPTY: Mapping[str, Any] = MappingProxyType({})
WORDS = "\u2060words\u2060"
"""Stands for the assistant's words when a template is rendered around them: nothing that a template contains."""


def end_ids(model: Model, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that end a completion: the model's, the tokenizer's, and the one that ends a turn in its template."""
    configured = model.generation_config.eos_token_id if model.generation_config else None
    ids = configured if isinstance(configured, list) else [] if configured is None else [configured]
    turn = end_of_turn(tokenizer)
    return sorted({*ids, tokenizer.eos_token_id, *([] if turn is None else [turn])})


def render(
    messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase, opened: bool, arguments: Mapping[str, Any] = EMPTY
) -> str:  # fmt: skip
    """A conversation as text, the assistant's next turn `opened` or not.

    Args:
        arguments: what the template is given besides: `tools`, switches such as `enable_thinking`.

    Raises: ConfigError if the template refuses.
    """
    from jinja2 import TemplateError

    joins = any(isinstance(m.get("content"), list) for m in messages) and not takes_parts(tokenizer)
    said = [_joined(m) if joins else dict(m) for m in messages]
    try:
        shown = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=opened, **arguments)
        return str(shown)
    except (TemplateError, TypeError) as error:
        roles = ", ".join(m["role"] for m in messages)
        raise ConfigError(f"The model's chat template refuses a conversation of the roles {roles}: {error}.") from None


def takes_parts(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the template shows content that comes in parts (`[{"type": "text", "text": ...}]`) as their text."""
    from jinja2 import TemplateError

    ask = [{"role": "user", "content": [{"type": "text", "text": WORDS}]}]
    try:
        shown = str(tokenizer.apply_chat_template(ask, tokenize=False))  # type: ignore[arg-type]  # parts of models that see
    except (TemplateError, TypeError):
        return False
    return WORDS in shown and "'text'" not in shown


def _joined(message: Message) -> dict[str, Any]:
    """A message whose content is text, for templates that know no parts; content that is null stays null."""
    content = message.get("content")
    return {**message, "content": plain(content)} if isinstance(content, list) else dict(message)


def uses(tokenizer: PreTrainedTokenizerBase, name: str) -> bool:
    """Whether the template reads a variable or field of this name."""
    return re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template)) is not None


def end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The special token that the template puts after the assistant's words; None if there is none."""
    if not tokenizer.chat_template:
        return None
    try:
        shown = render([{"role": "user", "content": "?"}, {"role": "assistant", "content": WORDS}], tokenizer, False)
        tail = after_words(shown)
    except ConfigError:
        return None
    return first_special(tokenizer.encode(tail, add_special_tokens=False), tokenizer)


def after_words(shown: str) -> str:
    """What a rendering has after `WORDS`. Raises ConfigError if the template changed them or left them out."""
    _, found, tail = shown.rpartition(WORDS)
    if not found:
        raise ConfigError(
            "The model's chat template does not show what the assistant says as it is, so it cannot be known where a "
            "turn ends: set another `chat_template` in tokenizer_config.json."
        )
    return tail


def first_special(tokens: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The first special token among these."""
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special} | {*tokenizer.all_special_ids}
    return next((t for t in tokens if t in special), None)


def beginning(tokenizer: PreTrainedTokenizerBase, add_bos: bool | None) -> list[int]:
    """Tokens that a plain text begins with.

    Args:
        add_bos: whether that is the beginning-of-text token; None for whatever the tokenizer puts before a text.

    Raises: ConfigError if the token is asked for and the tokenizer has none.
    """
    if add_bos is None:
        whole, bare = tokenizer.encode("a"), tokenizer.encode("a", add_special_tokens=False)
        added = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)
        return list(whole[:added])
    if add_bos and tokenizer.bos_token_id is None:
        raise ConfigError(
            "task.add_bos asks for a beginning-of-text token and the tokenizer has none: set `bos_token` in its "
            "tokenizer_config.json, or leave add_bos out."
        )
    return [tokenizer.bos_token_id] if add_bos else []
