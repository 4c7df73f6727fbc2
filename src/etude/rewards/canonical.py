"""Texts in one way of writing them, for judges that compare."""

from __future__ import annotations

import re
import unicodedata

_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SMALL = {word: n for n, word in enumerate(_ONES)} | {word: 10 * n for n, word in enumerate(_TENS, 2)}
_LARGE = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_ARTICLE = re.compile(r"^(?:a|an|the)\s+")
_MARKS = "\"'`*_“”‘’.,;:!?()[]{}"


def plain_form(text: str) -> str:
    """A text without what makes no difference: case, white space, marks around words, an article at the start.

    >>> plain_form("  The  *Red* House. "), plain_form("1,200")
    ('red house', '1200')
    """
    text = _GROUPED.sub("", unicodedata.normalize("NFKC", text).casefold().replace("−", "-"))
    words = [stripped for word in text.split() if (stripped := word.strip(_MARKS))]
    return _ARTICLE.sub("", " ".join(words))


def canonical_form(text: str) -> str:
    """The same with numbers in figures, whether they are written in words or with needless zeros.

    >>> [canonical_form(t) for t in ("Twenty-one", "one hundred and five", "minus three", "7.0", "seven apples")]
    ['21', '105', '-3', '7', '7 apples']
    """
    words = [w for word in plain_form(text).split() for w in _halves(word)]
    found: list[str] = []
    while words:
        length, value = _leading_number(words)
        if value is not None and found and found[-1] in ("minus", "negative"):
            found[-1:], value = [], -value
        found.append(_figures(words[0]) if value is None else str(value))
        words = words[max(1, length) :]
    return " ".join(found)


def _halves(word: str) -> list[str]:
    """`twenty-one` as two words; anything else with a hyphen stays as it is."""
    parts = word.split("-")
    return parts if len(parts) == 2 and all(p in _SMALL for p in parts) else [word]


def _figures(word: str) -> str:
    if not _NUMBER.fullmatch(word):
        return word
    whole, point, rest = word.removeprefix("+").partition(".")
    sign, digits = ("-", whole[1:]) if whole.startswith("-") else ("", whole)
    rest = rest.rstrip("0")
    number = (digits.lstrip("0") or "0") + (point + rest if rest else "")
    return number if number == "0" else sign + number


def _leading_number(words: list[str]) -> tuple[int, int | None]:
    """How many of the first words write one number, and which; (0, None) if none do."""
    total = current = taken = 0
    least = 10**12  # what a part of the number has to be below, so that "two three" is two numbers
    for place, word in enumerate(words):
        if word in _SMALL and _SMALL[word] < least and not (place and _SMALL[word] == 0):
            current += _SMALL[word]
            least = 10 if _SMALL[word] >= 20 else 0
        elif word == "hundred" and 0 < current < 10:
            current, least = 100 * current, 100
        elif word in _LARGE and current:
            total, current, least = total + current * _LARGE[word], 0, 100
        elif word == "and" and total + current and current % 100 == 0 and words[place + 1 : place + 2] != []:
            if words[place + 1] not in _SMALL:
                break
        else:
            break
        taken = place + 1 if word != "and" else taken
    return taken, total + current if taken else None
