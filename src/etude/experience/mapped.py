"""Numbers in a file that is mapped into memory, for what is larger than the memory that is free."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from etude.runtime import disk

LASTING = Path("/var/tmp")
"""Where large files belong: /tmp is memory itself on many machines."""


def place() -> Path:
    """The folder for such files: TMPDIR where that is set."""
    if "TMPDIR" not in os.environ and os.access(LASTING, os.W_OK):
        return LASTING
    return Path(tempfile.gettempdir())


def free() -> int:
    """Bytes that are free there."""
    return shutil.disk_usage(place()).free


def numbers(rows: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers [rows, width], whose file has no name any more, so that it goes with the process.

    Its room is taken at once: a disk that fills up later cannot end the run.

    Raises: RunFolderError if the disk has less.
    """
    with (
        disk.when_full(lambda: f"{place()} has no room for what is stored; nothing was trained yet."),
        tempfile.NamedTemporaryFile(dir=place(), prefix="etude-replay-") as file,
    ):
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, rows * width * dtype.itemsize)
        return torch.from_file(file.name, shared=True, size=rows * width, dtype=dtype).view(rows, width)
