r"""Whether a completion gives the right answer: what its final answer is, and when two answers are the same.

Completions are untrusted text. Nothing here evaluates them; patterns run in linear time, numbers have at most 60
digits, answers at most 2,000 characters, and mathematics is compared in a process of its own that has 2 seconds.
"""

from __future__ import annotations

import importlib.util
import json
import re
import unicodedata
from fractions import Fraction
from functools import cache
from typing import Any

LONGEST = 2_000
"""Characters of an answer that are compared as anything but plain text."""
SECONDS = 2.0
"""What comparing one pair of formulas may take."""

_STATED = re.compile(r"\banswer(?:\s{0,3}[:=]|\s{1,3}is\b\s{0,3}:?)", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?(\d{1,60}(\.\d{0,60})?|\.\d{1,60})([eE][+-]?\d{1,2})?(\s*/\s*[+-]?\d{1,60})?")
_GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")
_WORD = re.compile(r"\b(?!(?:sin|cos|tan|log|exp|sqrt)\b)[^\W\d_]{3,}")
_SYMBOL = re.compile(r"[\\^=+*/()\[{-]")


def final_answer(completion: str) -> str:
    r"""The answer that a completion ends with.

    The last `\boxed{...}`, else what follows the last `####`, else the last `<answer>...</answer>`, else the rest of
    the line after the last 'answer:' or 'answer is', else the last line.

    >>> final_answer(r"so x is \boxed{\frac{1}{2}}."), final_answer("3 + 4 = 7\n#### 7"), final_answer("Answer: 7.")
    ('\\frac{1}{2}', '7', '7')
    """
    if (stated := stated_answer(completion)) is not None:
        return stated
    return completion.strip().rpartition("\n")[2].strip()


def stated_answer(text: str) -> str | None:
    """The answer that a text marks as such; None if it marks none."""
    if (boxed := _boxed(text)) is not None:
        return boxed
    if "####" in text:
        return _line(text.rpartition("####")[2])
    if "<answer>" in text:
        return text.rpartition("<answer>")[2].partition("</answer>")[0].strip()
    ends = [m.end() for m in _STATED.finditer(text)]
    return _line(text[ends[-1] :]) if ends else None


def _boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` holds, its braces balanced."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    start += len("\\boxed{")
    depth = 1
    for i in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start:i].strip()
    return text[start:].strip()  # cut by the limit of tokens


def _line(text: str) -> str:
    """The first line, without the marks that prose puts around an answer."""
    return text.strip().partition("\n")[0].lstrip(" *`\"'").rstrip(" .*`\"'")


def same_answer(completion: str, answer: object) -> bool:
    r"""Whether a completion's final answer is `answer`: as text, as a number, or as a formula (with math-verify).

    Text is compared without outer and repeated white space, numbers without thousands separators, currency, percent
    signs and trailing zeros; a true/false answer in any case. An answer may be marked itself (`... #### 7`).

    >>> same_answer("It costs 1,200.0 in all.\nanswer: $1,200", 1200), same_answer("7", "seven")
    (True, False)
    """
    expected = answer if isinstance(answer, str) else json.dumps(answer)
    if isinstance(answer, bool):
        return final_answer(completion).casefold().strip(".") == expected
    if _spaced(completion) == _spaced(expected):
        return True
    given, wanted = final_answer(completion), stated_answer(expected) or expected.strip()
    if max(len(given), len(wanted)) > LONGEST:
        return given == wanted
    if _spaced(given) == _spaced(wanted):
        return bool(given)
    ours, theirs = number(given), number(wanted)
    if ours is not None and theirs is not None:
        return ours == theirs
    return bool(given) and looks_like_maths(wanted) and _same_formula(given, wanted)


def looks_like_maths(text: str) -> bool:
    r"""Whether a text is a formula rather than words with a hyphen.

    >>> [looks_like_maths(t) for t in (r"\frac{1}{2}", "x^2 - 1", "(1, 2)", "well-known", "Paris")]
    [True, True, True, False, False]
    """
    return bool(_SYMBOL.search(text)) and not _WORD.search(re.sub(r"\\[a-zA-Z]+", " ", text))


def number(text: str) -> Fraction | None:
    """The number that a text is, exactly; None if it is anything else.

    >>> number("$1,234.50"), number("-2/4"), number("1e999999999")
    (Fraction(2469, 2), Fraction(-1, 2), None)
    """
    text = unicodedata.normalize("NFKC", text).strip().rstrip(" .%").replace("−", "-")
    text = re.sub(r"^([+-]?)\s*[$€£]\s*", r"\1", text)
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    if not _NUMBER.fullmatch(text):
        return None
    numerator, _, denominator = text.partition("/")
    try:
        return Fraction(numerator.strip()) / Fraction(denominator.strip() or 1)
    except ZeroDivisionError:
        return None


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _same_formula(given: str, wanted: str) -> bool:
    """What math-verify says, in its process; False if it is not installed, or has no verdict in time."""
    from etude.rewards.calls import CallFailed

    if importlib.util.find_spec("math_verify") is None:
        return False
    try:
        return bool(_judge().ask(SECONDS, given=given, wanted=wanted))
    except CallFailed:
        return False


@cache
def _judge() -> Any:
    from etude.rewards.worker import Worker

    return Worker("etude.tasks.language._formulas:same")
