"""Logs as a file for each column, mapped when they are read: for what is larger than the memory that is free.

The folder has `logs.json`, spaces and the fingerprint of every number, and `observations.npy` and the like, which NumPy
reads too. Rows are checked when they are written, so nothing but the fingerprint is when they are read.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor

from etude.core.errors import DataError
from etude.experience.logs.formats import space_of
from etude.experience.logs.table import Logs, Numbers, Spaces, blocks
from etude.experience.logs.writing import told_space

ABOUT = "logs.json"
COLUMNS = ("observations", "actions", "rewards", "terminated", "truncated", "next_observations", "behaviour_logp")
"""Those of `Logs` that have a file; the last may be missing."""
FROM_DATA = "the data"
"""Whose spaces they are where nobody else says them."""


def is_converted(path: Path) -> bool:
    """Whether a folder is such logs."""
    return (path / ABOUT).is_file()


class ColumnFiles:
    """Writes logs, one after another, whole or not at all; what is there is replaced.

    >>> import tempfile
    >>> ends = dict(terminated=np.array([False, True]), truncated=np.zeros(2, bool))
    >>> columns = dict(observations=np.zeros((2, 1), "f4"), actions=np.ones((2, 1), "f4"), rewards=np.ones(2, "f4"))
    >>> box = gym_spaces.Box(-1.0, 1.0, (1,))
    >>> logs = Logs(Path("a"), Spaces(box, box, "a"), **columns, **ends, next_observations=columns["observations"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with ColumnFiles(Path(folder) / "b") as files:
    ...         files.append(logs), files.append(logs)
    ...     read_converted(Path(folder) / "b", None).returns.tolist()
    (None, None)
    [2.0, 2.0]
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unfinished, self.replaced = (folder.with_name(f".{folder.name}.{x}") for x in ("unfinished", "replaced"))
        self.files = dict[str, BinaryIO]()
        self.shapes = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]()
        self.rows, self.spaces = 0, None

    spaces: Spaces | None

    def __enter__(self) -> Self:
        for left in (self.unfinished, self.replaced):
            shutil.rmtree(left, ignore_errors=True)
        self.unfinished.mkdir(parents=True)
        return self

    def append(self, logs: Logs) -> None:
        """Write these behind the others. Raises DataError for logs of another environment."""
        self.spaces = logs.spaces if self.spaces is None else _both(self.spaces, logs.spaces, str(logs.where))
        for name in COLUMNS:
            column = getattr(logs, name)
            if column is None or (self.rows and name not in self.files):
                self._forget(name)
                continue
            if name not in self.files:
                self.files[name] = (self.unfinished / f"{name}.npy").open("wb+")
                self.shapes[name] = column.dtype, column.shape[1:]
                self._head(name)
            for block in blocks(column):
                self.files[name].write(np.ascontiguousarray(block, self.shapes[name][0]).tobytes())
        self.rows += logs.rows

    def _head(self, name: str) -> None:
        """The first bytes of a file of NumPy's, which leave room for as many rows as there may be."""
        dtype, rest = self.shapes[name]
        about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (self.rows, *rest)}
        self.files[name].seek(0)
        np.lib.format.write_array_header_1_0(self.files[name], about)

    def _forget(self, name: str) -> None:
        """A column that not all have, which only what may be missing is."""
        if file := self.files.pop(name, None):
            file.close()
            (self.unfinished / f"{name}.npy").unlink()

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        for name, file in self.files.items():
            self._head(name)
            file.close()
        if kind is not None or self.spaces is None:
            shutil.rmtree(self.unfinished, ignore_errors=True)
            return
        seen, done = (told_space(x) for x in (self.spaces.observation_space, self.spaces.action_space))
        logs = _mapped(self.unfinished, self.spaces)
        about = {"observation_space": seen, "action_space": done, "spaces_said_by": self.spaces.said_by,
                 "rows": self.rows, "episodes": logs.episodes, "fingerprint": logs.fingerprint}  # fmt: skip
        (self.unfinished / ABOUT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        if self.folder.exists():
            self.folder.rename(self.replaced)  # whole, so that a kill leaves no part of a conversion under its name
        self.unfinished.rename(self.folder)
        shutil.rmtree(self.replaced, ignore_errors=True)


def read_converted(path: Path, spaces: Spaces | None) -> Logs:
    """The logs of such a folder, mapped.

    Args:
        spaces: of the environment that they were taken in, which they must agree with; None: as the folder says.

    Raises: DataError for a folder that was changed, and for logs of another environment.
    """
    try:
        about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
        seen, done = (space_of(path, about[k]) for k in ("observation_space", "action_space"))
        own = Spaces(seen, done, str(about["spaces_said_by"]))
        found = _mapped(path, spaces or own)
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{path} is not what `etude data convert` writes ({error}): convert again.") from None
    if found.fingerprint != about["fingerprint"]:
        raise DataError(f"{path} is not as it was written: convert again.")
    if spaces is not None:
        _agrees(own, spaces, path)
    return found


def _mapped(path: Path, spaces: Spaces) -> Logs:
    columns = {name: np.load(path / f"{name}.npy", mmap_mode="r") for name in COLUMNS[:-1]}
    if (path / f"{COLUMNS[-1]}.npy").is_file():
        columns[COLUMNS[-1]] = np.load(path / f"{COLUMNS[-1]}.npy", mmap_mode="r")
    stamps = {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(path.glob("*.npy"))}
    return Logs(path, spaces, changed=stamps, **columns)


def _both(first: Spaces, then: Spaces, where: str) -> Spaces:
    """The spaces of both; those that only numbers show are as wide as both show. Raises DataError for others."""
    one, other = first.action_space, then.action_space
    same = first.observation_space == then.observation_space
    if same and one == other:
        return first
    wide: gym_spaces.Space[Any] | None = None
    if isinstance(one, gym_spaces.Box) and isinstance(other, gym_spaces.Box) and one.shape == other.shape:
        wide = gym_spaces.Box(np.minimum(one.low, other.low), np.maximum(one.high, other.high), dtype=np.float32)
    if isinstance(one, gym_spaces.Discrete) and isinstance(other, gym_spaces.Discrete):
        wide = one if one.n >= other.n else other
    if same and wide is not None and first.said_by == then.said_by == FROM_DATA:
        return Spaces(first.observation_space, wide, FROM_DATA)
    raise DataError(
        f"{where} has observations {list(then.observation_space.shape)} and actions {other}, and what stands before it "
        f"{list(first.observation_space.shape)} and {one}: they are of different environments."
    )


def _agrees(own: Spaces, spaces: Spaces, path: Path) -> None:
    """Raise DataError for logs whose numbers do not fit an environment."""
    seen, done = own.observation_space.shape == spaces.observation_space.shape, own.action_space == spaces.action_space
    if isinstance(own.action_space, gym_spaces.Box) and isinstance(spaces.action_space, gym_spaces.Box):
        one, other = own.action_space, spaces.action_space
        done = one.shape == other.shape and bool((one.low >= other.low).all() and (one.high <= other.high).all())
    if isinstance(own.action_space, gym_spaces.Discrete) and isinstance(spaces.action_space, gym_spaces.Discrete):
        done = own.action_space.n <= spaces.action_space.n and own.action_space.start == spaces.action_space.start
    if not (seen and done):
        raise DataError(
            f"{path} is of another environment: observations {list(own.observation_space.shape)} and actions "
            f"{own.action_space}, where {spaces.said_by} has {list(spaces.observation_space.shape)} and "
            f"{spaces.action_space}. If it is the same, convert again with --task."
        )


def is_mapped(column: Numbers) -> bool:
    """Whether numbers lie in a file."""
    return isinstance(column, np.memmap)


def as_tensor(column: Numbers) -> Tensor:
    """The same numbers, where they lie; a file is never written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(column)


def moments(column: Numbers) -> tuple[Numbers, Numbers]:
    """[D] mean and deviation of all rows [N, D] in float64, which are never copied all at once.

    >>> [x.tolist() for x in moments(np.array([[1.0], [3.0]]))]
    [[2.0], [1.0]]
    """
    mean = sum(_sums(column, np.zeros(column.shape[1]))) / len(column)
    squares = sum(_sums(column, mean, power=2)) / len(column)
    return mean, np.sqrt(squares)


def _sums(column: Numbers, less: Numbers, power: int = 1) -> Iterator[Any]:
    for block in blocks(column):
        yield ((block.astype(np.float64) - less) ** power).sum(0)
