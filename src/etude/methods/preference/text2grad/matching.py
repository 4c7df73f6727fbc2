"""Scores of words brought to the tokens that say them."""

from __future__ import annotations

import re
from collections.abc import Sequence

TOGETHER, SKIPPED = 9, 5
"""Tokens that may make one word, and how many are passed over in search of it."""
SCORES = {"+": 1.0, "-": -1.0, "=": 0.0}
LIST = re.compile(r"(\S+?)([+=-])")


def read_scores(text: str) -> list[tuple[str, float]]:
    """The words and scores that a critique ends with: after its last bar, each word with +, - or =, spaces between.

    Empty where the text is not such a critique.

    >>> read_scores("a is said twice|a= b+ a-")
    [('a', 0.0), ('b', 1.0), ('a', -1.0)]
    >>> read_scores("a is said twice"), read_scores("|a+ b")
    ([], [])
    """
    _, bar, listed = text.rpartition("|")
    found = [LIST.fullmatch(item) for item in listed.split()] if bar else []
    return [(m[1], SCORES[m[2]]) for m in found if m] if all(found) else []


def matched(words: Sequence[tuple[str, float]], tokens: Sequence[str]) -> list[float]:
    """A score for every token: that of the word which it is, or is a part of; 0 for punctuation and all others.

    From the left, up to nine tokens together are compared with the next word, white space around them and case aside.
    Where none are it, up to five tokens are passed over; if the word is not there either, it is given up and the next
    one is looked for where this one was.

    Args:
        words: each with its score, in the order in which they were said.
        tokens: the texts of a completion's tokens, '' for special ones.

    >>> matched([("good", 1.0), ("absent", -1.0), ("end", -1.0)], ["A", " go", "od", ",", " End", ""])
    [0.0, 1.0, 1.0, 0.0, -1.0, 0.0]
    """
    found, place = [0.0] * len(tokens), 0
    for word, score in words:
        if (span := _span(word.casefold(), tokens, place)) is not None:
            for i in span:
                found[i] = score if any(map(str.isalnum, tokens[i])) else 0.0
            place = span.stop
    return found


def _span(word: str, tokens: Sequence[str], place: int) -> range | None:
    """The tokens from about `place` on that are the word."""
    for begin in range(place, min(place + SKIPPED + 1, len(tokens))):
        if not tokens[begin].strip():
            continue
        for end in range(begin + 1, min(begin + TOGETHER, len(tokens)) + 1):
            if "".join(tokens[begin:end]).strip().casefold() == word:
                return range(begin, end)
    return None
