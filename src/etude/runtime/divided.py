"""Tensors of a checkpoint that no rank has whole: a file of each rank, and an index.

    ranks/rank-0-of-2.safetensors    its rows of every tensor, by name
    ranks/rank-1-of-2.safetensors
    ranks/index.json                 the files in order, and how many rows a tensor has in all

A tensor is the rows of all files one after another, so any number of ranks can read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from etude.core.errors import CheckpointError
from etude.runtime.checkpoints import inside, load_json, load_tensors, save_json, save_tensors

if TYPE_CHECKING:
    from torch import Tensor

FOLDER, INDEX = "ranks", "index.json"


def write(folder: Path, rank: int, count: int, rows: Mapping[str, Tensor]) -> None:
    """Write what one of the ranks has of each tensor."""
    (folder / FOLDER).mkdir(exist_ok=True)
    save_tensors(folder / FOLDER / _file(rank, count), rows)


def write_index(folder: Path, count: int, lengths: Mapping[str, int]) -> None:
    """Say how many rows the tensors have that all ranks write."""
    (folder / FOLDER).mkdir(exist_ok=True)
    save_json(folder / FOLDER / INDEX, {"files": [_file(r, count) for r in range(count)], "rows": dict(lengths)})


def read(folder: Path) -> dict[str, Tensor]:
    """All tensors whole; none where nothing was divided. Raises CheckpointError if rows are missing."""
    import torch

    if not (folder / FOLDER).is_dir():
        return {}
    index = load_json(folder / FOLDER / INDEX)
    files = [load_tensors(folder / FOLDER / inside(name)) for name in index["files"]]
    found: dict[str, Tensor] = {}
    for name, length in index["rows"].items():
        rows = [file.pop(name) for file in files if name in file]
        found[name] = torch.cat(rows) if rows else torch.zeros(0)
        if len(rows) != len(files) or len(found[name]) != length:
            raise CheckpointError(
                f"{folder / FOLDER} has {len(found[name])} of {length} rows of {name}: a rank's file is another run's. "
                "Restore the checkpoint from a copy, or go on from the one before."
            )
    return found


def _file(rank: int, count: int) -> str:
    return f"rank-{rank}-of-{count}.safetensors"
