r"""How an answer is found in a completion and compared, by name: `--answer boxed`.

    auto         the last \boxed{...}, else after ####, in <answer>...</answer>, after "answer:", else the last line
    boxed        the last \boxed{...}, and nothing else
    last-number  the last number
    choice       the letter of a choice, marked as in auto, or as the last line
    exact        the whole completion, letter by letter

An answer that is not found is wrong. What they accept and refuse is in docs/verifiable-rewards.md, whose tables are
tested.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from etude.tasks.language import answers

Name = Literal["auto", "boxed", "last-number", "choice", "exact"]

_NUMBER = re.compile(
    rf"(?:\d{{1,3}}(?:,\d{{3}})+(?!\d)|\d{{1,60}})(?:\.\d{{1,60}})?(?:[eE][+-]?\d{{1,2}})?(?:\s?/\s?\d{{1,60}})?"
    rf"(?:(?![^\W\d_])|(?=(?:{answers.UNITS})\b))"
)
BEGINNING = 200
"""Characters of a marked answer or last line in which a choice is looked for."""
_POWERS = "^_⁰¹²³⁴⁵⁶⁷⁸⁹"
_CHOICE = re.compile(
    r"""[\s*_`"'“(\[]*(?:(?i:option|choice)\s+)?[(\[*]*([A-Za-z])(?:[)\].:*_`"'”]|\s*$|,?\s+(?:because|since|as|is)\b)"""
)
_SECOND = re.compile(r"""[\s*.)\]]*(?:or|and|,|/|&)\s*[(\[*]*[A-Za-z](?![A-Za-z])""")


@dataclass(frozen=True)
class Extractor:
    """One way to find and to compare answers.

    Args:
        find: the answer in a completion; None if there is none.
        same: whether what was found is the answer of the data.
        objection: why an answer of the data cannot be compared so, as a sentence; None if it can.
    """

    find: Callable[[str], str | None]
    same: Callable[[str, str], bool]
    objection: Callable[[object], str | None] = lambda answer: None


def right(name: Name, completion: str, answer: object) -> bool:
    r"""Whether a completion gives the answer.

    >>> right("boxed", r"so \boxed{12}", 12), right("boxed", "so 12", 12), right("last-number", "so 12.", "12")
    (True, False, True)
    """
    if name == "auto":
        return answers.same_answer(completion, answer)
    extractor = EXTRACTORS[name]
    found = extractor.find(completion)
    expected = answers.written(answer) if name == "exact" else answers.wanted(answer)
    return found is not None and extractor.same(found, expected)


def boxed(completion: str) -> str | None:
    r"""What the last `\boxed{...}` holds; None if there is none or it was cut."""
    found = answers.boxed(completion)
    return None if found is None or not found[1] else found[0]


def last_number(completion: str) -> str | None:
    r"""The last number of a text; None if there is none, or if it is the base or exponent of a power.

    >>> last_number(r"2 * 6 = 12 apples."), last_number("10 - 3"), last_number(r"\frac{1}{2}"), last_number("10^2")
    ('12', '3', '1/2', None)
    """
    text = answers.formula_spaced(completion)
    last = None
    for match in _NUMBER.finditer(text):
        before = text[: match.start()][-2:]
        if not re.search(r"[^\W\d]$", before):  # no name, such as x2
            last = match, before
    if last is None:
        return None
    match, before = last
    if before.rstrip("{(+-")[-1:] in ("^", "_") or text[match.end() :][:1] in (*_POWERS,):
        return None
    return ("-" if re.search(r"(^|[^\w)\]}])-$", before) else "") + match[0]


def letter(completion: str) -> str | None:
    """The letter of the choice that a text makes, as a capital; None if it makes none, or two.

    >>> letter("So the answer is (B)."), letter("c"), letter("Answer: A or B"), letter("A dog barks.")
    ('B', 'C', None, None)
    """
    marked = answers.stated_answer(completion)
    text = answers.final_answer(completion) if marked is None else marked
    text = answers.unwrapped(text[:BEGINNING])
    match = _CHOICE.match(text)
    if match is None or _SECOND.match(text, match.end(1)):
        return None
    return match[1].upper()


def _number(text: str) -> Fraction | None:
    found = answers.quantity(answers.unwrapped(text))
    return None if found is None else found[0]


def _no_number(answer: object) -> str | None:
    if _number(answers.wanted(answer)) is not None:
        return None
    return f"the answer {answer!r:.60} is no number, which last-number compares: choose another way with --answer."


def _no_letter(answer: object) -> str | None:
    if letter(answers.wanted(answer)) is not None:
        return None
    return f"the answer {answer!r:.60} is no letter, which choice compares: choose another way with --answer."


EXTRACTORS: dict[str, Extractor] = {
    "auto": Extractor(answers.final_answer, answers.same),
    "boxed": Extractor(boxed, answers.same),
    "last-number": Extractor(last_number, lambda found, answer: _number(found) == _number(answer), _no_number),
    "choice": Extractor(letter, lambda found, answer: found == letter(answer), _no_letter),
    "exact": Extractor(str.strip, lambda found, answer: found == answer.strip()),
}
assert {*EXTRACTORS} == {*get_args(Name)}
