"""Weights on their way to another process that samples from them: files in memory, known by their content.

A snapshot has what training changes and sampling depends on: all weights, or those of an adapter alone. Its mark is of
every bit of them, so one that is torn, late or another's is refused, and each batch of rows can say which weights it
was sampled from.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from etude.core.errors import InvariantError

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

SHARED = "/dev/shm"
"""A folder in memory, where there is one; it is taken where it has room for twice as much."""
WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def weights(policy: LanguagePolicy) -> dict[str, Tensor]:
    """What training changes of what the policy samples from, by name."""
    return {name: p.detach() for name, p in policy.model.named_parameters() if p.requires_grad}


def mark(tensors: Mapping[str, Tensor]) -> str:
    """Sixteen letters of all bits of the tensors, and of their names and shapes; where they lie does not matter.

    >>> one = {"w": torch.tensor([1.0, 2.0])}
    >>> mark(one) == mark({"w": torch.tensor([1.0, 2.0])}), mark(one) == mark({"w": torch.tensor([1.0, 2.0000002])})
    (True, False)
    """
    sums = [t.contiguous().view(-1).view(WHOLE[t.element_size()]).sum(dtype=torch.int64) for t in tensors.values()]
    found = torch.stack(sums).tolist() if sums else []
    told = [(name, list(t.shape), total) for (name, t), total in zip(tensors.items(), found, strict=True)]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


@contextmanager
def written(policy: LanguagePolicy) -> Iterator[Path]:
    """A file with the policy's weights, which is gone afterwards."""
    from safetensors.torch import save_file

    tensors = {name: t.cpu().contiguous() for name, t in weights(policy).items()}
    folder = Path(tempfile.mkdtemp(prefix="etude-weights-", dir=_room(sum(t.nbytes for t in tensors.values()))))
    try:
        save_file(tensors, folder / "weights.safetensors")
        yield folder / "weights.safetensors"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@torch.no_grad()
def take(policy: LanguagePolicy, file: str | Path, wanted: str) -> None:
    """Put the weights of a file into a policy. Raises InvariantError, and changes nothing, if they are not `wanted`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    mine = weights(policy)
    try:
        theirs = load_file(file)
        ordered = {name: theirs[name] for name in mine}
    except (OSError, KeyError, SafetensorError) as error:
        raise InvariantError(f"The weights in {file} cannot be read ({type(error).__name__}: {error}).") from None
    if len(theirs) != len(mine) or (found := mark(ordered)) != wanted:
        what = "other tensors" if len(theirs) != len(mine) else f"the mark {found}"
        raise InvariantError(
            f"The weights in {file} have {what}, and {wanted} was told: the file is torn or of another version, and "
            "was not taken."
        )
    for name, tensor in mine.items():
        tensor.copy_(ordered[name])
    policy.loads += 1


def _room(size: int) -> str | None:
    """The folder for so many bytes: in memory, if it has room."""
    if os.access(SHARED, os.W_OK) and shutil.disk_usage(SHARED).free > 2 * size:
        return SHARED
    return None
