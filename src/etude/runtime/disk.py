"""Every change that a run makes to the disk goes through one of these functions.

They are looked up as `disk.write(...)`, so that a test can stop the run at any one of them. None is buffered:
when a call returns, the change is with the kernel; after `sync` it is on the device.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from etude.core.errors import EtudeError, RunFolderError

if TYPE_CHECKING:
    from torch import Tensor


def write(fd: int, data: bytes) -> None:
    """Write all of `data`; one call to the kernel unless the disk is nearly full."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def write_file(path: Path, data: bytes) -> None:
    """Write a whole file, without fsync."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        write(fd, data)
    finally:
        os.close(fd)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as one safetensors file, without fsync."""
    from safetensors.torch import save_file

    save_file(dict(tensors), path)


def sync(path: Path) -> None:
    """fsync a file, or a folder (the names in it)."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def rename(source: Path, target: Path) -> None:
    """Rename within one file system; atomic."""
    source.rename(target)


def link(source: Path, target: Path) -> None:
    """Give a file a second name; what it holds is freed when the last of them is removed."""
    target.hardlink_to(source)


def make_folder(path: Path) -> None:
    """Create a folder and its parents; it may exist. Raises RunFolderError where there can be none of this name."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if is_full(error):
            raise
        raise RunFolderError(f"The folder {path} cannot be made: {error.strerror}. Choose another name.") from None


def cut(fd: int, size: int) -> None:
    """Shorten an open file to `size` bytes. Works on a full disk."""
    os.ftruncate(fd, size)


def remove(path: Path) -> None:
    """Remove a file or a whole folder; it may be gone already."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def replace_file(path: Path, data: bytes) -> None:
    """Write a whole file so that, whatever happens, its old or its new content is there."""
    temporary = path.with_name(path.name + ".tmp")
    write_file(temporary, data)
    sync(temporary)
    rename(temporary, path)
    sync(path.parent)


def is_full(error: BaseException) -> bool:
    """Whether an error means that the disk, or the user's share of it, is full."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "No space left on device" in str(error)  # what libraries written in other languages raise


def sentence(folder: Path, size: int, count: int) -> str:
    """What checkpoints will take on the disk of a folder, with a warning if that is more than it has free.

    Args:
        size: bytes of one.
        count: how many stay; while one is written there is one more.
    """
    from etude.runtime.memory import shown

    each = f"Checkpoints take about {shown(size)} each, and {count} stay: {shown(count * size)} on the disk"
    free, most = shutil.disk_usage(folder).free, (count + 1) * size
    if most > free:
        return (
            f"{each}. That is more than the {shown(free)} that are free, with the {shown(size)} of the one being "
            "written: make room, keep fewer (--keep 1), or train an adapter (--adapter lora)."
        )
    return f"{each}."


@contextmanager
def when_full(say: Callable[[], str]) -> Iterator[None]:
    """Turn a full disk into a RunFolderError that starts with 'Disk full' and ends with what `say` returns."""
    try:
        yield
    except Exception as error:
        if isinstance(error, EtudeError) or not is_full(error):
            raise
        raise RunFolderError(f"Disk full: {say()}") from error
