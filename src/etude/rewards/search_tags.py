"""The grammar of answers that search: thoughts, queries, what was found, an answer, each between tags.

<think>...</think><search>a query</search><information>what was found</information>...<answer>...</answer>
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import NamedTuple

from etude.core.errors import ConfigError

NAMES = ("think", "search", "information", "answer")
MOST_THOUGHTS = 8
PLACEHOLDERS = frozenset({"query", "search query", "your query", "thought", "thoughts", "information", "answer"})
"""What a prompt that explains the grammar has between tags; text without a letter or digit is one, too."""
_TAG = re.compile(r"<(/?)([A-Za-z_]+)>")
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class Block(NamedTuple):
    """What stands between two tags; places are those of characters, tags included."""

    name: str
    body: str
    begin: int
    end: int


def blocks(text: str) -> list[Block] | None:
    """The blocks of a text; None where its tags are others than these four, are not closed, or stand in one another.

    >>> [tuple(block) for block in blocks("<think>a</think>, <answer>b</answer>")]
    [('think', 'a', 0, 16), ('answer', 'b', 18, 36)]
    >>> blocks("<think><answer>b</answer></think>"), blocks("<b>b</b>"), blocks("<answer>b")
    (None, None, None)
    """
    tags, found = list(_TAG.finditer(text)), []
    if len(tags) % 2:
        return None
    for opened, closed in zip(tags[::2], tags[1::2]):
        if opened[1] or not closed[1] or opened[2] != closed[2] or opened[2] not in NAMES:
            return None
        found.append(Block(opened[2], text[opened.end() : closed.start()], opened.start(), closed.end()))
    return found


def format_score(text: str) -> float:
    """F of SSRL (arXiv:2508.10874), in [0, 1]: 0 outside of the grammar, else more for a thought before each step.

    With n thoughts and s queries F = min(1, n / 2) min(n, s + 1) / max(n, s + 1). A text is in the grammar if it begins
    with a thought and ends with an answer, each query is one line with what was found right behind it, nothing was
    found without one, no block is empty or a placeholder, and n is at most 8.

    >>> once = "<search>a</search><information>b</information>"
    >>> format_score(f"<think>q</think>{once}<think>r</think><answer>c</answer>")
    1.0
    >>> format_score(f"<think>q</think>{once}<answer>c</answer>"), format_score("<answer>c</answer>")
    (0.25, 0.0)
    """
    text = text.strip()
    found = blocks(text)
    if not found or not (text.startswith("<think>") and text.endswith("</answer>")):
        return 0.0
    for block, following in zip(found, [*found[1:], None]):
        if not re.search(r"\w", block.body) or block.body.strip().casefold() in PLACEHOLDERS:
            return 0.0
        if block.name == "search":
            one_line = "\n" not in block.body.strip()
            if not one_line or following is None or following.name != "information":
                return 0.0
            if text[block.end : following.begin].strip():
                return 0.0
    thoughts, queries, informed = (sum(b.name == n for b in found) for n in ("think", "search", "information"))
    if queries != informed or thoughts > MOST_THOUGHTS:
        return 0.0
    return min(1.0, thoughts / 2) * min(thoughts, queries + 1) / max(thoughts, queries + 1)


def answer_in(text: str) -> str:
    """The last answer between tags, '' if there is none.

    >>> answer_in("<answer>a</answer><answer> b </answer>"), answer_in("b")
    ('b', '')
    """
    found = _ANSWER.findall(text)
    return str(found[-1]).strip() if found else ""


def same_words(text: str, answers: Sequence[str]) -> bool:
    """Whether a text is one of some answers, but for case, punctuation, articles and white space: exact match, EM.

    Raises: ConfigError for one string in place of several.

    >>> same_words("The Red house.", ["red house", "barn"]), same_words("", [""]), same_words("red", ["red house"])
    (True, False, False)
    """
    if isinstance(answers, str):
        raise ConfigError(f"same_words: answers must be a list of answers, got the text {answers!r}.")
    plain = _plain(text)
    return bool(plain) and plain in map(_plain, answers)


def _plain(text: str) -> str:
    """As usual for questions about texts: small letters, no punctuation, no articles, single spaces."""
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def informed_spans(text: str) -> list[tuple[int, int]]:
    """Where what was found stands, tags included; a block that is not closed goes to the end.

    >>> informed_spans("ab<information>c</information>d<information>e")
    [(2, 30), (31, 45)]
    """
    found = re.finditer(r"<information>.*?(?:</information>|\Z)", text, re.DOTALL)
    return [(m.start(), m.end()) for m in found]
