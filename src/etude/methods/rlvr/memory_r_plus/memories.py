"""What was said before of a problem and of problems like it: texts as vectors, and a store that forgets the oldest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

MIXING = 1_000_003
"""A prime that mixes the characters of a piece of text into its number."""


def embedded(texts: Sequence[str], width: int, size: int) -> Tensor:
    """[N, width] texts as counts of their pieces of `size` characters, hashed into `width` places, of length 1.

    A frozen encoder for models that are smaller than any sentence encoder: texts that share no piece are orthogonal,
    but for pieces that fall into one place. Texts are framed, so that the shortest have pieces too.

    >>> a, b = embedded(["3,7", "3,7"], 64, 3)
    >>> round(float(a @ b), 4)
    1.0
    """
    rows = np.zeros((len(texts), width))
    for row, text in enumerate(texts):
        codes = np.array([1, *map(ord, text), *[2] * (size - 1)], np.int64)
        numbers = np.zeros(len(codes) - size + 1, np.int64)
        for k in range(size):
            numbers = (numbers * MIXING + codes[k : len(codes) - size + 1 + k]) % ((1 << 31) - 1)
        rows[row] = np.bincount(numbers % width, minlength=width)
        rows[row] /= np.linalg.norm(rows[row])
    return torch.from_numpy(rows).float()


class Memory:
    """Vectors of responses by problem, in a state that a checkpoint can hold.

    Args:
        state: `empty()`, or what became of one.
        problems: of how many problems there are responses; the problem that was met first leaves.
        responses: how many of each; the oldest leaves.
    """

    def __init__(self, state: dict[str, Any], problems: int, responses: int) -> None:
        self.state, self.problems, self.responses = state, problems, responses

    @staticmethod
    def empty(width: int) -> dict[str, Any]:
        """A memory of nothing: names of problems, their prompts, responses, and the place of each one's problem."""
        return {
            "ids": [], "prompts": torch.zeros(0, width), "said": torch.zeros(0, width),
            "owner": torch.zeros(0, dtype=torch.long),
        }  # fmt: skip

    def put(self, ids: Sequence[str], prompts: Tensor, said: Tensor) -> None:
        """Remember responses [N, D] to problems whose prompts are [N, D], in their order."""
        place = {name: i for i, name in enumerate(self.state["ids"])}
        first = []
        for i, name in enumerate(ids):
            if name not in place:
                place[name] = len(place)
                first.append(i)
        owner = torch.cat([self.state["owner"], torch.tensor([place[name] for name in ids], dtype=torch.long)])
        everything = torch.cat([self.state["said"], said])
        gone = max(0, len(place) - self.problems)
        kept = (owner >= gone) & (_newer(owner) < self.responses)
        self.state |= {
            "ids": list(place)[gone:], "prompts": torch.cat([self.state["prompts"], prompts[first]])[gone:],
            "said": everything[kept], "owner": owner[kept] - gone,
        }  # fmt: skip

    def near(self, prompt: Tensor, neighbours: int) -> Tensor:
        """[M, D] what was said of the problems whose prompts are nearest to this one [D] by cosine."""
        places = (self.state["prompts"] @ prompt).argsort(descending=True, stable=True)[:neighbours]
        found: Tensor = self.state["said"][torch.isin(self.state["owner"], places)]
        return found


def _newer(owner: Tensor) -> Tensor:
    """[M] how many later rows belong to the same owner."""
    order = owner.argsort(stable=True)
    counts = torch.bincount(owner)
    ends = counts.cumsum(0)[owner[order]]
    return torch.empty_like(owner).scatter_(0, order, ends - 1 - torch.arange(len(owner)))
