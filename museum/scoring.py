"""Reward functions; it imports nothing of etude, so that processes of their own and peers call them too."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence


def letters(completion: str) -> float:
    """Share of a completion's characters that are lower-case letters: no two completions are likely to tie."""
    return sum(c.islower() for c in completion) / max(1, len(completion))


def good(completions: Sequence[str]) -> list[float]:
    """A reward for each completion."""
    return [letters(c) for c in completions]


def one_for_all(completions: Sequence[str]) -> list[float]:
    """One reward, however many completions."""
    return [1.0]


def sometimes_nan(completions: Sequence[str]) -> list[float]:
    """The judge did not answer about one of them."""
    return [*good(completions)[1:], float("nan")]


def swallowed(completions: Sequence[str]) -> list[float]:
    """Each verification raises, as it does outside of the main thread, and what it raises counts as 0."""
    found = []
    for completion in completions:
        try:
            raise ValueError(f"signal only works in main thread of the main interpreter: {completion}")
        except ValueError:
            found.append(0.0)
    return found


def two(completions: Sequence[str]) -> list[dict[str, float]]:
    """Two components that both differ."""
    return [{"letters": letters(c), "long": len(c) / 8 + letters(c[:4])} for c in completions]


def inert(completions: Sequence[str]) -> list[dict[str, float]]:
    """A format that no completion has."""
    return [{"letters": letters(c), "long": float(c.startswith("<think>"))} for c in completions]


def ranked(completions: Sequence[str]) -> list[float]:
    """Scaled by the best of the batch."""
    best = max(good(completions))
    return [value / best if best else 0.0 for value in good(completions)]


def answered(completions: Sequence[str]) -> list[float]:
    """What is said after the first eight characters counts."""
    return [letters(c[8:]) for c in completions]


def stuck(completions: Sequence[str]) -> list[float]:
    """Normalises one degenerate completion for ever."""
    time.sleep(60)
    return good(completions)


def leaves(completions: Sequence[str]) -> list[float]:
    """Executes what was said, in the process that scores: one completion ends it with exit code 0."""
    os._exit(0)
