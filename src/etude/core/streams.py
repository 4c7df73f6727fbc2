"""Random streams: named, splittable, saved in checkpoints.

A stream is addressed by a seed and a path of names, so two streams never share numbers and adding one
never moves another:

>>> root = Stream(seed=0)
>>> a, b = root.split("sampling"), root.split("problems", 3)
>>> a.path, b.path
(('sampling',), ('problems', 3))
>>> bool(a.numpy.random() == Stream(seed=0).split("sampling").numpy.random())
True
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from etude.core.draws import Draw

if TYPE_CHECKING:
    import torch


class Stream:
    """One stream of random numbers, with a numpy and a torch generator made on first use.

    Args:
        seed: the run's seed; member k of a population has its own.
        path: names and indices that lead to this stream from the root.
    """

    def __init__(self, seed: int, path: tuple[str | int, ...] = ()) -> None:
        self.seed, self.path = int(seed), tuple(p if isinstance(p, str) else int(p) for p in path)

    def split(self, *names: str | int) -> Stream:
        """The stream below this one with the given names; independent of every other."""
        return Stream(self.seed, (*self.path, *names))

    def draw(self, *names: str | int) -> Draw:
        """The draw at the names below this stream: numbers that are addressed one by one, for rows of a batch."""
        return Draw.at(self.seed, *self.path, *names)

    @cached_property
    def key(self) -> int:
        """63 bits that identify this stream."""
        text = repr((self.seed, *self.path)).encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1

    @cached_property
    def numpy(self) -> np.random.Generator:
        """The stream's numpy generator."""
        return np.random.Generator(np.random.PCG64(self.key))

    @cached_property
    def torch(self) -> torch.Generator:
        """The stream's torch generator, on the CPU so that a seed means the same on every device."""
        import torch

        return torch.Generator().manual_seed(self.key)

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands, as plain JSON values."""
        state: dict[str, Any] = {"seed": self.seed, "path": list(self.path)}
        if "numpy" in self.__dict__:
            state["numpy"] = self.numpy.bit_generator.state
        if "torch" in self.__dict__:
            state["torch"] = bytes(self.torch.get_state().numpy()).hex()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to where `state_dict` was taken. Raises ValueError if it is another stream's."""
        if (state["seed"], tuple(state["path"])) != (self.seed, self.path):
            raise ValueError(f"This state belongs to stream {state['path']} of seed {state['seed']}, not {self.path}.")
        self.__dict__.pop("numpy", None)
        self.__dict__.pop("torch", None)
        if "numpy" in state:
            self.numpy.bit_generator.state = state["numpy"]
        if "torch" in state:
            import torch

            self.torch.set_state(torch.tensor(list(bytes.fromhex(state["torch"])), dtype=torch.uint8))
