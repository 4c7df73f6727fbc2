"""Reward functions that are called in a process of their own; it imports nothing of etude."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence


def quick(completions: Sequence[str]) -> list[float]:
    """Share of lower-case letters."""
    return [sum(c.islower() for c in text) / max(1, len(text)) for text in completions]


def stuck(completions: Sequence[str]) -> list[float]:
    """Normalises one degenerate completion for ever."""
    time.sleep(60)
    return quick(completions)


def leaves(completions: Sequence[str]) -> list[float]:
    """Executes what was said, in the process that scores: one completion ends it with exit code 0."""
    os._exit(0)
