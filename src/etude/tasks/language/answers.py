r"""Whether a completion gives the right answer: what its final answer is, and when two answers are the same.

Tasks choose how answers are found in `extractors.py`.

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

_PAIRS = ("**", "__", "*", "`", '"', "'", "$$", "$"), (("\\(", "\\)"), ("\\[", "\\]"), ("“", "”"), ("‘", "’"))
_COMMANDS = re.compile(r"\\(?:boxed|text|textbf|textrm|mathrm|mathbf|mbox)\{([^{}]*)\}")
_SPACES = re.compile(r"\\[,;:! ]|~|\\q?quad\b|\\(?:left|right|displaystyle)\b")
_DEGREES = re.compile(r"\^\{?\\circ\}?|\\degree\b|°")
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
_SHORT = re.compile(r"\\[dt]?frac(\d)(\d)")
_NAMED = re.compile(r"[A-Za-z]\s*=\s*(?=[^=])")
_ATOM = re.compile(r"[+-]?[\w.]*")
UNITS = "km|cm|mm|m|kg|mg|g|ml|l|s|h|min|mph|°C|°F|°|%"
_UNIT = re.compile(
    rf"([+-]?[$€£]?\s?[\d.,]+(?:\s?/\s?\d+)?)(?:\s+([^\W\d_]{{2,}}(?:[ -][^\W\d_]{{2,}}){{0,2}})|\s?({UNITS}))\.?"
)
_FIGURES = frozenset((
    "hundred", "thousand", "million", "billion", "trillion", "dozen", "score", "half", "halves", "third", "thirds",
    "quarter", "quarters", "point", "plus", "minus", "times", "divided", "over", "under", "squared", "cubed",
    "factorial", "mod", "modulo", "remainder", "negative", "or", "and", "to", "than", "not", "no", "less", "more",
    "fewer", "of", "by", "from", "per", "pi", "sqrt", "if", "unless", "between", "about",
))  # fmt: skip
"""Words after a number that make another number of it, or none."""
_LETTER = re.compile(r"[(\[]?([A-Z])[)\]]?[.:]?")
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
    if (found := boxed(text)) is not None:
        return found[0]
    if "####" in text:
        return _line(text.rpartition("####")[2])
    if "<answer>" in text:
        return text.rpartition("<answer>")[2].partition("</answer>")[0].strip()
    ends = [m.end() for m in _STATED.finditer(text)]
    return _line(text[ends[-1] :]) if ends else None


def boxed(text: str) -> tuple[str, bool] | None:
    r"""What the last `\boxed{...}` holds, its braces balanced, and whether it is closed; None without one."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    start += len("\\boxed{")
    depth = 1
    for i in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start:i].strip(), True
    return text[start:].strip(), False  # cut by the limit of tokens


def _line(text: str) -> str:
    """The first line, without the marks that prose puts around an answer."""
    return text.strip().partition("\n")[0].lstrip(" *`\"'").rstrip(" .*`\"'")


def same_answer(completion: str, answer: object) -> bool:
    r"""Whether a completion's final answer is `answer`: as text, as a number, or as a formula.

    See `same` for what makes no difference; a true/false answer may be in any case. An answer may be marked itself
    (`... #### 7`).

    >>> same_answer("It costs 1,200.0 in all.\nanswer: $1,200", 1200), same_answer("7", "seven")
    (True, False)
    """
    expected = written(answer)
    if isinstance(answer, bool):
        return final_answer(completion).casefold().strip(".") == expected
    return _spaced(completion) == _spaced(expected) or same(final_answer(completion), wanted(answer))


def written(answer: object) -> str:
    """An answer of a data file as text."""
    return answer if isinstance(answer, str) else json.dumps(answer)


def wanted(answer: object) -> str:
    """What is right: what an answer marks as such (`... #### 7`), or all of it."""
    expected = written(answer)
    return stated_answer(expected) or expected.strip()


def same(given: str, wanted: str) -> bool:
    r"""Whether two answers are the same.

    Makes no difference: white space, marks of Markdown and LaTeX around an answer, a full stop after it, thousands
    separators, currency and percent signs, trailing zeros, `x =` before it, brackets around a letter, and a unit that
    only one of them has. Formulas are compared by math-verify where it is installed, else as they are written, with
    one way to write fractions, spaces and degrees.

    >>> same("**12**", "12"), same("12 apples", "12"), same("12 apples", "12 km"), same("12 or 13", "12")
    (True, True, False, False)
    """
    if max(len(given), len(wanted)) > LONGEST:
        return given == wanted
    ours, theirs = unwrapped(given), unwrapped(wanted)
    if ours == theirs or _spaced(given) == _spaced(wanted):
        return bool(_spaced(given))
    if "=" not in theirs and (named := _NAMED.match(ours)):
        ours = ours[named.end() :]
    letters = [_LETTER.fullmatch(text) for text in (ours, theirs)]
    if letters[0] and letters[1]:
        return letters[0][1] == letters[1][1]
    mine, yours = quantity(ours), quantity(theirs)
    if mine and yours:
        units = {unit.casefold().rstrip("s") for _, unit in (mine, yours) if unit}
        return mine[0] == yours[0] and len(units) < 2
    if not ours or not looks_like_maths(theirs):
        return bool(ours) and formula(ours) == formula(theirs)
    return formula(ours) == formula(theirs) or _same_formula(ours, theirs)


def unwrapped(text: str) -> str:
    r"""An answer without the marks that prose, Markdown and LaTeX put around it.

    >>> [unwrapped(t) for t in ("**12**.", r"$\text{Paris}$", r"50\%", "`a  b`", "...")]
    ['12', 'Paris', '50%', 'a b', '...']
    """
    text = _spaced(text)
    for _ in range(8):
        before = text
        text = _COMMANDS.sub(r"\1", text).strip()
        for mark in _PAIRS[0]:
            if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
                text = text[len(mark) : -len(mark)].strip()
        for left, right in _PAIRS[1]:
            if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right):
                text = text[len(left) : -len(right)].strip()
        text = text.rstrip(".!,;").strip() or text
        if text == before:
            break
    return text.replace("\\%", "%").replace("\\$", "$").replace("{,}", ",")


def formula(text: str) -> str:
    r"""A formula in one way of writing it: fractions as quotients, no spaces, no degrees.

    >>> [formula(t) for t in (r"\dfrac12", r"-\frac{x}{2} + 1", r"\left( 1,\, 2 \right)", r"90^\circ")]
    ['1/2', '-x/2+1', '(1,2)', '90']
    """
    return formula_spaced(text).replace("\\cdot", "*").replace("\\times", "*").replace(" ", "")


def formula_spaced(text: str) -> str:
    """The same of a text that has more than a formula, its spaces kept."""
    text = _DEGREES.sub("", _SPACES.sub("", text.replace("−", "-")))
    text = _SHORT.sub(r"\\frac{\1}{\2}", text)
    for _ in range(4):  # from the inside out
        text, changed = _FRACTION.subn(lambda m: "/".join(_grouped(part.strip()) for part in m.groups()), text)
        if not changed:
            break
    return text


def _grouped(part: str) -> str:
    return part if _ATOM.fullmatch(part) else f"({part})"


def quantity(text: str) -> tuple[Fraction, str] | None:
    r"""The number that a text is, and its unit if it has one; None if it is anything else.

    A unit is one to three words of letters, or one of the usual signs; words that make another number ("12 million",
    "12 or 13", "12 squared") are none.

    >>> quantity("12 apples"), quantity("1/2 km"), quantity("12 million"), quantity("12 x")
    ((Fraction(12, 1), 'apples'), (Fraction(1, 2), 'km'), None, None)
    """
    if (bare := number(formula(text))) is not None:
        return bare, ""
    match = _UNIT.fullmatch(text)
    if match is None or {*re.split("[ -]", (match[2] or "").casefold())} & _FIGURES:
        return None
    value = number(match[1])
    return None if value is None else (value, match[2] or match[3])


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
    if any(unicodedata.decomposition(c).startswith(("<super>", "<sub>")) for c in text):
        return None  # NFKC would make 102 of 10²
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
    from etude.runtime.serving import CallFailed

    if importlib.util.find_spec("math_verify") is None:
        return False
    try:
        return bool(_judge().call({"given": given, "wanted": wanted}, SECONDS))
    except CallFailed:
        return False


@cache
def _judge() -> Any:
    from etude.runtime.workers import Worker

    return Worker.of("etude.tasks.language._formulas:same")
