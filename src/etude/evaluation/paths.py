"""How well a way through a tree was named: Path Matching Score (arXiv:2511.05933)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def path_f1(named: Sequence[Hashable], path: Sequence[Hashable]) -> float:
    """F1 between the sets of nodes that were named and that are on the path, in [0, 1]."""
    both = len(set(named) & set(path))
    return 2 * both / (len(set(named)) + len(set(path))) if both else 0.0


def common_subsequence(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Length of the longest sequence that is left of both by leaving elements out.

    >>> common_subsequence("abcd", "acbd")
    3
    """
    best = [0] * (len(other) + 1)
    for a in one:
        row = [0]
        for j, b in enumerate(other):
            row.append(best[j] + 1 if a == b else max(best[j + 1], row[j]))
        best = row
    return best[-1]


def path_matching(named: Sequence[Hashable], path: Sequence[Hashable]) -> float:
    """Harmonic mean of the F1 of sets and of (longest common subsequence) / (length of the path).

    1 for exactly the path; 0 if none of its nodes is named. Nodes in the wrong order lower the second alone, nodes
    beside the path the first alone.

    >>> path_matching(["b", "a"], ["a", "b"])
    0.6666666666666666
    """
    if not path:
        raise ValueError("A path must have at least one node, got none.")
    f1, order = path_f1(named, path), common_subsequence(named, path) / len(path)
    return 2 * f1 * order / (f1 + order) if f1 + order else 0.0
