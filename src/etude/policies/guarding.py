"""Text of a tool can neither end the policy's turn nor begin another's: marks of turns in it are broken.

Marks are the tokenizer's added tokens, and what its chat template writes around messages.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from etude.core.errors import ConfigError
from etude.policies.templates import WORDS, render

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def turn_marks(tokenizer: PreTrainedTokenizerBase) -> frozenset[str]:
    """Strings that mean something between turns: added tokens, and pieces of what the template puts around messages.

    Plain words that it puts there are none of them: only what has another character too, as `[INST]` or `User:`.
    """
    added = {str(t.content) for t in tokenizer.added_tokens_decoder.values()}
    marks = {m for m in added if len(m.strip()) > 1}
    if not tokenizer.chat_template:
        return frozenset(marks)
    for roles in (("user", "assistant", "user"), ("system", "user"), ("user", "assistant", "tool")):
        messages = [{"role": role, "content": WORDS} for role in roles]
        try:
            shown = render(messages, tokenizer, True)
        except ConfigError:
            continue
        pieces = [piece for between in shown.split(WORDS) for piece in between.split()]
        marks |= {p for p in pieces if len(p) > 2 and re.search(r"\w", p) and re.search(r"[^\w\s]", p)}
    return frozenset(marks)


def takes_tools(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the chat template shows a tool's message, and as none of the assistant's."""
    asked = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    try:
        as_tool, as_said = (
            render([*asked, {"role": role, "content": WORDS}], tokenizer, False) for role in ("tool", "assistant")
        )
    except ConfigError:
        return False
    return WORDS in as_tool and as_tool != as_said
