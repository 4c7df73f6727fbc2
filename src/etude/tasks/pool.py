"""Endless-looking pools of problems that are made when they are asked for, and the train/test divide they share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import overload

from etude.core.episodes import Problem


class Pool(Sequence[Problem]):
    """`length` problems, problem i made by `make(i)` on every access: nothing is stored, so any length is free.

    Args:
        make: a pure function of the index.
        length: how many there are.
    """

    def __init__(self, make: Callable[[int], Problem], length: int) -> None:
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> Problem: ...

    @overload
    def __getitem__(self, index: slice) -> list[Problem]: ...

    def __getitem__(self, index: int | slice) -> Problem | list[Problem]:
        positions = range(self.length)[index]
        return [self.make(i) for i in positions] if isinstance(positions, range) else self.make(positions)


def reserved(text: str, share: float = 0.2) -> bool:
    """Whether `text` belongs to the `share` of all inputs that is kept for testing.

    Decided by the text alone (first four bytes of its SHA-256), so that train and test can be generated without
    end, with any seed and in any process, and never meet.
    """
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") < share * 2**32
