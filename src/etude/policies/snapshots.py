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
import weakref
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
FOLDER = "ETUDE_WEIGHTS"
"""The environment variable with a folder to take instead, as one that an engine on another machine sees, too."""
PREFIX = "etude-weights-"
WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def weights(policy: LanguagePolicy) -> dict[str, Tensor]:
    """What training changes of what the policy samples from, by name."""
    return policy.weights.trained()


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
    snapshot = Snapshot(weights(policy), policy.version)
    try:
        yield snapshot.file
    finally:
        snapshot.close()


class Snapshot:
    """Weights as they were, in a file that stays until it is closed: the policy learns on while others sample from it.

    Its folder is named after this process, so that one which was killed leaves it to the next to clear away.

    Args:
        tensors: as of `weights`.
        version: of the policy that had them.
    """

    def __init__(self, tensors: Mapping[str, Tensor], version: int) -> None:
        from safetensors.torch import save_file

        self.version, self.mark = version, mark(tensors)
        here = {name: t.cpu().contiguous() for name, t in tensors.items()}
        self.folder = _made(sum(t.nbytes for t in here.values()))
        self.file = self.folder / "weights.safetensors"
        self._ended = weakref.finalize(self, _removed, self.folder, os.getpid())
        try:
            save_file(here, self.file)
        except BaseException:
            self.close()
            raise

    def tensors(self) -> dict[str, Tensor]:
        """The weights, on the CPU."""
        from safetensors.torch import load_file

        return load_file(self.file)

    def close(self) -> None:
        """The file is gone."""
        self._ended()


@contextmanager
def held(policy: LanguagePolicy, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """The policy with other weights for a while; then with its own again, to the last bit. Nothing may learn inside."""
    mine = weights(policy)
    now = {name: tensor.clone() for name, tensor in mine.items()}
    try:
        put(mine, tensors)
        yield
    finally:
        put(mine, now)


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
    put(mine, ordered)
    policy.loads += 1


@contextmanager
def folder_for(size: int) -> Iterator[Path]:
    """A folder with room for so many bytes, in memory if that has it; gone afterwards, with all that is in it."""
    folder = _made(size)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _made(size: int) -> Path:
    """A folder of this process; those of processes that are gone are removed, where no other machine has any."""
    given = os.environ.get(FOLDER)
    room = given or _room(size)
    if not given:
        _clear(Path(room or tempfile.gettempdir()))
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=room))


@torch.no_grad()
def put(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    """Write other numbers into tensors, by name."""
    for name, tensor in mine.items():
        tensor.copy_(theirs[name])


def _clear(room: Path) -> None:
    """Remove folders of processes that are gone."""
    for folder in room.glob(f"{PREFIX}*-*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdecimal() and not _there(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


def _there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _removed(folder: Path, owner: int) -> None:
    """Remove a folder, but not from a fork of the process that made it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _room(size: int) -> str | None:
    """The folder for so many bytes: in memory, if it has room."""
    if os.access(SHARED, os.W_OK) and shutil.disk_usage(SHARED).free > 2 * size:
        return SHARED
    return None
