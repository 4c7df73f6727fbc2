"""The words of small programs and of those who repair them, one token each: family `code` of `word_tokenizer.py`.

An indentation is a token of three or seven spaces, the space before the first word being that word's own, as before
any other word.
"""

from __future__ import annotations

from string import ascii_lowercase, digits

HOMES = ("lists", "texts", "sums")
"""Files of a package, in the order in which they are read: a later one may import from an earlier one."""
FUNCTIONS = (
    "clip", "add_all", "count_of", "average", "initials", "factorial", "largest", "is_mirror", "power", "steps", "thin",
    "digit_sum",
)  # fmt: skip
"""In the order in which they came to be."""
ROLES: dict[str, tuple[str, ...]] = {
    "xs": ("xs", "items", "values"), "x": ("x", "item", "value"), "total": ("total", "result", "found"),
    "low": ("low", "least"), "high": ("high", "most"), "n": ("n", "size"), "i": ("i", "k"), "text": ("text", "line"),
    "letter": ("letter", "mark"), "words": ("words", "names"), "word": ("word", "name"), "best": ("best", "top"),
    "base": ("base", "a"),
}  # fmt: skip
"""What a local name is called, by what it is for; the first is the one that templates are written with."""

_PYTHON = (
    "def", "for", "in", "if", "return", "not", "True", "False", "from", "import", "range", "len", "str", "int",
    "append",
)  # fmt: skip
_OPERATORS = ("=", "+", "-", "*", "//", "%", "<", "<=", ">", ">=", "==", "!=")
_SIGNS = ("(", ")", "[", "]", ":", ",", ".", "'", '"', '""', ".py", "|", "\n", " ", "   ", "       ")
ACTIONS = ("open", "search", "replace", "run", "submit")
_SAID = ("should", "be", "ok", "no", "nothing", "passed", "failed", "over")
_MARKS = (
    "<think>", "</think>", "<solution>", "</solution>", "### ", "<<<<<<< SEARCH\n", "=======\n", ">>>>>>> REPLACE\n",
)  # fmt: skip

_NAMES = tuple(dict.fromkeys(name for names in ROLES.values() for name in names))
_WORDS = (*_PYTHON, *_OPERATORS, *_NAMES, *FUNCTIONS, *HOMES, *ACTIONS, *_SAID, *ascii_lowercase, *digits)
CODE = tuple(dict.fromkeys([*_SIGNS, *_MARKS, *(f"{before}{word}" for word in _WORDS for before in (" ", ""))]))
"""Each word with the space before it, and without."""
