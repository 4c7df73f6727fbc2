"""Rewards for `compose`: the right answer, and not too many words on the way."""

from __future__ import annotations


def score(completions: list[str], answers: list[str], **columns: object) -> list[dict[str, float]]:
    """1 for the right last string, minus a hundredth for every character."""
    return [
        {"right": float(text.rpartition(":")[2].strip() == answer), "length": -0.01 * len(text)}
        for text, answer in zip(completions, answers)
    ]
