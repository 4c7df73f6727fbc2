"""Pools of problems that do not lie in memory, and the random order in which any pool is passed over."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import gcd
from typing import TYPE_CHECKING, overload

from etude.core.episodes import Problem

if TYPE_CHECKING:
    import numpy as np

    from etude.core.streams import Stream


class Streamed(Sequence[Problem]):
    """Problems that are read when they are asked for; problem i is the same whenever that is."""

    @abstractmethod
    def problem(self, index: int) -> Problem:
        """The problem at an index from 0."""

    @overload
    def __getitem__(self, index: int) -> Problem: ...

    @overload
    def __getitem__(self, index: slice) -> list[Problem]: ...

    def __getitem__(self, index: int | slice) -> Problem | list[Problem]:
        places = range(len(self))[index]
        return [self.problem(i) for i in places] if isinstance(places, range) else self.problem(places)

    def shuffled(self, n: int, stream: Stream) -> int:
        """Which problem is number n of endless shuffled passes, in an order that is cheap to read."""
        return shuffled(n, len(self), stream)


def shuffled(n: int, size: int, stream: Stream) -> int:
    """Place n of the endless sequence of shuffled passes over `size` things, without storing any pass."""
    turn, place = divmod(n, size)
    return permuted(place, size, stream.split(turn).numpy)


def permuted(place: int, size: int, random: np.random.Generator) -> int:
    """Where a place goes: an affine map i -> (a i + b) mod size with a coprime to size is a permutation."""
    a, b = int(random.integers(1, size + 1)), int(random.integers(size))
    while gcd(a, size) != 1:
        a += 1
    return (a * place + b) % size
