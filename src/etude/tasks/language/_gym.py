"""The reasoning-gym package, in a worker process that `reasoning_gym.py` starts.

A process of its own for three reasons: several datasets depend on the hash seed, which is fixed here; a verifier that
an answer hangs can be ended; and several verifiers hand the answer to Python's `eval`, or to sympy's parser, which
evaluates too. This process is no sandbox, so what can only be meant as code never reaches those.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS
from reasoning_gym.utils import extract_answer

LONGEST = 2_000
"""Characters of an answer; a longer one counts as none."""

_EVALUATES = re.compile(r"\b(eval|exec|parse_expr|sympify)\(")
_MATHS = re.compile(r"[\w\s+\-*/^().,!]*")
_NUMBER = re.compile(r"\d+(\.\d*)?([eE][+-]?\d+)?|\.\d+")
_FUNCTIONS = {
    "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "ln",
    "sqrt", "abs", "Abs", "pi",
}  # fmt: skip


def names() -> list[str]:
    """All datasets."""
    return sorted(DATASETS)


def problem(dataset: str, seed: int, size: int, index: int) -> dict[str, Any]:
    """Question, answer and level of a problem. An answer that the dataset's own verifier does not accept is None."""
    entry = _entry(dataset, seed, size, index)
    answer = entry["answer"]
    good = isinstance(answer, str) and _made(dataset, seed, size).score_answer(answer, entry) >= 1
    level = str(entry.get("metadata", {}).get("source_dataset", dataset))
    return {"question": entry["question"], "answer": answer if good else None, "level": level}


def score(dataset: str, seed: int, size: int, index: int, completion: str) -> float:
    """What the dataset's verifier gives the answer: what the last <answer> tag holds, else the whole completion."""
    made, entry = _made(dataset, seed, size), _entry(dataset, seed, size, index)
    tagged = extract_answer(completion)
    answer: str | None = completion.strip() if tagged is None else tagged
    if answer is not None and (len(answer) > LONGEST or (_evaluates(dataset) and not harmless(answer))):
        answer = None
    return float(made.score_answer(answer, entry))


def answer(what: str, **arguments: object) -> Any:
    """One of the functions above, by name."""
    known: dict[str, Callable[..., Any]] = {"names": names, "problem": problem, "score": score}
    return known[what](**arguments)


@cache
def _made(dataset: str, seed: int, size: int) -> Any:
    return reasoning_gym.create_dataset(dataset, seed=seed, size=size)


@lru_cache(maxsize=4096)
def _entry(dataset: str, seed: int, size: int, index: int) -> dict[str, Any]:
    entry: dict[str, Any] = _made(dataset, seed, size)[index]
    return entry


@cache
def _evaluates(dataset: str) -> bool:
    """Whether a dataset's verifier evaluates the answer."""
    return bool(_EVALUATES.search(inspect.getsource(DATASETS[dataset][0].score_answer)))


def harmless(text: str) -> bool:
    """Whether evaluating a text can call nothing but functions of mathematics: no call, a literal, or a formula.

    >>> harmless("[['a', 1], (2, 3)]"), harmless("(x + 1)*sin(x)/2"), harmless("__import__('os').system('ls')")
    (True, True, False)
    """
    return "(" not in text or _literal(text) or _formula(text)


def _literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _formula(text: str) -> bool:
    if not _MATHS.fullmatch(text) or re.search(r"\.\s*[^\W\d]", text):
        return False
    words = re.findall(r"[^\W\d]\w*", _NUMBER.sub(" ", text))
    return all(len(w) == 1 or w in _FUNCTIONS for w in words)
