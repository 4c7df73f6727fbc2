"""Reward functions in a file that imports nothing: the process that calls them is ready in milliseconds."""

from __future__ import annotations


def two(completions: list[str]) -> list[float]:
    """2 for everything."""
    return [2.0] * len(completions)


def even(completions: list[str], ids: list[str]) -> list[float | None]:
    """1 for problems with an even number; the others it does not judge."""
    return [1.0 if int(i) % 2 == 0 else None for i in ids]
