"""Edits of files written as blocks of search and replace, what they change, and how alike two changes are.

    | <think>why</think>
    | <solution>
    | ### sums.py
    | <<<<<<< SEARCH
    |     if x > low:
    | =======
    |     if x > high:
    | >>>>>>> REPLACE
    | </solution>

The format and the comparison are those of SWE-RL (arXiv:2502.18449; facebookresearch/swe-rl, `core/reward.py`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

TAGS = ("<think>", "</think>", "<solution>", "</solution>")
_WHOLE = re.compile(r"<think>(.*?)</think>\s*<solution>(.*?)</solution>\s*", re.DOTALL)
_BLOCK = re.compile(r"^### ([^\n]+)\n<<<<<<< SEARCH\n(.*?)^=======\n(.*?)^>>>>>>> REPLACE", re.DOTALL | re.MULTILINE)
CONTEXT = 3
"""Lines around a change in a unified diff."""


class Edit(NamedTuple):
    """One block: whole lines of a file, each with its line break, and what stands in their place."""

    path: str
    search: str
    replace: str


def written(edits: list[Edit], thought: str) -> str:
    """A completion with these edits.

    >>> written([Edit("a.py", "x = 1\\n", "x = 2\\n")], "one more").splitlines()[:4]
    ['<think>one more</think>', '<solution>', '### a.py', '<<<<<<< SEARCH']
    """
    blocks = [f"### {e.path}\n<<<<<<< SEARCH\n{e.search}=======\n{e.replace}>>>>>>> REPLACE\n" for e in edits]
    return f"<think>{thought}</think>\n<solution>\n{''.join(blocks)}</solution>"


def edits_in(completion: str) -> list[Edit] | None:
    """The edits of a completion, in order; None where it has not the format.

    Each of the four tags is there once, the thought comes first and is not empty, and at least one block can be read.

    >>> edits_in("<think>x</think><solution></solution>") is None
    True
    """
    found = _WHOLE.fullmatch(completion.strip())
    if found is None or any(completion.count(tag) != 1 for tag in TAGS) or not found[1].strip():
        return None
    edits = [Edit(path.strip(), search, replace) for path, search, replace in _BLOCK.findall(found[2])]
    return edits or None


def applied(files: Mapping[str, str], edits: list[Edit]) -> dict[str, str] | None:
    """The files after the edits, one after the other; None where one cannot be made.

    What is searched for has to be there from the beginning of a line, so that indentation counts, and has to differ
    from what replaces it; the first place counts.

    >>> applied({"a.py": "if x:\\n    y\\n"}, [Edit("a.py", "    y\\n", "    z\\n")])
    {'a.py': 'if x:\\n    z\\n'}
    >>> applied({"a.py": "if x:\\n    y\\n"}, [Edit("a.py", "y\\n", "z\\n")]) is None
    True
    """
    after = dict(files)
    for path, search, replace in edits:
        before = "\n" + after.get(path, "")
        if path not in after or search == replace or not search or "\n" + search not in before:
            return None
        after[path] = before.replace("\n" + search, "\n" + replace, 1)[1:]
    return after


def diffs(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """The unified diff of each file that differs, without its header.

    >>> diffs({"a": "x\\n", "b": "y\\n"}, {"a": "z\\n", "b": "y\\n"})
    {'a': '@@ -1 +1 @@\\n-x\\n+z'}
    """
    changed = {path: text for path, text in after.items() if before.get(path) != text}
    return {path: _diff(before.get(path, ""), text) for path, text in changed.items()}


def _diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=CONTEXT)
    return "\n".join([*lines][2:])


@lru_cache(maxsize=4096)
def alike(one: str, other: str) -> float:
    """2 M / T of two texts, M of their T characters matching as `difflib` matches them.

    Of `abcd` and `bcde` bcd match, 3 of 4 on either side:

    >>> alike("abcd", "bcde")
    0.75
    """
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def similarity(predicted: Mapping[str, str], oracle: Mapping[str, str]) -> float:
    """How alike two changes are: the mean over all files that either changes, 0 for one that only one of them does.

    >>> similarity({"a": "x"}, {"a": "x", "b": "y"})
    0.5
    """
    paths = {*predicted, *oracle}
    both = [alike(predicted[p], oracle[p]) if p in predicted and p in oracle else 0.0 for p in sorted(paths)]
    return sum(both) / len(both) if both else 0.0
