"""Random numbers of many times drawn at once: a draw of every member's own costs as much as a small layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

from etude.core.population import CPU, Population

LENGTH = 64
"""Times that are drawn together."""


class Stretches:
    """Numbers by name and time, [P, ...]: every member's own, and the same whatever was asked before.

    Args:
        purpose: what they are for; other purposes have other numbers.
        device: where they are needed; they are drawn on the CPU, and go there a stretch at a time.

    >>> import torch
    >>> from etude.core.population import Member
    >>> numbers = Stretches(Population([Member(0), Member(1)]), "explore")
    >>> normal = lambda generator, count: torch.randn(count, 3, generator=generator)
    >>> late = numbers.at(70)("noise", normal)
    >>> again = Stretches(Population([Member(1)]), "explore").at(70)("noise", normal)
    >>> late.shape, bool((late[1] == again[0]).all())
    (torch.Size([2, 3]), True)
    """

    def __init__(self, population: Population, purpose: str, device: torch.device = CPU) -> None:
        self.population, self.purpose, self.device = population, purpose, device
        self.drawn: dict[str, tuple[int, Sequence[Tensor]]] = {}
        self.stretch, self.place = 0, 0

    def at(self, time: int) -> Stretches:
        """The numbers of one time; returns itself, which is a `Drawing`."""
        self.stretch, self.place = divmod(time, LENGTH)
        return self

    def __call__(self, name: str, of: Callable[[Generator, int], Tensor]) -> Tensor:
        stretch, numbers = self.drawn.get(name, (-1, ()))
        if stretch != self.stretch:
            drawn = self.population.draw(self.purpose, name, self.stretch, of=lambda g: of(g, LENGTH))
            numbers = drawn.to(self.device).unbind(1)
            self.drawn[name] = self.stretch, numbers
        return numbers[self.place]
