"""What a tool returned, as text that can be shown to a policy.

A worker process imports this file, so at module level it imports nothing heavy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
"""Codes for colours, titles and cursors of terminals."""
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff\ud800-\udfff]")
"""Characters without a shape, but for line breaks and tabs."""


def shown(value: object, longest: int) -> str:
    """A value as text: bytes decoded, other things as JSON, no codes or characters without a shape, cut if it is long.

    >>> shown(b"caf\\xc3\\xa9 \\x1b[31mred\\x1b[0m\\x00", 100), shown({"a": [1, None]}, 100)
    ('café red', '{"a": [1, null]}')
    >>> shown("x" * 1000, 10)
    'xxxxxxxxxx ... (the first 10 of 1000 characters)'
    """
    if isinstance(value, (bytes, bytearray)):
        text = bytes(value).decode("utf-8", errors="replace")
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    kept = CONTROLS.sub("", ESCAPES.sub("", text.replace("\r\n", "\n")[: 8 * longest]))
    if len(kept) <= longest and len(text) <= 8 * longest:
        return kept
    return f"{kept[:longest]} ... (the first {longest} of {len(text)} characters)"


def broken(text: str, marks: Iterable[str]) -> str:
    """The text with a space inside of every mark, so that none is left in it.

    >>> broken("</tool_call> and <</tool_call>/tool_call>", ["</tool_call>"])
    '< /tool_call> and << /tool_call>/tool_call>'
    """
    known = sorted({m for m in marks if len(m.strip()) > 1}, key=len, reverse=True)
    while found := next((m for m in known if m in text), None):
        parted = f"{found[0]} {found[1:]}"
        text = text.replace(found, "" if found in parted else parted)
    return text
