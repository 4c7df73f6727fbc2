"""Numbers that several processes of this machine read and write without waiting for each other, and a count."""

from __future__ import annotations

import fcntl
import os
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

MEMORY = Path("/dev/shm")
"""Where files are memory, if the system has it; else they are in the folder of temporary files."""
PREFIX = "etude-hogwild-"
"""How their names begin; whose they are follows."""


class Common:
    """Tensors in a file that every process maps into its memory: what one writes the others read, without locks.

    Args:
        path: of the file. sizes: how many numbers each tensor has, in the same order in every process.

    >>> sizes = {"values": 3}
    >>> path = Common.create(sizes)
    >>> one, other = Common(path, sizes), Common(path, sizes)
    >>> _ = one["values"].fill_(2.0)
    >>> other["values"].tolist(), Common.remove(path)
    ([2.0, 2.0, 2.0], None)
    """

    def __init__(self, path: str, sizes: Mapping[str, int]) -> None:
        total = sum(sizes.values())
        numbers = torch.from_file(path, shared=True, size=total, dtype=torch.float32)
        self.tensors = dict(zip(sizes, numbers.split(list(sizes.values())), strict=True))

    def __getitem__(self, name: str) -> Tensor:
        found: Tensor = self.tensors[name]
        return found

    @staticmethod
    def create(sizes: Mapping[str, int]) -> str:
        """A file of zeros for so many numbers, and one beside it for a `Count`."""
        place = MEMORY if MEMORY.is_dir() else None
        handle, path = tempfile.mkstemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place)
        with os.fdopen(handle, "wb") as file:
            file.truncate(4 * sum(sizes.values()))
        Path(path + Count.SUFFIX).write_bytes((0).to_bytes(8, "little"))
        return path

    @staticmethod
    def remove(path: str) -> None:
        """Give the memory back once nobody maps it any more."""
        for name in (path, path + Count.SUFFIX):
            Path(name).unlink(missing_ok=True)


class Count:
    """One count for all processes. Taking a number waits for whoever is taking one, some microseconds; the operating
    system ends that wait if a process is killed meanwhile.

    >>> path = Common.create({})
    >>> one, other = Count(path), Count(path)
    >>> one.take(2), other.take(2), one.take(2), other.taken, Common.remove(path)
    (0, 1, None, 2, None)
    """

    SUFFIX = ".count"

    def __init__(self, path: str) -> None:
        self.file = os.open(path + self.SUFFIX, os.O_RDWR | os.O_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self.file)
        """Close the file, once."""

    def take(self, limit: int) -> int | None:
        """The next number below `limit`, which nobody else gets; None if there is none."""
        fcntl.flock(self.file, fcntl.LOCK_EX)
        try:
            number = self.taken
            if number >= limit:
                return None
            self.set(number + 1)
            return number
        finally:
            fcntl.flock(self.file, fcntl.LOCK_UN)

    @property
    def taken(self) -> int:
        """How many were taken."""
        return int.from_bytes(os.pread(self.file, 8, 0), "little")

    def set(self, number: int) -> None:
        """Go on from here."""
        os.pwrite(self.file, number.to_bytes(8, "little"), 0)
