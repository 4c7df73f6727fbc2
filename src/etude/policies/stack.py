"""Rows that others are put behind, again and again."""

from __future__ import annotations

from torch import Tensor


class Stack:
    """Keeps room behind the rows of a tensor, so that what is there is not copied each time."""

    def __init__(self) -> None:
        self.buffer: Tensor | None = None

    def grown(self, there: Tensor, more: Tensor) -> Tensor:
        """`there` [n, ...] with `more` [m, ...] behind it, in the place of `there` if this made it and has the room.

        What was behind `there` in that place is lost.

        >>> import torch
        >>> stack = Stack()
        >>> two = stack.grown(torch.ones(1), torch.tensor([2.0]))
        >>> three = stack.grown(two, torch.tensor([3.0]))
        >>> three, stack.grown(three, torch.tensor([4.0])).data_ptr() == three.data_ptr()
        (tensor([1., 2., 3.]), True)
        """
        count = len(there) + len(more)
        if self.buffer is None or count > len(self.buffer) or not _begins(there, self.buffer):
            self.buffer = there.new_zeros(max(count, 2 * len(there)), *there.shape[1:])
            self.buffer[: len(there)] = there
        self.buffer[len(there) : count] = more
        return self.buffer[:count]


def _begins(part: Tensor, whole: Tensor) -> bool:
    """Whether a tensor is the first rows of another one, in its place."""
    return part.data_ptr() == whole.data_ptr() and part.stride() == whole.stride() and part.shape[1:] == whole.shape[1:]
